"""The memory that links pin, whether this process may pin it, and remedies when it may not.

Arithmetic and two reads of this process's own limits; it must never pin anything itself.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path

from ferry.contract import rings
from ferry.contract.errors import Exhausted, Refusal

FOOTER_BYTES = 24
PAGE_BYTES, PINNED_BYTES_MAX = rings.PAGE_BYTES, rings.PINNED_BYTES_MAX

_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class RingShape:
    """A circular queue of `slots` slots with `slot_bytes` each; both sides of a link use the same."""

    slots: int = rings.SLOTS
    slot_bytes: int = rings.SLOT_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= rings.SLOTS_MAX:
            raise Refusal(f"a ring of {self.slots} slots: 1 to {rings.SLOTS_MAX} are possible")
        low, high = rings.SLOT_BYTES_MIN, rings.SLOT_BYTES_MAX
        if not low <= self.slot_bytes <= high or self.slot_bytes % 8:
            raise Refusal(f"slots of {self.slot_bytes} bytes: {low} to {high}, and a multiple of 8")

    @property
    def ring_bytes(self) -> int:
        """Bytes of one direction, on one side."""
        return self.slots * self.slot_bytes

    @property
    def payload_bytes(self) -> int:
        """Payload bytes of one slot, without its footer."""
        return self.slot_bytes - FOOTER_BYTES

    @property
    def pinned_bytes(self) -> int:
        """Pinned bytes of one link, on one side: the inbound ring, the outbound staging, and a page for each credit
        word."""
        return rings.link_bytes(self.slots, self.slot_bytes)

    @property
    def send_depth(self) -> int:
        """Work requests under way on one link: data, credit reports and probes."""
        return 4 * self.slots + 32

    @property
    def receives(self) -> int:
        """Receives that stay posted: one per slot, and some for doorbells."""
        return self.slots + 8


class Budget:
    """The memory that all links of one process may pin."""

    def __init__(self, maximum: int = PINNED_BYTES_MAX) -> None:
        self.maximum = maximum
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are pinned now."""
        return self._used

    def take(self, count: int, purpose: str) -> None:
        """Raises Exhausted when the bytes do not fit any more."""
        with self._lock:
            if self._used + count > self.maximum:
                raise Exhausted(
                    f"{purpose} pins {count} bytes, {self._used} of {self.maximum} are in use: "
                    "use fewer or smaller slots, or allow more (transport.rdma.pinned)"
                )
            self._used += count

    def give(self, count: int) -> None:
        """The memory is not pinned any more."""
        with self._lock:
            self._used -= count


class LentMemory:
    """Memory of this process from which its links send without copying, and the bytes sent so far."""

    def __init__(self) -> None:
        self.mappings: tuple[mmap.mmap, ...] = ()
        self._lock = threading.Lock()
        self._sent_bytes = 0

    @property
    def size(self) -> int:
        """Bytes that each link pins for it."""
        return sum(map(len, self.mappings))

    @property
    def sent_bytes(self) -> int:
        """Bytes sent from lent memory by all links so far."""
        return self._sent_bytes

    def sent(self, count: int) -> None:
        """A link sent this many bytes from lent memory."""
        with self._lock:
            self._sent_bytes += count


@dataclass(frozen=True, slots=True)
class Limits:
    """The system's limits on pinned memory for this process."""

    locked_bytes: int | None
    """None: without a limit"""
    may_lock: bool
    """it has the effective capability IPC_LOCK, so the limit does not apply"""
    uid: int

    @classmethod
    def here(cls) -> Limits:
        """The limits of this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        status = Path("/proc/self/status").read_text("ascii")
        effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
        unlimited = soft == resource.RLIM_INFINITY
        return cls(None if unlimited else soft, bool(effective >> _CAP_IPC_LOCK & 1), os.geteuid())


def ring_error(links: int, shape: RingShape, limits: Limits, lend: int = 0) -> str | None:
    """Why this many links cannot be pinned under these limits, with three remedies, the best first; None when they
    can."""
    if limits.may_lock or limits.locked_bytes is None:
        return None
    return rings.pin_error(links, shape.slots, shape.slot_bytes, limits.locked_bytes, limits.uid == 0, lend)
