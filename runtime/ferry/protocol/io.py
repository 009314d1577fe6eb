"""The event and the effect that both machines have."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.records import record


@record
class Tick:
    """Now, in milliseconds of a clock that never goes back."""

    now: int


@record
class Send:
    """Send it; whether it arrives is nobody's promise."""

    to: InstanceId
    message: m.Message
