"""Messages that no row depends on: signs of life, reports, and requests to give way."""

from __future__ import annotations

from ferry.contract.names import InstanceId
from ferry.contract.records import record


@record
class Pulse:
    """Sent at every heartbeat, also while the instance computes: a silent instance is at a standstill."""

    instance: InstanceId
    busy_ms: int
    """Milliseconds for which its loop has worked without a break; 0 when short."""
    code: str = ""
    """The user's code that runs now: operator and epoch; empty: none."""
    code_ms: int = 0
    """Milliseconds for which it has run."""


@record
class Begins:
    """An epoch begins: copying gives way for a moment. Correctness does not depend on it."""

    epoch: int
    bandwidth: int = -1
    """Bytes a second that copies may use from now on; 0: unlimited; -1: not set."""
    hears_code: bool = False
    """The driver accepts a Pulse with the user's code; an older driver closes a connection that carries one."""


@record
class Report:
    """The state of an instance, once a second: for people, the planner, and timers of the clock. No row depends on
    it."""

    instance: InstanceId
    life: str
    vnodes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    """Per virtual node of `vnodes`."""
    computed: tuple[int, ...]
    """Rows computed as leader for each of `vnodes`, since this life began."""
    rdma: int = 0
    tcp: int = 0
    """Links to other instances, by transport."""
    reason: str = ""
    """Why some links are not RDMA although a device was asked for."""
    timer: int | None = None
    """When its first timer of the clock is due, in milliseconds since 1970; None: it has no timer."""
    busy_ms: int = 0
    """Milliseconds for which its loop has worked instead of waiting for messages, since this life began."""
    received: tuple[int, ...] = ()
    """Records received as leader for each of `vnodes`, since this life began; empty: an older peer."""
    boundaries: tuple[tuple[int, InstanceId, int | None], ...] = ()
    """Virtual nodes that it hands over at the boundary of a window: to which instance, and from which event time on the
    target computes windows, in milliseconds; None: depends on coming records."""
    damage: str = ""
    """The damaged file because of which this life began empty; empty: no file was damaged."""
    small_pages: str = ""
    """Why rings of its links are in small pages although huge ones were asked for."""


@record
class Leaving:
    """This instance is about to end; it stays for the epochs that may count on its help."""

    instance: InstanceId
