"""Forbids a fork while a device is open: a child's copies of the verbs objects can destroy the parent's objects.

Starting another program (`subprocess`, spawn) stays allowed. It must never know what a device is.
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from ferry.contract.errors import Bug

EXIT_CODE = 70
"""Exit code of a child that was forked behind Python's back: it must not reach its finalisers."""

_lock = threading.Lock()
_open = 0
_hooked = False
_fork, _forkpty = os.fork, os.forkpty


def hold() -> None:
    """A device is open: from now on `os.fork` raises Bug."""
    global _open, _hooked
    with _lock:
        _open += 1
        if not _hooked:
            # An exception in such a hook is printed and ignored, so it cannot refuse; it is the second line of defence.
            os.register_at_fork(after_in_child=_leave)
            _hooked = True
        os.fork = os.forkpty = _refuse


def drop() -> None:
    """A device was closed; after the last one `os.fork` works again."""
    global _open
    with _lock:
        _open -= 1
        if not _open:
            os.fork, os.forkpty = _fork, _forkpty


def _refuse() -> NoReturn:
    raise Bug("fork while an RDMA device is open: the child could destroy this process's connections; start a program")


def _leave() -> None:
    if _open:
        os.write(2, b"forked while an RDMA device is open: this child ends\n")
        os._exit(EXIT_CODE)
