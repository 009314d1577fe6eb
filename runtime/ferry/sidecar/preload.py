"""What the fork server of a sidecar (`forks`) has loaded before it forks instances: they are up in a tenth of the time.

Libraries and compiled kernels take a second of processor otherwise, at every start of every instance. Must never have a
thread, a connection or a device: a fork takes over what a thread has locked, and not the thread.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ferry.contract.errors import Exhausted
from ferry.sidecar import node
from ferry.sidecar.rehearsal import rehearse
from ferry.system.parent import die_with_parent

SERVER = os.getpid()
"""The process that has loaded this: of an instance, the one that it is a fork of."""

die_with_parent(os.getppid())
assert node
with suppress(OSError, Exhausted), TemporaryDirectory() as directory:  # On a full disk the first epochs take longer.
    rehearse(Path(directory) / "rehearsal")
gc.collect()
gc.freeze()  # pages that the collector does not write to stay shared
