"""What a run's timeline says: epochs, throughput, the pause of each move, the time of each recovery.

The numbers are pure functions of the records; only `read` and `TimelineTail` touch the file. Times are seconds since 1970,
lengths are seconds. A *gap* is the time between the ends of two epochs that follow each other: what a reader of the
output has to wait for. The *pause* of a move is the longest gap while it was under way, without the time before and after
it in which no epoch ran, for there was nothing to read. (Megaphone, section 5, measures
the latency of single records, offered at a fixed rate: that is `latency` here, where sources say when theirs were made.)
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ferry.contract.latency import LatencyHistogram, LatencyQuantiles
from ferry.contract.timeline import TIMELINE_BEFORE

Record = dict[str, Any]

FOLLOW_UP_SECONDS = 5.0
"""A switchover or clean-up of a vnode that ended its warming not longer ago than this belongs to the same move."""

HEAD_BYTES = 256
"""Bytes of a part of the timeline that tell it from another part: its first record begins with the time."""

FEW_EPOCHS = 10
"""Of fewer, quantiles say nothing, and the first epoch, which loads kernels, hides the others."""

FAILURES = ("kill-worker", "kill-instance", "kill-driver", "restart driver")
"""Actions that a recovery follows."""


def read(file: Path) -> list[Record]:
    """All records of a timeline; a last line that is still being written is left out."""
    return TimelineTail(file).read()


class TimelineTail:
    """Reads what was added to a timeline since the last look, across the end of its part."""

    def __init__(self, file: Path, from_end: bool = False) -> None:
        self._file = file
        self._head = b""
        self._at = 0
        """How the part begins that was read last: no other part begins with the same record."""
        if from_end and file.exists():
            with open(file, "rb") as part:
                self._head = part.read(HEAD_BYTES)
                self._at = part.seek(0, os.SEEK_END)

    def read(self) -> list[Record]:
        """New records, in order; none while the file does not exist."""
        records: list[Record] = []
        try:
            with open(self._file, "rb") as file:
                head = file.read(HEAD_BYTES)
                if not self._known(head):
                    records, self._at = self._rest(), 0
                self._head = head
                file.seek(self._at)
                found, size = _records(file.read())
        except FileNotFoundError:
            return []
        self._at += size
        return records + found

    def _known(self, head: bytes) -> bool:
        return bool(self._head) and head.startswith(self._head)

    def _rest(self) -> list[Record]:
        """The unread records of the part before; all of its records, if it is not the part that was read."""
        try:
            with open(self._file.with_name(TIMELINE_BEFORE), "rb") as file:
                file.seek(self._at if self._known(file.read(HEAD_BYTES)) else 0)
                return _records(file.read())[0]
        except FileNotFoundError:
            return []


def _records(data: bytes) -> tuple[list[Record], int]:
    """The records of the whole lines, and the bytes of these."""
    whole = data[: data.rfind(b"\n") + 1]
    records = []
    for line in whole.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a process that was killed while it wrote
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records, len(whole)


@dataclass(slots=True)
class Move:
    """Virtual nodes that changed their members together: from the first that joined to the last switched or cleaned."""

    begin: float
    end: float
    vnodes: list[int] = field(default_factory=list)
    switchovers: int = 0
    """vnodes that got a new leader"""
    joined: int = 0
    """copies that were warmed"""
    aborted: int = 0
    pause: float | None = None
    """longest gap between finished epochs while it was under way; None when fewer than two epochs touch it"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One failure and the first epoch that finished after it."""

    at: float
    text: str
    seconds: float | None
    """None: no epoch finished any more"""


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of a run."""

    epochs: int
    rows: int
    seconds: float
    """from the begin of the first epoch to the end of the last"""
    rows_per_second: float
    late: int
    malformed: int
    fired: int
    epoch_first: float
    """in which kernels are loaded or compiled, and all that lay there is read: it says little of the others"""
    epoch_median: float
    epoch_p90: float
    epoch_p99: float
    epoch_max: float
    gap_median: float
    moves: tuple[Move, ...]
    recoveries: tuple[Recovery, ...]
    degraded: tuple[str, ...]
    warnings: tuple[str, ...]
    latency: LatencyQuantiles | None = None
    """of records, from their creation to the sinks; None: no source says when they were created"""

    def to_wire(self) -> Record:
        """Plain values."""
        return asdict(self)


def epochs_of(records: Sequence[Record]) -> list[Record]:
    """Records of finished epochs by number; of one that was run again, the last."""
    found = {int(r["epoch"]): r for r in records if r["kind"] == "epoch"}
    return [found[number] for number in sorted(found)]


def summarize(records: Sequence[Record]) -> Summary:
    """The numbers of these records."""
    epochs = epochs_of(records)
    lengths = [r["end"] - r["begin"] for r in epochs]
    ends = [r["end"] for r in epochs]
    seconds = max(ends) - min(r["begin"] for r in epochs) if epochs else 0.0
    rows = sum(r.get("rows", 0) for r in epochs)
    return Summary(
        epochs=len(epochs),
        rows=rows,
        seconds=seconds,
        rows_per_second=rows / seconds if seconds > 0 else 0.0,
        late=sum(r.get("late", 0) for r in epochs),
        malformed=sum(r.get("malformed", 0) for r in epochs),
        fired=sum(r.get("fired", 0) for r in epochs),
        epoch_first=lengths[0] if lengths else 0.0,
        epoch_median=percentile(lengths, 0.5),
        epoch_p90=percentile(lengths, 0.9),
        epoch_p99=percentile(lengths, 0.99),
        epoch_max=max(lengths, default=0.0),
        gap_median=statistics.median(gaps(ends)) if len(ends) > 1 else 0.0,
        moves=tuple(moves_of(records)),
        recoveries=tuple(recoveries_of(records)),
        degraded=_texts(records, "degraded"),
        warnings=_texts(records, "warning"),
        latency=latency_of(records),
    )


def _texts(records: Sequence[Record], kind: str) -> tuple[str, ...]:
    return tuple(str(r.get("text", "")) for r in records if r["kind"] == kind)


def latency_of(records: Sequence[Record]) -> LatencyQuantiles | None:
    """Of all records of these lines together: quantiles of several lines cannot be added, counts can."""
    made = LatencyHistogram()
    for record in records:
        if record["kind"] == "latency":
            made.merge(dict(record["counts"]))
    return made.quantiles()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def gaps(ends: Sequence[float]) -> list[float]:
    """Times between ends of epochs that follow each other."""
    return [after - before for before, after in pairwise(ends)]


def moves_of(records: Sequence[Record]) -> list[Move]:
    """Moves in order of their begin, each with its pause."""
    moves: list[Move] = []
    warming: dict[tuple[int, str], bool] = {}
    for record in records:
        if record["kind"] == "lost":
            continue
        if record["kind"] != "groups":
            continue
        changes = sorted(record["changes"], key=lambda c: c[1] != "joined")
        for vnode, what, instance in changes:
            if what in ("joined", "switched") or (what in ("in-sync", "aborted") and (vnode, instance) in warming):
                move = _open_move(moves, bool(warming), vnode, record["t"], what)
                move.end = max(move.end, record["t"])
                if vnode not in move.vnodes:
                    move.vnodes.append(vnode)
                move.switchovers += what == "switched"
                move.joined += what == "joined"
                move.aborted += what == "aborted"
            elif what == "cleaned" and moves and vnode in moves[-1].vnodes:
                moves[-1].end = max(moves[-1].end, record["t"])
            if what == "joined":
                warming[vnode, instance] = True
            elif what in ("in-sync", "aborted", "removed"):
                warming.pop((vnode, instance), None)
    epochs = epochs_of(records)
    for move in moves:
        move.pause = pause(epochs, move.begin, move.end)
    return moves


def _open_move(moves: list[Move], warming: bool, vnode: int, now: float, what: str) -> Move:
    """The move a change belongs to: the last one if it is under way or this is its follow-up, else a new one."""
    if moves:
        last = moves[-1]
        follows = what != "joined" and vnode in last.vnodes and now - last.end <= FOLLOW_UP_SECONDS
        if warming or follows or last.end == now:
            return last
    moves.append(Move(now, now))
    return moves[-1]


def pause(epochs: Sequence[Record], begin: float, end: float) -> float | None:
    """The longest gap that touches [begin, end], without what was idle of it outside; None when there is none."""
    touching = [
        after["end"] - before["end"] - _idle(before["end"], after["begin"], begin, end)
        for before, after in pairwise(epochs)
        if after["end"] >= begin and before["end"] <= end
    ]
    return max(touching, default=None)


def _idle(since: float, until: float, begin: float, end: float) -> float:
    """How much of the time from `since` to `until` is outside [begin, end]."""
    return max(0.0, min(until, begin) - since) + max(0.0, until - max(since, end))


def recoveries_of(records: Sequence[Record]) -> list[Recovery]:
    """Each failure that was caused or noticed by the supervisor, with the time to the next finished epoch."""
    epochs = [r for r in records if r["kind"] == "epoch"]
    found = []
    for record in records:
        text = str(record.get("text", ""))
        if record["kind"] == "action" and text.startswith(FAILURES) and " refused" not in text:
            after = next((seconds for one in epochs if (seconds := _seconds(record, one)) > 0), None)
            found.append(Recovery(record["t"], text, after))
    return found


def _seconds(record: Record, epoch: Record) -> float:
    """From a record to the end of an epoch, by the clock that is never set, where both say it."""
    if "up" in record and "up" in epoch:
        return float(epoch["up"] - record["up"])
    return float(epoch["end"] - record["t"])
