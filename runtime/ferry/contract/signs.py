"""Messages that no row depends on: signs of life, reports, and what an instance is to give way to."""

from __future__ import annotations

from ferry.contract.names import InstanceId
from ferry.contract.records import record


@record
class Pulse:
    """Said at every heartbeat, also while the instance computes: who says nothing stands still."""

    instance: InstanceId
    busy_ms: int
    """For so long its loop has had work without a break; 0 when that is not worth mentioning."""
    code: str = ""
    """The user's code that runs now: operator and epoch; empty: none."""
    code_ms: int = 0
    """For how long it has run."""


@record
class Begins:
    """An epoch begins: whoever copies state gives way for a moment. Nothing that is right depends on it."""

    epoch: int
    bandwidth: int = -1
    """Bytes a second that copies may use from now on; 0: no bound; -1: nobody has said anything."""
    hears_code: bool = False
    """The driver reads what a Pulse says of the user's code; an older one ends a connection over which that comes."""


@record
class Report:
    """What an instance holds, once a second: for people, the planner, and timers of the clock. No row depends on it."""

    instance: InstanceId
    life: str
    vnodes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    """Per one of `vnodes`."""
    computed: tuple[int, ...]
    """Rows computed for each of `vnodes` as their leader, since this life began."""
    rdma: int = 0
    tcp: int = 0
    """Links to other instances, by what carries them."""
    reason: str = ""
    """Why some are not RDMA although a device was asked for."""
    timer: int | None = None
    """When its first timer of the clock is due, in milliseconds since 1970; None: it has none."""
    busy_ms: int = 0
    """For how long its loop has worked, and not waited for messages, since this life began."""
    received: tuple[int, ...] = ()
    """Records that came for each of `vnodes` as their leader, since this life began; empty: an older peer."""
    boundaries: tuple[tuple[int, InstanceId, int | None], ...] = ()
    """Virtual nodes that it hands over at the boundary of a window, to whom, and from which event time on windows start
    there, in milliseconds; None: that depends on what comes."""
    damage: str = ""
    """Which file was not what had been written, so that this life began with nothing; empty: none."""


@record
class Leaving:
    """This instance was told to end, and stays for the epochs that may count on its help."""

    instance: InstanceId
