"""Whose a sink's directory is: one run at a time writes to it, and the file `_ferry-life` in it says which.

    open      nobody's, or an older run's that has published nothing and is over: it is this run's from now on
    write     it has to be this run's still
    restore   a job goes on where a run of it, or of the job whose checkpoint it is, was: the directory changes hands

Must never let the epochs of two runs stand side by side: both number theirs from 0 on.
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
    """What the file says."""

    run: str = ""
    """Empty: the directory is older than these words, or nobody has said whose the sink is."""
    job: str = ""
    sink: str = ""
    life: str = ""
    """Of the last restore; empty: there was none."""


def mark_of(directory: Path) -> Mark | None:
    """None: there is none."""
    try:
        return _parsed((directory / LIFE).read_bytes())
    except FileNotFoundError:
        return None


class Ownership:
    """Of one sink's directory, for as long as this process lives."""

    def __init__(self, sink: str) -> None:
        self._mine = Mark(sink=sink)
        self._before = ""
        self._lock = -1

    @property
    def life(self) -> str:
        """Of the job, as it was when the directory was claimed."""
        return self._mine.life

    @property
    def run(self) -> str:
        """That claims."""
        return self._mine.run

    def of(self, job: str, run: str, before: str | None) -> None:
        """Whose claims will be; `before`: the job whose checkpoint this run begins with."""
        self._mine, self._before = replace(self._mine, job=job, run=run), before or job

    def missing(self, directory: Path, committed: int, published: Callable[[], bool]) -> str:
        """What people should know before a directory is claimed that lacks what this run has left there; empty: nothing."""
        there = mark_of(directory)
        if committed < 0 or not self._mine.run or published() or (there is not None and there.run == self._mine.run):
            return ""
        return f"{directory} holds nothing of this run, which has committed epoch {committed}: is it mounted?"

    def claim(self, directory: Path, published: Callable[[], bool]) -> None:
        """Make it this run's, unless it is. Raises SpecRefused when it is another run's.

        A run that has ended without having `published` anything leaves it to the next one: the lock of its driver is gone.
        """
        if not self._mine.run:
            self._mine = replace(self._mine, life=(mark_of(directory) or Mark()).life)
            return
        directory.mkdir(parents=True, exist_ok=True)
        path, made = directory / LIFE, True
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            made, handle = False, os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            alone = _locked(handle)
            if not made:
                there = _parsed(os.pread(handle, 1 << 16, 0))
                if there.run == self._mine.run:
                    self._refuse_other_sink(directory, there)
                    self._mine = there
                    return
                if there.run and (published() or not alone):
                    raise SpecRefused(self._others(directory, there))
                self._mine = replace(self._mine, life=there.life)
            if alone is False:
                raise SpecRefused(f"sink: another run begins to write to {directory}; choose another --output")
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
        """Before each epoch. Raises Final when another run, or a restored driver, has taken the directory over.

        Raises Unreachable when it is not the directory that this process has claimed: what is written to the folder below a
        volume that is not mounted is lost.
        """
        there = mark_of(directory)
        if there is None and self._mine.run:
            if self._lock < 0:
                return self.claim(directory, published)
            raise Unreachable(
                f"{directory} is away: {LIFE} of this run is not there. Mount it, or put it back; to go on without what "
                "was there, stop the job and start it again"
            )
        there = there or Mark()
        if (there.run, there.life) == (self._mine.run, self._mine.life):
            return
        if there.life != self._mine.life and self._mine.job == there.job:
            raise Final(f"sink: {directory}: the job was restored by another driver, and this one writes no more")
        raise Final(self._others(directory, there))

    def refuse_another_run(self, directory: Path) -> None:
        """Raises SpecRefused with the name of the run whose directory it is, if that is known."""
        there = mark_of(directory) or Mark()
        if self._mine.run and there.run not in ("", self._mine.run):
            raise SpecRefused(self._others(directory, there))

    def refuse_others(self, directory: Path) -> None:
        """What a restore may not go on with: the output of a job that is neither this one nor that of its checkpoint."""
        there = mark_of(directory) or Mark()
        if there.job and self._mine.run and there.job not in (self._mine.job, self._before):
            raise SpecRefused(f"{self._others(directory, there)} (it is of job {there.job!r})")

    def begin_life(self, directory: Path) -> None:
        """What a driver of the time before still writes is told from what is written from now on."""
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
            f"sink: {directory} is written by run {there.run}; choose another --output, or delete that directory if nobody "
            "needs it any more"
        )

    def _keep(self, handle: int) -> None:
        """The lock lasts as long as the process, or until the next claim."""
        if self._lock >= 0:
            with suppress(OSError):
                os.close(self._lock)
        self._lock = handle


def local(directory: str) -> Path:
    """The path of a sink's directory. Raises SpecRefused for a URL."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", directory):
        raise SpecRefused(
            f"sink: {directory!r} is a URL; a parquet sink writes to a directory. Mount what it names as a volume that "
            "driver and workers share and give that path, or write to it yourself in ferry.foreach_epoch(...)"
        )
    return Path(directory)


def _parsed(text: bytes) -> Mark:
    """Of a file that is no object: the life that older releases wrote."""
    try:
        return Mark(**known(Mark, json.loads(text)))
    except (ValueError, TypeError, AttributeError):
        return Mark(life=text.decode(errors="replace"))


def _locked(handle: int) -> bool | None:
    """Whether nobody else holds it; None: this file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
