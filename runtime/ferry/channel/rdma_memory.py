"""How much memory rings pin, whether this process may pin it, and what to change when it may not.

Arithmetic and two reads of this process's own limits; it must never pin anything itself.
"""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path

from ferry.contract.errors import Exhausted, Refusal

FOOTER_BYTES = 24
PAGE_BYTES = 4096

PINNED_BYTES_MAX = 6 << 20
"""Pinned by one process by default: below the 8 MiB that a container gets without asking, so no privilege is needed."""

SLOTS_MAX = 128
"""Slots of one ring: below 256, so that a torn read of the credit word is never taken for a possible value."""

SLOT_BYTES_MIN, SLOT_BYTES_MAX = 256, 1 << 20

_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class Shape:
    """A circular queue of `slots` slots with `slot_bytes` each; both sides of a link use the same."""

    slots: int = 8
    slot_bytes: int = 64 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= SLOTS_MAX:
            raise Refusal(f"a ring of {self.slots} slots: 1 to {SLOTS_MAX} are possible")
        if not SLOT_BYTES_MIN <= self.slot_bytes <= SLOT_BYTES_MAX or self.slot_bytes % 8:
            raise Refusal(
                f"slots of {self.slot_bytes} bytes: {SLOT_BYTES_MIN} to {SLOT_BYTES_MAX}, and a multiple of 8"
            )

    @property
    def ring_bytes(self) -> int:
        """Of one direction, on one side."""
        return self.slots * self.slot_bytes

    @property
    def payload_bytes(self) -> int:
        """Of one slot, without its footer."""
        return self.slot_bytes - FOOTER_BYTES

    @property
    def pinned_bytes(self) -> int:
        """Of one link, on one side: the inbound ring, the outbound staging, and a page for each credit word."""
        return 2 * (-(-self.ring_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES)

    @property
    def send_depth(self) -> int:
        """Work requests under way on one link: data, credit reports and probes."""
        return 4 * self.slots + 32

    @property
    def receives(self) -> int:
        """Receives that stay posted: one per slot, and some for doorbells."""
        return self.slots + 8


class Budget:
    """What the links of one process may pin together."""

    def __init__(self, maximum: int = PINNED_BYTES_MAX) -> None:
        self.maximum = maximum
        self._lock = threading.Lock()
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes that are pinned now."""
        return self._used

    def take(self, count: int, what: str) -> None:
        """Raises Exhausted when it does not fit any more."""
        with self._lock:
            if self._used + count > self.maximum:
                raise Exhausted(
                    f"{what} pins {count} bytes, {self._used} of {self.maximum} are in use: "
                    "use fewer or smaller slots, or allow more (PINNED_BYTES_MAX)"
                )
            self._used += count

    def give(self, count: int) -> None:
        """The memory is not pinned any more."""
        with self._lock:
            self._used -= count


@dataclass(frozen=True, slots=True)
class Limits:
    """What the system allows this process to pin."""

    locked_bytes: int | None
    """None: without a limit"""
    may_lock: bool
    """it has the capability IPC_LOCK in effect, so the limit does not hold"""
    uid: int

    @classmethod
    def here(cls) -> Limits:
        """Of this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        status = Path("/proc/self/status").read_text("ascii")
        effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
        unlimited = soft == resource.RLIM_INFINITY
        return cls(None if unlimited else soft, bool(effective >> _CAP_IPC_LOCK & 1), os.geteuid())


def obstacle(links: int, shape: Shape, limits: Limits) -> str | None:
    """Why so many links cannot be pinned under these limits, with the three remedies in order of preference; or None."""
    needed = links * shape.pinned_bytes
    if limits.may_lock or limits.locked_bytes is None or needed <= limits.locked_bytes:
        return None
    fitting = limits.locked_bytes // max(1, links)
    slots = next((s for s in range(shape.slots, 0, -1) if Shape(s, shape.slot_bytes).pinned_bytes <= fitting), 0)
    first = (
        f"use {slots} slots of {shape.slot_bytes} bytes instead of {shape.slots}"
        if slots
        else f"use smaller slots than {shape.slot_bytes} bytes"
    )
    third = "give the sidecar the capability IPC_LOCK" if limits.uid == 0 else "run the sidecar as user 0 with IPC_LOCK"
    return (
        f"{links} links of {shape.slots} x {shape.slot_bytes} bytes pin {needed} bytes, this process may lock "
        f"{limits.locked_bytes}: (a) {first}; (b) set LimitMEMLOCK of the node's container runtime to {needed} or more; "
        f"(c) {third} (a capability does nothing for another user)"
    )
