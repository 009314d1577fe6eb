"""A process of a user's file: it numbers the records of each key, and comes back to each of them by timers.

Every distinct (key, event time) is told of when `hold` has passed, with how many records it had, and again every `hold` until
`until`: a timer that is lost, or goes off twice, shows in what it wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ferry

SEEN, DUE = 0, 1


@dataclass
class Reminders(ferry.Process):
    """Rows: of each record its number within the key, of each timer how many records it is for."""

    hold: int
    until: int
    tables = {
        "count": ferry.StateTable(pa.schema([("n", pa.int64())])),
        "times": ferry.StateTable(pa.schema([("n", pa.int32()), ("text", pa.string())]), entry=pa.int64()),
    }
    output = pa.schema([("what", pa.int64()), ("who", pa.string()), ("at", pa.int64()), ("n", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        who = work.keys.column("who")
        self._number(work, who)
        self._remember(work)
        key, time = work.timers()
        held = work.read("times")
        first = {(k, t): n for k, t, n in zip(held.key.tolist(), held.entry.to_pylist(), held.values["n"].to_pylist())}
        for k, t in zip(key.tolist(), time.tolist(), strict=True):
            # Which of the key's times it is for: the timers of one differ by `hold`.
            mine = max(at for at in range(t - self.hold, -1, -self.hold) if (k, at) in first)
            work.emit([k], {"what": [DUE], "who": who.take(pa.array([k])), "at": [t], "n": [first[k, mine]]})
            if t + self.hold <= self.until:
                work.set_timer([k], [t + self.hold])

    def _number(self, work: ferry.Work, who: pa.Array) -> None:
        before = work.get("count").column("n").fill_null(0).to_numpy(zero_copy_only=False)
        key, spans = work.key_of(), work.spans()
        numbers = before[key] + np.arange(key.size) - spans[key] + 1
        work.emit(
            key,
            {
                "what": np.full(key.size, SEEN),
                "who": who.take(pa.array(key)),
                "at": work.rows().column("seq"),
                "n": numbers,
            },
        )
        work.put("count", np.arange(work.count), {"n": before + np.diff(spans)})

    def _remember(self, work: ferry.Work) -> None:
        held = work.read("times")
        counts = dict(zip(zip(held.key.tolist(), held.entry.to_pylist()), held.values["n"].to_pylist()))
        changed = {}
        for pair in zip(work.key_of().tolist(), work.times().tolist(), strict=True):
            changed[pair] = counts[pair] = counts.get(pair, 0) + 1
        if changed:
            key, time = np.array(list(changed)).T
            work.put("times", key, {"n": list(changed.values()), "text": pa.nulls(key.size, pa.string())}, time)
            work.set_timer(key, time + self.hold)


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {"records": ferry.parquet_files(args["records"], finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """All that the process emits."""
    records = streams["records"].event_time("ts", delay="0s").key_by("who")
    made = records.process("reminders", Reminders(args["hold"], args["until"]), order="seq")
    return made.sink(ferry.parquet("reminders"))
