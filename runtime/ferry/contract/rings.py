"""The rings of links over RDMA as numbers: bounds, what they pin, and what to change when that is too much.

`lend`: bytes of other memory that each link sends from, so each pins it, too.

Arithmetic only, for those who make rings and for those who plan them; it must never ask the system anything.
"""

from __future__ import annotations

PAGE_BYTES = 4096

SLOTS, SLOT_BYTES = 8, 64 * 1024
"""Of one ring, unless the job says something else."""

SLOTS_MAX = 128
"""Slots of one ring: below 256, so that a torn read of the credit word is never taken for a possible value."""

SLOT_BYTES_MIN, SLOT_BYTES_MAX = 256, 1 << 20

PINNED_BYTES_MAX = 6 << 20
"""Pinned by one process by default: below LOCKED_BYTES, so no privilege is needed."""

LOCKED_BYTES = 8 << 20
"""What each process of a container may lock without asking."""


def link_bytes(slots: int, slot_bytes: int, lend: int = 0) -> int:
    """Pinned by one link, on one side: the inbound ring, the outbound staging, a page for each credit word, what is lent."""
    return 2 * (-(-slots * slot_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES) + lend


def fitting_slots(links: int, slots: int, slot_bytes: int, most: int, lend: int = 0) -> int:
    """The most slots, of no more than `slots`, with which so many links pin no more than `most`; 0 when there are none."""
    return next((s for s in range(slots, 0, -1) if links * link_bytes(s, slot_bytes, lend) <= most), 0)


def suggest_ring(links: int, slots: int, slot_bytes: int, most: int, lend: int = 0) -> str:
    """What to change so that this many links pin no more than `most`, as text."""
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
    """Why this many links cannot be pinned below this limit, with the three remedies in order of preference; or None."""
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
