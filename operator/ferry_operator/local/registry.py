"""The runs that live on this machine, one small file each, so that other terminals find them.

A file holds what gives power over the run (its token), so it is readable by its owner alone. Files of runs whose
supervisor is gone are removed by whoever sees them.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import RunSettings
from ferry.contract.timeline import TIMELINE
from ferry.system import files

RUNS = "runs"
"""Folder of $FERRY_HOME for the directories of runs, and for links to those that jobs name themselves."""

LAST_RECORDS = 20
"""Records at the end of a timeline in which the end of the run is looked for."""


class NoSuchJob(SpecRefused):
    """No live run has this name."""


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """One live run."""

    name: str
    """of the job"""
    run: str
    url: str
    token: str
    pid: int
    born: float
    """When the supervisor's process was created, see `born`: a later process may get its id."""
    directory: str
    started: float
    """seconds since 1970"""
    authority: str | None = None
    """what the certificate of its endpoint is checked against; None: there is none"""

    @staticmethod
    def of_this_process(settings: RunSettings, url: str, token: str, authority: str | None) -> RegisteredRun:
        """The run that this process is about to supervise."""
        here = os.getpid()
        return RegisteredRun(
            settings.job, settings.run, url, token, here, born(here), settings.directory, time.time(), authority
        )


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run that has ended, and whose directory is still there."""

    name: str
    """of the job"""
    run: str
    directory: Path
    ended: float
    """seconds since 1970"""
    how: str
    """such as "crashed: no file orders.json\""""


class Registry:
    """The registry below $FERRY_HOME, and the directories of runs beside it."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "registry"
        self._runs = home / RUNS
        self._locks = home / "locks"

    def add(self, entry: RegisteredRun) -> Path:
        """Make a run known; readers never see half a file."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._directory / f"{entry.run}-{entry.pid}.json"
        with files.replacing(file, private=True) as new:
            new.write_text(json.dumps(asdict(entry)))
        return file

    @contextmanager
    def only(self, name: str) -> Iterator[None]:
        """While this lasts no other run of a job of this name begins. Raises SpecRefused when one runs, with its process."""
        try:
            self._locks.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._locks / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpecRefused(
                f"{self._locks}: cannot be used for the runs of this machine: {error.strerror}; set FERRY_HOME to a folder "
                "of yours"
            ) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                raise _runs(name, pid or "that just begins") from None
            for entry in self.entries():
                if entry.name == name:
                    raise _runs(name, str(entry.pid))
            with suppress(OSError):  # on a full disk
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(lock)  # which gives it back, as the end of the process does

    def entries(self) -> list[RegisteredRun]:
        """Live runs by name; removes what is left of others."""
        found = []
        for file in sorted(self._directory.glob("*.json")):
            try:
                entry = RegisteredRun(**json.loads(file.read_text()))
            except OSError:
                continue
            except (ValueError, TypeError):
                file.unlink(missing_ok=True)
                continue
            if _alive(entry):
                found.append(entry)
            else:
                file.unlink(missing_ok=True)
        return sorted(found, key=lambda e: (e.name, e.started))

    def find(self, name: str) -> RegisteredRun:
        """The live run of a job's name or a run's name; raises NoSuchJob, or SpecRefused when several fit."""
        entries = self.entries()
        fits = [e for e in entries if e.run == name] or [e for e in entries if e.name == name]
        if not fits:
            known = ", ".join(dict.fromkeys(e.name for e in entries)) or "none"
            last = self.kept(name)
            before = "" if last is None else f"; its last run has {last.how} (ferry logs {name}; {last.directory})"
            raise NoSuchJob(f"no job called {name!r} runs here; running: {known}{before}")
        if len(fits) > 1:
            raise SpecRefused(f"{name!r} names several runs; use one of {', '.join(e.run for e in fits)}")
        return fits[0]

    def begun(self, name: str) -> float:
        """When the last run of a job's name has begun, in seconds since 1970; 0: none has, or it is no name of a job."""
        try:
            return (self._locks / f"{name}.lock").stat().st_mtime
        except OSError:
            return 0.0

    def kept(self, name: str) -> KeptRun | None:
        """The last run of a job's name, or of this run's name, that has ended and left its directory."""
        found = [one for file in self._runs.glob("*/run.json") if (one := _kept(file)) and name in (one.name, one.run)]
        return max(found, key=lambda one: one.ended, default=None)


def _runs(name: str, pid: str) -> SpecRefused:
    return SpecRefused(
        f"{name} runs already (process {pid}); stop it first (ferry stop {name}), or give this job another metadata.name"
    )


def _kept(file: Path) -> KeptRun | None:
    """None: it says not whose it is, or the run has not come to its end."""
    try:
        settings = json.loads(file.read_text())
        lines = (file.parent / TIMELINE).read_bytes().splitlines()[-LAST_RECORDS:]
        ends = [one for one in map(json.loads, lines) if one["kind"] == "ended" and "outcome" in one]
        how = ": ".join(filter(None, (ends[-1]["outcome"], ends[-1]["text"]))) if ends else "ended with its supervisor"
        at = ends[-1]["t"] if ends else file.stat().st_mtime
        return KeptRun(settings["job"], settings["run"], file.parent.resolve(), at, how)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def born(pid: int) -> float:
    """When a process was created, in ticks since the machine has started, for clocks step; 0: it is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0.0
    return 0.0 if fields[0] in (b"Z", b"X") else float(fields[19])


def _alive(entry: RegisteredRun) -> bool:
    return born(entry.pid) == entry.born
