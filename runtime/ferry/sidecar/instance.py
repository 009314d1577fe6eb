"""One life of an instance as a process: forked from its parent's fork server; ends with an `ExitCode`."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from typing import NoReturn

from ferry import environment
from ferry.contract.errors import NO_TRANSPORT
from ferry.contract.exit_codes import ExitCode
from ferry.contract.settings import RunSettings
from ferry.sidecar import REASON
from ferry.sidecar.ending import end_with, end_with_thread, guard_exit, reason_files
from ferry.system import logs
from ferry.system.memory import keep_freed
from ferry.system.parent import call_it, children_end_with_it, die_with_parent

FREED_BYTES_MAX = 256 * 1024 * 1024
"""Freed memory that the process keeps: at most this, and at most an eighth of the memory for state."""


def live(run_json: str, worker: int, index: int, life: bytes) -> NoReturn:
    """Be instance `index` of a worker until SIGTERM; `life` comes from the parent."""
    end_with(lambda: _live(run_json, worker, index, life))


def begin(settings: RunSettings, worker: int) -> None:
    """The first steps of every process of a sidecar."""
    logs.begin(f"%(asctime)s {settings.run} w{worker} %(levelname)s %(message)s")
    sys.setswitchinterval(0.0005)
    faulthandler.enable()  # a crash in native code of the user's is in the log
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes the stack of every thread to the log


def _live(run_json: str, worker: int, index: int, life: bytes) -> int:
    settings = RunSettings.read(run_json)
    begin(settings, worker)
    keep_freed(min(FREED_BYTES_MAX, settings.memory_bytes // 8))
    reason_files.append(settings.worker_path(worker) / str(index) / REASON)
    from ferry.sidecar.preload import SERVER

    die_with_parent(SERVER)
    children_end_with_it()
    guard_exit()
    call_it(f"ferry {worker}.{index}")
    threading.excepthook = end_with_thread
    from ferry.channel.rdma.verbs import DeviceUnusable
    from ferry.sidecar.node import Node

    try:
        node = Node(settings, worker, index, life, environment.read())
    except DeviceUnusable as error:
        print(f"{NO_TRANSPORT}{error}", file=sys.stderr)
        return ExitCode.NO_TRANSPORT
    return node.run()
