"""Programs of a job as commands and the status show them."""

from __future__ import annotations

from typing import Any

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.programs import ProgramVersion
from ferry.contract.status import ProgramStatus

REFUSAL_MAX = 4000
"""Characters of a refusal in the status."""


def shown(record: ProgramRecord, now: ProgramVersion, state: str) -> dict[str, Any]:
    """A program in the list of all programs. `now`: the program in force."""
    return {
        "number": record.number,
        "state": state,
        "since": _since(record, now),
        "file": record.file,
        "module": record.module,
        "folder": record.folder,
        "arguments": record.arguments,
        "operators": [descriptor.name for descriptor in record.descriptors],
        "deployedAt": record.deployed_at,
        "refused": record.refused,
    }


def brief(record: ProgramRecord, now: ProgramVersion, state: str, catalogue: Catalogue) -> ProgramStatus:
    """A program in the status of the driver."""
    again = [
        earlier.number
        for earlier in catalogue.programs
        if earlier.number < (record.settles or record.number)
        and earlier.since is not None
        and earlier.settles is None
        and earlier.identity == record.identity
    ]
    return ProgramStatus(
        number=record.number,
        state=state,
        since=_since(record, now),
        identity=record.identity,
        hash=record.hash,
        refused=record.refused[:REFUSAL_MAX],
        attempt=record.attempt,
        again=max(again, default=None),
    )


def _since(record: ProgramRecord, now: ProgramVersion) -> int | None:
    return now.since if record.number == now.number else record.since
