"""Programs of a job in the status of its driver."""

from __future__ import annotations

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.programs import ProgramVersion
from ferry.contract.status import ProgramStatus

REFUSAL_MAX = 4000
"""Characters of a refusal in the status."""


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
        since=record.since_in(now),
        identity=record.identity,
        hash=record.hash,
        refused=record.refused[:REFUSAL_MAX],
        attempt=record.attempt,
        again=max(again, default=None),
    )
