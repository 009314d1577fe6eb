"""The numbers of a run's timeline: epochs, throughput, the pause of each move, the time of each recovery.

The numbers are pure functions of the records; only `read` and `TimelineTail` read the file. Times are seconds since 1970,
lengths are seconds. A *gap* is the time between the ends of two consecutive epochs: the wait of a reader of the output.
The *pause* of a move is the longest gap during the move, without idle time before and after it, in which no epoch ran
because there was no input. (Megaphone, section 5, measures the latency of single records at a fixed rate. Here this is
`latency`, if sources give the creation time of records.)
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
"""A switchover or clean-up of a virtual node within this time after the move belongs to the same move."""

HEAD_BYTES = 256
"""First bytes of a part of the timeline, which identify the part: its first record begins with the time."""

FEW_EPOCHS = 10
"""With fewer epochs quantiles are meaningless, because the first epoch, which loads kernels, dominates."""

FAILURES = ("kill-worker", "kill-instance", "kill-driver", "restart driver")
"""Actions that a recovery follows."""


def read(file: Path) -> list[Record]:
    """All records of a timeline, without an incomplete last line."""
    return TimelineTail(file).read()


class TimelineTail:
    """Reads the new records of a timeline since the last look, also across a rotation of the file."""

    def __init__(self, file: Path, from_end: bool = False) -> None:
        self._file = file
        self._head = b""
        self._at = 0
        """position in the part that was read last; `_head`, its first bytes, identifies the part"""
        if from_end and file.exists():
            with open(file, "rb") as part:
                self._head = part.read(HEAD_BYTES)
                self._at = part.seek(0, os.SEEK_END)

    def read(self) -> list[Record]:
        """New records, in order; empty while the file does not exist."""
        records: list[Record] = []
        try:
            with open(self._file, "rb") as file:
                head = file.read(HEAD_BYTES)
                if not self._known(head):
                    records, self._at = self._rest(), 0
                self._head = head
                file.seek(self._at)
                new, size = _records(file.read())
        except FileNotFoundError:
            return []
        self._at += size
        return records + new

    def _known(self, head: bytes) -> bool:
        return bool(self._head) and head.startswith(self._head)

    def _rest(self) -> list[Record]:
        """The unread records of the previous part; all its records if it is not the part that was read last."""
        try:
            with open(self._file.with_name(TIMELINE_BEFORE), "rb") as file:
                file.seek(self._at if self._known(file.read(HEAD_BYTES)) else 0)
                return _records(file.read())[0]
        except FileNotFoundError:
            return []


def _records(data: bytes) -> tuple[list[Record], int]:
    """The records of the complete lines, and the number of their bytes."""
    whole = data[: data.rfind(b"\n") + 1]
    records = []
    for line in whole.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the process was killed during the write
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records, len(whole)


@dataclass(slots=True)
class Move:
    """Virtual nodes that changed their members together, from the first join to the last switchover or clean-up."""

    begin: float
    end: float
    vnodes: list[int] = field(default_factory=list)
    switchovers: int = 0
    """virtual nodes that got a new leader"""
    joined: int = 0
    """new copies"""
    aborted: int = 0
    pause: float | None = None
    """longest gap between finished epochs during the move; None if fewer than two epochs touch it"""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One failure, and the time to the next finished epoch."""

    at: float
    text: str
    seconds: float | None
    """None: no epoch has finished since"""


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
    """time of the first epoch, which loads kernels and reads the existing input: not typical of later epochs"""
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
    """latency of records from their creation to the sinks; None: no source gives the creation time"""

    def to_wire(self) -> Record:
        """Plain values."""
        return asdict(self)


def epochs_of(records: Sequence[Record]) -> list[Record]:
    """Records of finished epochs by number; the last record of an epoch that was run again."""
    epochs = {int(r["epoch"]): r for r in records if r["kind"] == "epoch"}
    return [epochs[number] for number in sorted(epochs)]


def summarize(records: Sequence[Record]) -> Summary:
    """The summary of these records."""
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
    """Quantiles of all latency records together, by their counts: quantiles themselves cannot be added."""
    histogram = LatencyHistogram()
    for record in records:
        if record["kind"] == "latency":
            histogram.merge(dict(record["counts"]))
    return histogram.quantiles()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def gaps(ends: Sequence[float]) -> list[float]:
    """Times between the ends of consecutive epochs."""
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
        for vnode, change, instance in changes:
            if change in ("joined", "switched") or (change in ("in-sync", "aborted") and (vnode, instance) in warming):
                move = _open_move(moves, bool(warming), vnode, record["t"], change)
                move.end = max(move.end, record["t"])
                if vnode not in move.vnodes:
                    move.vnodes.append(vnode)
                move.switchovers += change == "switched"
                move.joined += change == "joined"
                move.aborted += change == "aborted"
            elif change == "cleaned" and moves and vnode in moves[-1].vnodes:
                moves[-1].end = max(moves[-1].end, record["t"])
            if change == "joined":
                warming[vnode, instance] = True
            elif change in ("in-sync", "aborted", "removed"):
                warming.pop((vnode, instance), None)
    epochs = epochs_of(records)
    for move in moves:
        move.pause = pause(epochs, move.begin, move.end)
    return moves


def _open_move(moves: list[Move], warming: bool, vnode: int, now: float, change: str) -> Move:
    """The move of a change: the last move if it is in progress or the change is its follow-up, else a new move."""
    if moves:
        last = moves[-1]
        follows = change != "joined" and vnode in last.vnodes and now - last.end <= FOLLOW_UP_SECONDS
        if warming or follows or last.end == now:
            return last
    moves.append(Move(now, now))
    return moves[-1]


def pause(epochs: Sequence[Record], begin: float, end: float) -> float | None:
    """The longest gap that touches [begin, end], without its idle time outside; None if there is none."""
    touching = [
        after["end"] - before["end"] - _idle(before["end"], after["begin"], begin, end)
        for before, after in pairwise(epochs)
        if after["end"] >= begin and before["end"] <= end
    ]
    return max(touching, default=None)


def _idle(since: float, until: float, begin: float, end: float) -> float:
    """The length of the part of [since, until] outside [begin, end]."""
    return max(0.0, min(until, begin) - since) + max(0.0, until - max(since, end))


def recoveries_of(records: Sequence[Record]) -> list[Recovery]:
    """Failures that the supervisor caused or noticed, each with the time to the next finished epoch."""
    epochs = [r for r in records if r["kind"] == "epoch"]
    recoveries = []
    for record in records:
        text = str(record.get("text", ""))
        if record["kind"] == "action" and text.startswith(FAILURES) and " refused" not in text:
            after = next((seconds for epoch in epochs if (seconds := _seconds(record, epoch)) > 0), None)
            recoveries.append(Recovery(record["t"], text, after))
    return recoveries


def _seconds(record: Record, epoch: Record) -> float:
    """Seconds from a record to the end of an epoch, by the monotonic clock if both records have it."""
    if "up" in record and "up" in epoch:
        return float(epoch["up"] - record["up"])
    return float(epoch["end"] - record["t"])
