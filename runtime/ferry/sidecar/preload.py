"""The modules that a sidecar's fork server (`forks`) loads before it forks instances: they then start in a tenth of the
time.

Otherwise libraries and compiled kernels take a second of processor time, at every start of every instance. Must never
have a thread, a connection or a device: a fork inherits a thread's locks, but not the thread.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

SERVER = os.getpid()
"""The process that has loaded this module: for an instance, its fork server."""


def _load() -> None:
    from ferry.contract.errors import Exhausted
    from ferry.sidecar import node
    from ferry.sidecar.rehearsal import rehearse
    from ferry.system.parent import die_with_parent

    die_with_parent(os.getppid())
    assert node
    with (
        suppress(OSError, Exhausted),
        TemporaryDirectory() as directory,
    ):  # A full disk: the first epochs take longer.
        rehearse(Path(directory) / "rehearsal")


class _Without:
    """Arrow loads pandas if it is installed; instances do not need it. A user's function can still import it."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Raises ModuleNotFoundError."""
        if name == "pandas":
            raise ModuleNotFoundError("no pandas while the fork server loads", name=name)


gc.disable()  # Imports leave no garbage: a search for it takes as long as the kernels.
sys.meta_path.insert(0, without := _Without())
_load()
sys.meta_path.remove(without)
gc.enable()
gc.collect()
gc.freeze()  # keep pages shared: the collector does not write to them
