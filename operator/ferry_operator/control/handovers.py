"""`spec.handover` as the policy of the planner."""

from __future__ import annotations

from dataclasses import fields, replace

from ferry.contract.limits import WARM_DEADLINE_MS
from ferry_operator.job.models_handover import Handover
from ferry_operator.placement.strategies import HandoverPolicy


def bandwidth_of(handover: Handover) -> int:
    """Bytes a second that copies may use; 0: no bound."""
    return handover.bandwidth.bytes if handover.bandwidth is not None else 0


def policy_of(handover: Handover, before: HandoverPolicy | None = None) -> HandoverPolicy:
    """The policy of a spec; `before` has the values of fields that the spec does not set."""
    values = handover.model_dump(exclude_unset=before is not None)
    if "at_event_time" in values:
        values["at_time"] = values.pop("at_event_time")
    if "deadline" in values:
        milliseconds = round(handover.deadline.seconds * 1000)
        values["deadline_ms"] = 0 if milliseconds == WARM_DEADLINE_MS else milliseconds
    known = {field.name for field in fields(HandoverPolicy)}
    return replace(before or HandoverPolicy(), **{name: value for name, value in values.items() if name in known})
