"""How a job wants its handovers, for the planner."""

from __future__ import annotations

from dataclasses import fields, replace

from ferry.contract.limits import WARM_DEADLINE_MS
from ferry_operator.job.models_handover import Handover
from ferry_operator.placement.strategies import HandoverPolicy


def bandwidth_of(handover: Handover) -> int:
    """Bytes a second that copies may use; 0: no bound."""
    return handover.bandwidth.bytes if handover.bandwidth is not None else 0


def policy_of(handover: Handover, before: HandoverPolicy | None = None) -> HandoverPolicy:
    """How a job wants its handovers; `before`: what holds where nothing is said."""
    given = handover.model_dump(exclude_unset=before is not None)
    if "at_event_time" in given:
        given["at_time"] = given.pop("at_event_time")
    if "deadline" in given:
        milliseconds = round(handover.deadline.seconds * 1000)
        given["deadline_ms"] = 0 if milliseconds == WARM_DEADLINE_MS else milliseconds
    known = {one.name for one in fields(HandoverPolicy)}
    return replace(before or HandoverPolicy(), **{name: value for name, value in given.items() if name in known})
