"""One process per state directory, for the life of the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ferry.contract.errors import Refusal


class DirectoryLock:
    """Exclusive lock on a directory; the system releases it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Take the lock at once, or raise Refusal with the process id of the holder."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            holder = os.read(self._descriptor, 20).decode().strip() or "unknown"
            os.close(self._descriptor)
            raise Refusal(
                f"{directory} is in use by process {holder}: stop it, or give this instance another directory"
            ) from e
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Release the lock before the process ends."""
        os.close(self._descriptor)
