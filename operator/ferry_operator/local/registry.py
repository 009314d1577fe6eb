"""The runs that live on this machine, one small file each, so that other terminals find them.

A file holds what gives power over the run (its token), so it is readable by its owner alone. Files of runs whose
supervisor is gone are removed by whoever sees them.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ferry.contract.documents import RunSettings
from ferry.contract.errors import SpecRefused
from ferry.system import files


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
    """when the supervisor's process was created: a later process may get its id"""
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


class Registry:
    """The registry below $FERRY_HOME."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "registry"

    def add(self, entry: RegisteredRun) -> Path:
        """Make a run known; readers never see half a file."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._directory / f"{entry.run}-{entry.pid}.json"
        with files.replacing(file, private=True) as new:
            new.write_text(json.dumps(asdict(entry)))
        return file

    def entries(self) -> list[RegisteredRun]:
        """Live runs by name; removes what is left of others."""
        found = []
        for file in sorted(self._directory.glob("*.json")):
            try:
                entry = RegisteredRun(**json.loads(file.read_text()))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError):
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
            raise NoSuchJob(f"no job called {name!r} runs here; running: {known}")
        if len(fits) > 1:
            raise SpecRefused(f"{name!r} names several runs; use one of {', '.join(e.run for e in fits)}")
        return fits[0]


def born(pid: int) -> float:
    """When a process was created, seconds since 1970."""
    return psutil.Process(pid).create_time()


def _alive(entry: RegisteredRun) -> bool:
    try:
        process = psutil.Process(entry.pid)
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - entry.born) < 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
