"""The parent process of Spark's Python workers. It loads the modules of their tasks once, before it forks workers.

Otherwise Arrow, Numba and the compiled kernels cost each worker a second of processor time, also when a driver starts.
Must never have a thread: a fork inherits the locks of a thread, but not the thread.
"""

from __future__ import annotations

import gc

from ferry import environment
from ferry.spark import private
from ferry.system import user_module
from ferry.system.parent import children_end_with_it


def load() -> None:
    """Import the modules of tasks, and compile the kernels of an aggregate or read them from the cache."""
    environment.give(environment.NO_THREADS)  # A task has one core anyway.
    children_end_with_it()
    from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
    from ferry.spark import emit, feeds
    from ferry.spark.tasks import ingest, warmup

    private.load_worker()
    assert emit and feeds and ingest
    count = OperatorDescriptor(
        "count", 0, "aggregate", (("key", "int"),), Window(1000, 1000), (Aggregate("n", "count"),)
    )
    warmup.load([(count, None)])
    if (program := environment.read().program) is not None:
        user_module.ProgramCopy.of(program).install()
    user_module.find_archives(private.files_of_task)


if __name__ == "__main__":
    load()
    gc.collect()
    gc.freeze()  # pages that the collector does not write to stay shared
    private.serve_workers()
