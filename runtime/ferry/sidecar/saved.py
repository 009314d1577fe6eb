"""The commit record of an instance as a document: what it is, should it crash now. Values only; files are the store's."""

from __future__ import annotations

from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.results import StepResult
from ferry.protocol.instance import machine as core


def saved_to_wire(saved: core.Saved) -> dict[str, Any]:
    """Plain lists and maps."""
    doc = dict(vars(saved))
    doc["committed"] = list(saved.committed) if saved.committed else None
    doc["committing"] = m.encode(saved.committing) if saved.committing else None
    return doc


def saved_from_wire(doc: dict[str, Any]) -> core.Saved:
    """Inverse of saved_to_wire."""
    commit_id = doc["committed"]
    committing = m.decode(m.CODES[m.Commit], doc["committing"]) if doc["committing"] else None
    return core.Saved(
        **{
            **doc,
            "committed": CommitId(Step(*commit_id[0]), Attempt(*commit_id[1])) if commit_id else None,
            "results": tuple(StepResult(Attempt(*attempt), *counts) for attempt, *counts in doc["results"]),
            "holds": tuple(doc["holds"]),
            "learned": tuple(doc.get("learned", ())),
            "committing": committing,
        }
    )
