"""What the fork server of a sidecar (`forks`) has loaded before it forks instances: they are up in a tenth of the time.

Libraries and compiled kernels take a second of processor otherwise, at every start of every instance. Must never have a
thread, a connection or a device: a fork takes over what a thread has locked, and not the thread.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

SERVER = os.getpid()
"""The process that has loaded this: of an instance, the one that it is a fork of."""


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
    ):  # On a full disk the first epochs take longer.
        rehearse(Path(directory) / "rehearsal")


class _Without:
    """Arrow loads pandas where it finds it, for which no instance asks. A user's function that does gets it all the same."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Raises ModuleNotFoundError."""
        if name == "pandas":
            raise ModuleNotFoundError("no pandas while the server of forks loads", name=name)


gc.disable()  # Of what is loaded nothing is garbage: to look for it takes as long as the kernels.
sys.meta_path.insert(0, without := _Without())
_load()
sys.meta_path.remove(without)
gc.enable()
gc.collect()
gc.freeze()  # pages that the collector does not write to stay shared
