"""The rings of RDMA links as numbers: bounds, pinned bytes, and remedies when these exceed a limit.

`lend`: bytes of other memory that each link sends from; each link pins them, too.

Arithmetic only, for making rings and for planning them; it must never query the system.
"""

from __future__ import annotations

PAGE_BYTES = 4096

SLOTS, SLOT_BYTES = 8, 64 * 1024
"""Of one ring, unless the job sets another size."""

SLOTS_MAX = 128
"""Slots of one ring: below 256, so that a torn read of the credit word is never taken for a possible value."""

SLOT_BYTES_MIN, SLOT_BYTES_MAX = 256, 1 << 20

PINNED_BYTES_MAX = 6 << 20
"""Pinned by one process by default: below LOCKED_BYTES, so no privilege is needed."""

LOCKED_BYTES = 8 << 20
"""Bytes that each process of a container may lock without a privilege."""


def link_bytes(slots: int, slot_bytes: int, lend: int = 0) -> int:
    """Bytes pinned by one link, on one side: the inbound ring, the outbound staging, a page per credit word, lent
    memory."""
    return 2 * (-(-slots * slot_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES) + lend


def fitting_slots(links: int, slots: int, slot_bytes: int, most: int, lend: int = 0) -> int:
    """The largest number of slots, at most `slots`, with which this many links pin at most `most` bytes; 0 if none
    fits."""
    return next((s for s in range(slots, 0, -1) if links * link_bytes(s, slot_bytes, lend) <= most), 0)


def suggest_ring(links: int, slots: int, slot_bytes: int, most: int, lend: int = 0) -> str:
    """The change with which this many links pin at most `most` bytes, as text."""
    fitting = fitting_slots(links, slots, slot_bytes, most, lend)
    if lend and not fitting:
        return f"lend less than {lend} bytes"
    less = f", or lend less than {lend} bytes" if lend else ""
    if fitting:
        return f"use {fitting} slots of {slot_bytes} bytes instead of {slots}{less}"
    return f"use smaller slots than {slot_bytes} bytes"


def pin_error(
    links: int, slots: int, slot_bytes: int, locked_bytes: int, root: bool = False, lend: int = 0
) -> str | None:
    """Why this many links cannot be pinned below this limit, with three remedies, the best first; or None."""
    needed = links * link_bytes(slots, slot_bytes, lend)
    if needed <= locked_bytes:
        return None
    third = "give the sidecar the capability IPC_LOCK" if root else "run the sidecar as user 0 with IPC_LOCK"
    lent = f" that lend {lend} bytes" if lend else ""
    other = suggest_ring(links, slots, slot_bytes, locked_bytes, lend)
    return (
        f"{links} links of {slots} x {slot_bytes} bytes{lent} pin {needed} bytes, this process may lock "
        f"{locked_bytes}: (a) {other}; (b) set LimitMEMLOCK of the node's "
        f"container runtime to {needed} or more; (c) {third} (a capability does nothing for another user)"
    )
