"""Durable checkpoints at their location. This process reads them with its own rights, so the job need not exist.

It lists and removes whole checkpoints, and decides nothing. The next checkpoint of the job deletes the unreferenced files.
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
    catalog = _catalog(location, job)
    return [_record(catalog, manifest) for manifest in catalog.manifests()]


def remove(location: str, job: str, number: int) -> int:
    """Delete a checkpoint. Returns the number of its manifests. Raises Refusal, Unreachable."""
    catalog = _catalog(location, job)
    manifests = [manifest for manifest in catalog.manifests() if manifest.number == number]
    if not manifests:
        raise Refusal(f"there is no checkpoint {number} at {catalog.location.text}")
    for manifest in manifests:
        catalog.remove(manifest)
    return len(manifests)


def table(records: list[Record], now: float) -> Table:
    """The checkpoints as a table for users."""
    rows = Table("NUMBER", "NAME", "EPOCH", "AGE", "MB", "COMPLETE", box=None, pad_edge=False)
    for record in records:
        number, name, epoch = str(record["number"]), record["name"] or "", str(record["epoch"])
        age, size = _age(now - record["at"]), f"{record['totalBytes'] / MEGABYTE:,.1f}"
        rows.add_row(number, name, epoch, age, size, record["problem"] or "yes")
    return rows


def _catalog(location: str, job: str) -> CheckpointCatalog:
    return CheckpointCatalog(Location(absolute(location), job))


def _record(catalog: CheckpointCatalog, manifest: Manifest) -> Record:
    """A checkpoint for programs. `problem`: why it cannot be restored."""
    problem = None
    try:
        catalog.check(manifest)
    except Fault as error:
        problem = str(error)
    return {
        "number": manifest.number,
        "name": manifest.name,
        "epoch": manifest.epoch,
        "at": manifest.made_at,
        "totalBytes": manifest.total_bytes,
        "run": manifest.run,
        "restoredFrom": manifest.restored_from,
        "complete": problem is None,
        "problem": problem,
    }


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
