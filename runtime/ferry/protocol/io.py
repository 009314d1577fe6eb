"""The event and the effect that both machines share."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.records import record


@record
class Tick:
    """The time, in milliseconds of a monotonic clock."""

    now: int


@record
class Send:
    """Send a message; it may be lost."""

    to: InstanceId
    message: m.Message
