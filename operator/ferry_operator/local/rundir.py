"""The directory of a run: created or continued, locked while the run lives, removed at its end.

It starts no process. A run continues in a directory that the job file names (`spec.state.directory`) if an earlier run of
the job has used it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from ferry.contract.errors import SpecRefused
from ferry.contract.run_directory import PROGRAMS
from ferry.contract.settings import RunSettings
from ferry.system import files
from ferry_operator.job.models import StreamJob
from ferry_operator.local.registry import RUNS


class RunDirectory:
    """One run's directory, locked until `close`."""

    def __init__(self, job: StreamJob, home: Path) -> None:
        """Create or open the directory, and lock it. Raises SpecRefused if another run or another job uses it."""
        self.named = job.spec.state.directory is not None
        name = job.metadata.name
        run = f"{name}-{secrets.token_hex(3)}"
        self.run = run
        self._runs = home / RUNS
        self.path = Path(job.spec.state.directory or self._runs / run).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpecRefused(f"{self.path}: cannot be used as the directory of a run: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            os.close(self._lock)
            raise SpecRefused(
                f"{self.path}: another run uses this directory (process {pid or 'unknown'}); stop it first (ferry ps)"
            ) from None
        with suppress(OSError):  # on a full disk
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        try:
            before = self._before()
            self.resumed = before is not None
            self.run = before.run if before is not None else run
            if before is not None:
                _same_job(before, job, self.path)
                _no_state(job, self.path)
        except SpecRefused:
            self.close(remove=False)
            raise

    def _before(self) -> RunSettings | None:
        """Settings of the earlier run in this directory; None: there was none."""
        file = self.path / "run.json"
        if not file.exists():
            return None
        try:
            return RunSettings.read(file)
        except (OSError, ValueError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise SpecRefused(f"{file}: is not the file of a run that can be continued: {error}") from None

    def close(self, remove: bool) -> None:
        """Release the lock. `remove`: delete the directory; else sync it to the disk if a run may continue in it."""
        try:
            if remove:
                shutil.rmtree(self.path, ignore_errors=True)
            elif self.named:
                self._link()
                self._sync()
        finally:
            os.close(self._lock)

    def _link(self) -> None:
        """Link a directory that the job file names into the folder of all runs."""
        with suppress(OSError):
            self._runs.mkdir(parents=True, exist_ok=True, mode=0o700)
            link = self._runs / self.run
            link.unlink(missing_ok=True)
            link.symlink_to(self.path)

    def _sync(self) -> None:
        """Sync the files that the next run needs; instances sync their own files."""
        for path in (self.path / name for name in ("run.json", "redis", "checkpoint", PROGRAMS)):
            if path.is_dir():
                files.sync_below(path)
            elif path.exists():
                files.sync(path)
        for folder in (self.path, self.path.parent):
            if os.access(folder, os.R_OK):
                files.sync(folder)


def _same_job(before: RunSettings, job: StreamJob, path: Path) -> None:
    if before.job != job.metadata.name:
        raise SpecRefused(f"{path}: holds the state of job {before.job!r}, not of {job.metadata.name!r}")
    if before.virtual_nodes != job.spec.state.virtual_nodes:
        raise SpecRefused(
            f"{path}: holds {before.virtual_nodes} virtual nodes; spec.state.virtualNodes cannot change to "
            f"{job.spec.state.virtual_nodes}: create a new job, or name another directory"
        )


def _no_state(job: StreamJob, path: Path) -> None:
    """Raise SpecRefused for a restore into a directory with state: either the state or the checkpoint would be lost."""
    if job.spec.restore_from is not None and any((path / "checkpoint" / "commits").glob("[0-9]*")):
        raise SpecRefused(
            f"spec.restoreFrom: {path} has state already. Remove restoreFrom to continue with this state; to restore "
            f"{job.spec.restore_from!r} name another state.directory"
        )
