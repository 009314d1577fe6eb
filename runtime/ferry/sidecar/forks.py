"""The fork server of instances: it has loaded their libraries and kernels, so that an instance starts at once.

Must be imported before any slow import: the server loads at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import forkserver, get_context
from multiprocessing.process import BaseProcess

from ferry import environment

_CONTEXT = get_context("forkserver")

PRELOADED = "ferry.sidecar.preload"


def begin() -> None:
    """Start the server, which ends with this process; to be called by the main thread."""
    environment.give(environment.NO_THREADS)
    _CONTEXT.set_forkserver_preload([PRELOADED])
    forkserver.ensure_running()


def when_loaded(tell: Callable[[], None]) -> None:
    """Call `tell` once a fork is fast: after a second, or a minute when kernels are not compiled yet."""

    def wait() -> None:
        first = _CONTEXT.Process(target=bool)
        first.start()
        first.join()
        tell()

    threading.Thread(target=wait, name="preload", daemon=True).start()


def fork(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """A process that will run this when it is started."""
    return _CONTEXT.Process(target=target, args=arguments)
