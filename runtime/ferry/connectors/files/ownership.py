"""The owner of a sink's directory: one run at a time writes to it. The file `_ferry-life` in the directory names the run.

    open      the run claims a directory without an owner, or of an ended run without published epochs
    write     the directory must still belong to this run
    restore   the run takes over the directory of an earlier run of its job, or of the job of its checkpoint

Must never mix the epochs of two runs: both number their epochs from 0 on.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ferry.contract.errors import Final, SpecRefused, Unreachable
from ferry.contract.lenient import known
from ferry.contract.run_directory import LIFE as LIFE
from ferry.system import files


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of the file: the owner of the directory."""

    run: str = ""
    """Empty for a directory of an older release, and for a sink without a run."""
    job: str = ""
    sink: str = ""
    life: str = ""
    """Identifier of the last restore. Empty without a restore."""


def mark_of(directory: Path) -> Mark | None:
    """The mark of a directory, or None."""
    try:
        return _parsed((directory / LIFE).read_bytes())
    except FileNotFoundError:
        return None


class Ownership:
    """The ownership of one sink's directory during the life of this process."""

    def __init__(self, sink: str) -> None:
        self._mine = Mark(sink=sink)
        self._before = ""
        self._lock = -1

    @property
    def life(self) -> str:
        """The life of the job when the directory was claimed."""
        return self._mine.life

    @property
    def run(self) -> str:
        """The run that claims the directory."""
        return self._mine.run

    def of(self, job: str, run: str, before: str | None) -> None:
        """Set job and run of the claims. `before`: the job of the checkpoint with which this run begins."""
        self._mine, self._before = replace(self._mine, job=job, run=run), before or job

    def missing(self, directory: Path, committed: int, published: Callable[[], bool]) -> str:
        """A notice if the directory lacks the committed epochs of this run. Empty otherwise."""
        there = mark_of(directory)
        if committed < 0 or not self._mine.run or published() or (there is not None and there.run == self._mine.run):
            return ""
        return f"{directory} has no files of this run, which has committed epoch {committed}: is it mounted?"

    def claim(self, directory: Path, published: Callable[[], bool]) -> None:
        """Claim the directory for this run. Raises SpecRefused if another run owns it.

        The directory of a run that has ended without `published` epochs is free: its driver's lock is released.
        """
        if not self._mine.run:
            self._mine = replace(self._mine, life=(mark_of(directory) or Mark()).life)
            return
        directory.mkdir(parents=True, exist_ok=True)
        path, created = directory / LIFE, True
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            created, handle = False, os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            alone = _locked(handle)
            if not created:
                there = _parsed(os.pread(handle, 1 << 16, 0))
                if there.run == self._mine.run:
                    self._refuse_other_sink(directory, there)
                    self._mine = there
                    return
                if there.run and (published() or not alone):
                    raise SpecRefused(self._others(directory, there))
                self._mine = replace(self._mine, life=there.life)
            if alone is False:
                raise SpecRefused(f"sink: another run is claiming {directory}; choose another --output")
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(self._mine)).encode(), 0)
            os.fsync(handle)
            files.sync(directory)
        except BaseException as error:
            os.close(handle)
            handle = -1
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)
            raise
        finally:
            self._keep(handle)

    def require(self, directory: Path, published: Callable[[], bool]) -> None:
        """Check the ownership before each epoch. Raises Final if another run or a restored driver has taken over.

        Raises Unreachable if this is not the directory that this process has claimed: files written to the mount point of a
        missing volume would be lost.
        """
        there = mark_of(directory)
        if there is None and self._mine.run:
            if self._lock < 0:
                return self.claim(directory, published)
            raise Unreachable(
                f"{directory} is away: {LIFE} of this run is missing. Mount it, or put it back; to go on without its files, "
                "stop the job and start it again"
            )
        there = there or Mark()
        if (there.run, there.life) == (self._mine.run, self._mine.life):
            return
        if there.life != self._mine.life and self._mine.job == there.job:
            raise Final(f"sink: {directory}: another driver has restored the job; this driver stops writing")
        raise Final(self._others(directory, there))

    def refuse_another_run(self, directory: Path) -> None:
        """Raise SpecRefused with the name of the owner, if another run owns the directory."""
        there = mark_of(directory) or Mark()
        if self._mine.run and there.run not in ("", self._mine.run):
            raise SpecRefused(self._others(directory, there))

    def refuse_others(self, directory: Path) -> None:
        """Raise SpecRefused for the output of a job that is neither this job nor the job of its checkpoint."""
        there = mark_of(directory) or Mark()
        if there.job and self._mine.run and there.job not in (self._mine.job, self._before):
            raise SpecRefused(f"{self._others(directory, there)} (of job {there.job!r})")

    def begin_life(self, directory: Path) -> None:
        """Begin a new life, which distinguishes new epochs from epochs that an earlier driver still writes."""
        directory.mkdir(parents=True, exist_ok=True)
        self._mine = replace(self._mine, life=uuid.uuid4().hex)
        with files.replacing(directory / LIFE, durable=True) as new:
            new.write_text(json.dumps(asdict(self._mine)))

    def _refuse_other_sink(self, directory: Path, there: Mark) -> None:
        if there.sink != self._mine.sink:
            raise SpecRefused(
                f"sink: {directory} is written by parquet({there.sink!r}) of this run; give parquet({self._mine.sink!r}) a "
                "directory of its own"
            )

    def _others(self, directory: Path, there: Mark) -> str:
        return (
            f"sink: {directory} is written by run {there.run}; choose another --output, or delete that directory if it is "
            "no longer needed"
        )

    def _keep(self, handle: int) -> None:
        """Hold the lock until the process ends or the next claim."""
        if self._lock >= 0:
            with suppress(OSError):
                os.close(self._lock)
        self._lock = handle


def local(directory: str) -> Path:
    """The path of a sink's directory. Raises SpecRefused for a URL."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", directory):
        raise SpecRefused(
            f"sink: {directory!r} is a URL; a parquet sink writes to a directory. Mount the store as a volume that driver "
            "and workers share and give that path, or write to it yourself in ferry.foreach_epoch(...)"
        )
    return Path(directory)


def _parsed(text: bytes) -> Mark:
    """The mark in a file. A text that is not a JSON object is a life, as older releases wrote it."""
    try:
        return Mark(**known(Mark, json.loads(text)))
    except (ValueError, TypeError, AttributeError):
        return Mark(life=text.decode(errors="replace"))


def _locked(handle: int) -> bool | None:
    """Whether this process got the lock. None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
