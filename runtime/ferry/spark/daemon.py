"""The process of which Spark's Python workers are forks: it has loaded what their tasks need, so that they need not.

Arrow, Numba and the compiled kernels take a second of processor in each worker otherwise, some at every start of a driver.
Must never have a thread: a fork takes over what a thread has locked, and not the thread.
"""

from __future__ import annotations

import gc

from ferry import environment
from ferry.spark import private
from ferry.system import user_module
from ferry.system.parent import children_end_with_it


def load() -> None:
    """Import what tasks import, and have the kernels of an aggregate compiled, or read."""
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


if __name__ == "__main__":
    load()
    gc.collect()
    gc.freeze()  # pages that the collector does not write to stay shared
    private.serve_workers()
