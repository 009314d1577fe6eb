"""The files of a run.

| file | written by | contents |
|---|---|---|
| `run.json` | supervisor | RunSettings; mode 0600, because it holds the secret |
| `programs/HASH/` | supervisor | the first program of the run, and each deployed program |
| `driver.json` | driver | DriverAddress, once its control endpoint listens |
| `timeline.jsonl` | driver, supervisor | one JSON record a line (`contract.timeline`). At
`limits.TIMELINE_BYTES_MAX` it becomes `timeline.1.jsonl`, and an older `timeline.1.jsonl` is removed |
| `checkpoint/` | Spark, driver | offsets and commits of the query; lost ones are written again from the state |
| `workers/K/instances` | supervisor | how many instances the worker should have |
| `workers/K/I/` | instance K.I | its state, log and commit record; `sealed` after a clean end |
| `workers/K/I/syncing` | instance K.I | the instance has ended and waits until its files are on the disk |
| `workers/K/flight-I.sock`, `logs/` | sidecar | the socket for tasks; output of the processes |
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

DRIVER, WORKERS, INSTANCES, SYNCING = "driver.json", "workers", "instances", "syncing"
"""Names in a run's directory, as above."""

LIFE = "_ferry-life"
"""File in a sink's directory: the job that owns it, and the last restore, after which epoch numbers start again."""

DEAD_LETTER = "dead-letter"
"""Folder of a run's directory for malformed records, unless the job names another one."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Address of the driver of a run on this machine."""

    url: str
    """URL of its control endpoint."""
    pid: int
    generation: int

    def dump(self) -> str:
        """The text of `driver.json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> DriverAddress:
        """Inverse of dump. Raises ValueError, TypeError or KeyError for any other text."""
        doc = json.loads(text)
        return DriverAddress(str(doc["url"]), int(doc["pid"]), int(doc["generation"]))


PROGRAMS = "programs"
"""Folder of the copies of programs."""
