"""Statuses of drivers for tests: a field is named without the group that has it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ferry.contract.status import LoadStatus, MovesStatus, ProgressStatus, Status

GROUPS = {"progress": ProgressStatus, "load": LoadStatus, "moves": MovesStatus}


def with_fields(status: Status, **changes: Any) -> Status:
    """The status with other values of these fields, each in its group."""
    for group, kind in GROUPS.items():
        if own := {f.name: changes.pop(f.name) for f in fields(kind) if f.name in changes}:
            changes[group] = replace(getattr(status, group), **own)
    return replace(status, **changes)


def status_of(groups: list[tuple[list[str], list[str]]], alive: list[str], **changes: Any) -> Status:
    """Of a job that is at rest: plan 1 is in force and carried out."""
    rests = Status("counts", 1, "idle", 5, (1, 1), groups, True, 1, alive, journal_up=True, finished=False)
    loads = {"vnodes": [(1.0, 1.0)] * len(groups), "epoch_seconds": 0.1, "watermark": 0}
    return with_fields(rests, **{**loads, **changes})
