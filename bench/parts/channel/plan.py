"""Which channels and which programs of others are measured where, in which order. Pure: lists of steps for `peer`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ferry.channel.rdma.memory import PINNED_BYTES_MAX, RingShape
from ferry.contract import limits

Step = dict[str, Any]

PLACES = {
    "host": "two processes of this machine, over 127.0.0.1",
    "guest": "two processes in one guest with the device rxe0",
    "pair": "two guests on one wire",
}

SLOT_KIB = (4, 16, 64, 256)
SLOTS = (2, 4, 8, 16)
LEFT_OUT = "rings that would pin more than 6 MiB for one peer, which one process may not by default (16 x 256 KiB)"

MESSAGE_BYTES = 65536
PING_BYTES = (64, MESSAGE_BYTES)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done."""

    repeats: int = 2
    seconds: float = 2.0
    """of one comparison"""
    grid_seconds: float = 0.6
    rounds: int = 120
    rival_bytes: int = 64 << 20
    """that one run of ib_write_bw writes"""
    slot_kib: Sequence[int] = SLOT_KIB
    slots: Sequence[int] = SLOTS

    @classmethod
    def quick(cls) -> Sizes:
        """To see that everything works."""
        return cls(1, 1.0, 0.3, 60, 16 << 20, (16, 64), (4, 8))


def fits(shape: RingShape) -> bool:
    """One link of this shape is within what a process pins by default."""
    return shape.pinned_bytes <= PINNED_BYTES_MAX


def plan(place: str, sizes: Sizes) -> list[Step]:
    """The steps at one place."""
    repeats = sizes.repeats * (2 if place == "host" else 1)
    steps = [step for repeat in range(repeats) for step in _compared(place, sizes, repeat)]
    if place != "pair":
        steps += _by_slots("tcp", sizes, (*sizes.slots, limits.SLOTS))
    if place == "guest":
        steps += [_write_bw(sizes, kib << 10, 0) for kib in sizes.slot_kib if kib << 10 != MESSAGE_BYTES]
        steps += _by_slots("rdma", sizes, sizes.slots)
    return steps


def _compared(place: str, sizes: Sizes, repeat: int) -> list[Step]:
    """Everything that is compared with each other, once."""
    label = {"case": "beside others", "repeat": repeat}
    steps: list[Step] = [
        {"do": "program", "label": {"system": "iperf3", **label}, "name": "iperf3", "seconds": sizes.seconds},
        _channel("tcp", sizes, label),
        _channel("tcp", sizes, label, checksum=False),
    ]
    for size in PING_BYTES:
        step: Step = {"size": size, "rounds": sizes.rounds}
        steps.append({"do": "echo", "label": {"system": "sockets", **label}, **step})
    if place == "host":
        return steps
    steps += [_write_bw(sizes, MESSAGE_BYTES, repeat), _channel("rdma", sizes, label)]
    if place == "guest":
        steps += [_channel("rdma", sizes, label, notify="footer"), _channel("rdma", sizes, label, checksum=False)]
    for size in PING_BYTES:
        step = {"name": "ib_write_lat", "size": size, "count": max(sizes.rounds, 100)}
        steps.append({"do": "program", "label": {"system": "ib_write_lat", **label, "bytes": size}, **step})
    return steps


def _channel(carrier: str, sizes: Sizes, label: Step, **more: Any) -> Step:
    shape = RingShape()
    slots, slot_bytes = (limits.SLOTS, limits.SLOT_BYTES) if carrier == "tcp" else (shape.slots, shape.slot_bytes)
    seconds, pings = sizes.seconds, PING_BYTES if more.get("checksum", True) else ()
    return _case(carrier, slots, slot_bytes, label, seconds=seconds, pings=pings, rounds=sizes.rounds, **more)


def _by_slots(carrier: str, sizes: Sizes, slots: Sequence[int]) -> list[Step]:
    label = {"case": "by slots"}
    times: Step = {
        "seconds": sizes.grid_seconds,
        "warm_seconds": 0.2,
        "pings": (MESSAGE_BYTES,),
        "rounds": sizes.rounds // 4,
    }
    shapes = [(count, kib << 10) for kib, count in product(sizes.slot_kib, slots)]
    return [_case(carrier, *s, label, **times) for s in shapes if carrier == "tcp" or fits(RingShape(*s))]


def _case(carrier: str, slots: int, slot_bytes: int, label: Step, **more: Any) -> Step:
    shown = {"notify": more["notify"]} if "notify" in more else {}
    shown |= {"carrier": carrier, "slots": slots, "slot_bytes": slot_bytes, "checksum": more.get("checksum", True)}
    case = {"carrier": carrier, "slots": slots, "slot_bytes": slot_bytes, "message_bytes": MESSAGE_BYTES}
    return {"do": "channel", "label": {"system": "Ferry", **label, **shown}, **case, **more}


def _write_bw(sizes: Sizes, size: int, repeat: int) -> Step:
    label = {"system": "ib_write_bw", "case": "beside others", "repeat": repeat, "bytes": size}
    return {"do": "program", "label": label, "name": "ib_write_bw", "size": size, "count": sizes.rival_bytes // size}
