"""Durable checkpoints as they lie at their location, read by this process with its own rights: the job may be gone.

It lists and removes whole checkpoints, and decides nothing. Files that none of them names any more go with the next one
that the job takes.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ferry.contract.errors import Fault, Refusal
from ferry.contract.manifest import Manifest
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry_operator.job.settings import absolute

Record = dict[str, Any]

MEGABYTE = 1e6


def listed(location: str, job: str) -> list[Record]:
    """The checkpoints of a job, the newest first. Raises SpecRefused, Unreachable."""
    shelf = _shelf(location, job)
    return [_record(shelf, one) for one in shelf.manifests()]


def remove(location: str, job: str, number: int) -> int:
    """Take a checkpoint away; how many manifests it had. Raises Refusal, Unreachable."""
    shelf = _shelf(location, job)
    found = [one for one in shelf.manifests() if one.number == number]
    if not found:
        raise Refusal(f"there is no checkpoint {number} at {shelf.location.text}")
    for one in found:
        shelf.remove(one)
    return len(found)


def table(records: list[Record], now: float) -> Table:
    """For people."""
    found = Table("NUMBER", "NAME", "EPOCH", "AGE", "MB", "COMPLETE", box=None, pad_edge=False)
    for one in records:
        age, size = _age(now - one["at"]), f"{one['totalBytes'] / MEGABYTE:,.1f}"
        found.add_row(str(one["number"]), one["name"] or "", str(one["epoch"]), age, size, one["problem"] or "yes")
    return found


def _shelf(location: str, job: str) -> CheckpointCatalog:
    return CheckpointCatalog(Location(absolute(location), job))


def _record(shelf: CheckpointCatalog, one: Manifest) -> Record:
    """`problem`: why nothing can be restored from it."""
    problem = None
    try:
        shelf.check(one)
    except Fault as error:
        problem = str(error)
    return {
        "number": one.number,
        "name": one.name,
        "epoch": one.epoch,
        "at": one.made_at,
        "totalBytes": one.total_bytes,
        "run": one.run,
        "restoredFrom": one.restored_from,
        "complete": problem is None,
        "problem": problem,
    }


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
