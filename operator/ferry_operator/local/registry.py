"""The live runs of this machine, one small file per run, so that other terminals find them.

A file holds the token of the run, so only its owner may read it. A reader removes the file of a run whose supervisor is
gone.
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
"""Folder of $FERRY_HOME for the directories of runs, and for links to directories that job files name."""

LAST_RECORDS = 20
"""Records at the end of a timeline that are searched for the end of the run."""


class NoSuchJob(SpecRefused):
    """No live run has this name."""


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """One live run."""

    name: str
    """name of the job"""
    run: str
    url: str
    token: str
    pid: int
    born: float
    """creation time of the supervisor's process (`born`), because a later process may get its id"""
    directory: str
    started: float
    """seconds since 1970"""
    authority: str | None = None
    """certificate authority of its endpoint; None: the endpoint has no TLS"""

    @staticmethod
    def of_this_process(settings: RunSettings, url: str, token: str, authority: str | None) -> RegisteredRun:
        """The entry of a run that this process supervises."""
        here = os.getpid()
        return RegisteredRun(
            settings.job, settings.run, url, token, here, born(here), settings.directory, time.time(), authority
        )


@dataclass(frozen=True, slots=True)
class KeptRun:
    """An ended run whose directory still exists."""

    name: str
    """name of the job"""
    run: str
    directory: Path
    ended: float
    """seconds since 1970"""
    how: str
    """outcome and reason, such as "crashed: no file orders.json\""""


class Registry:
    """The registry in $FERRY_HOME, and the directories of runs next to it."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "registry"
        self._runs = home / RUNS
        self._locks = home / "locks"

    def add(self, entry: RegisteredRun) -> Path:
        """Add the file of a run; the file is replaced atomically."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._directory / f"{entry.run}-{entry.pid}.json"
        with files.replacing(file, private=True) as new:
            new.write_text(json.dumps(asdict(entry)))
        return file

    @contextmanager
    def only(self, name: str) -> Iterator[None]:
        """A context in which no other run of a job of this name can begin. Raises SpecRefused if a run exists."""
        try:
            self._locks.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._locks / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpecRefused(
                f"{self._locks}: cannot be used for the runs of this machine: {error.strerror}; set FERRY_HOME to a "
                "folder of yours"
            ) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                raise _runs(name, pid or "that is starting") from None
            for entry in self.entries():
                if entry.name == name:
                    raise _runs(name, str(entry.pid))
            with suppress(OSError):  # on a full disk
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(lock)  # releases the lock; the end of the process would, too

    def entries(self) -> list[RegisteredRun]:
        """Live runs, sorted by name; removes the files of dead runs."""
        live = []
        for file in sorted(self._directory.glob("*.json")):
            try:
                entry = RegisteredRun(**json.loads(file.read_text()))
            except OSError:
                continue
            except (ValueError, TypeError):
                file.unlink(missing_ok=True)
                continue
            if _alive(entry):
                live.append(entry)
            else:
                file.unlink(missing_ok=True)
        return sorted(live, key=lambda e: (e.name, e.started))

    def find(self, name: str) -> RegisteredRun:
        """The live run with this job name or run name. Raises NoSuchJob, or SpecRefused if several runs match."""
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
        """Start time of the last run of a job, in seconds since 1970; 0: no run has begun, or no job has this name."""
        try:
            return (self._locks / f"{name}.lock").stat().st_mtime
        except OSError:
            return 0.0

    def kept(self, name: str) -> KeptRun | None:
        """The last ended run with this job name or run name whose directory still exists."""
        runs = [run for file in self._runs.glob("*/run.json") if (run := _kept(file)) and name in (run.name, run.run)]
        return max(runs, key=lambda run: run.ended, default=None)


def _runs(name: str, pid: str) -> SpecRefused:
    return SpecRefused(
        f"{name} runs already (process {pid}); stop it first (ferry stop {name}), or give this job another metadata.name"
    )


def _kept(file: Path) -> KeptRun | None:
    """The ended run of a directory; None if its files cannot be read."""
    try:
        settings = json.loads(file.read_text())
        how, at = _ended(file.parent) or ("ended with its supervisor", file.stat().st_mtime)
        return KeptRun(settings["job"], settings["run"], file.parent.resolve(), at, how)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def outcome(directory: Path) -> str:
    """Outcome and reason of the run in a directory, as in `KeptRun`; empty: it has not ended. A stopped run leaves none."""
    if not directory.is_dir():
        return "ended"
    try:
        return (_ended(directory) or ("",))[0]
    except (OSError, ValueError, TypeError, KeyError):
        return ""


def _ended(directory: Path) -> tuple[str, float] | None:
    records = [*map(json.loads, (directory / TIMELINE).read_bytes().splitlines()[-LAST_RECORDS:])]
    ends = [i for i, record in enumerate(records) if record["kind"] == "ended" and "outcome" in record]
    if not ends or any(record["kind"] == "action" for record in records[ends[-1] :]):  # It was begun again.
        return None
    last = records[ends[-1]]
    return ": ".join(filter(None, (last["outcome"], last["text"]))), last["t"]


def born(pid: int) -> float:
    """Creation time of a process in ticks since boot, which no clock change affects; 0: the process is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0.0
    return 0.0 if fields[0] in (b"Z", b"X") else float(fields[19])


def _alive(entry: RegisteredRun) -> bool:
    return born(entry.pid) == entry.born
