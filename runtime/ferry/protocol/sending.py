"""The one effect that coordinator and instances share: a message for somebody."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.records import record


@record
class Send:
    """Send it; whether it arrives is nobody's promise."""

    to: InstanceId
    message: m.Message
