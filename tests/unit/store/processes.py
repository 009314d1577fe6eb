"""Processes of the tests, at the top level of a module, as instances need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import ferry

COLUMNS = pa.schema([("n", pa.int64()), ("text", pa.string())])


@dataclass
class Fragile(ferry.Process):
    """Keeps a count of each key, and cannot divide by zero."""

    tables = {"count": ferry.StateTable(pa.schema([("n", pa.int64())]))}
    output = pa.schema([("quotient", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        work.put("count", range(work.count), {"n": np.diff(work.spans())})
        for key, n in zip(work.key_of().tolist(), work.rows().column("n").to_pylist(), strict=True):
            if n == -1:
                raise ferry.Final("it is of no use")
            work.emit(key, {"quotient": [100 // n]})


@dataclass
class Everything(ferry.Process):
    """Counts records of a key, keeps each under two kinds of entries, forgets a key when nothing came for a while."""

    timeout: int = 10
    tables = {
        "count": ferry.StateTable(pa.schema([("n", pa.int64()), ("last", pa.int64()), ("text", pa.string())])),
        "texts": ferry.StateTable(COLUMNS, pa.string()),
        "times": ferry.StateTable(COLUMNS, pa.int64()),
    }
    output = pa.schema([("what", pa.string()), ("n", pa.int64()), ("time", pa.int64()), ("text", pa.string())])

    def process(self, work: ferry.Work) -> None:
        touched = np.arange(work.count)
        before = work.get("count")
        counts = before.column("n").fill_null(0).to_numpy(zero_copy_only=False).copy()
        last = before.column("last").fill_null(-100).to_numpy(zero_copy_only=False).copy()
        rows = work.rows()
        np.add.at(counts, work.key_of(), 1)
        np.maximum.at(last, work.key_of(), work.times())
        had = np.unique(work.key_of())
        values = {
            "n": counts[had],
            "last": last[had],
            "text": pa.array([None if n % 3 == 0 else "é" for n in counts[had]]),
        }
        work.put("count", had, values)
        entry = pc.fill_null(rows.column("text"), "none")
        work.put("texts", work.key_of(), rows.select(COLUMNS.names), entry)
        work.put("times", work.key_of(), rows.select(COLUMNS.names), work.times())
        work.set_timer(had, last[had] + self.timeout)
        work.set_processing_timer(had, last[had])
        self._on_timers(work, counts, last)
        at, _ = work.processing_timers()
        work.emit(
            at, {"what": ["clock"] * at.size, "n": counts[at], "time": last[at], "text": pa.nulls(at.size, pa.string())}
        )
        work.late(int((work.times() < work.low).sum()))
        assert touched.size == work.keys.num_rows

    def _on_timers(self, work: ferry.Work, counts: np.ndarray, last: np.ndarray) -> None:
        keys, times = work.timers()
        over = last[keys] + self.timeout <= times
        gone, times = keys[over], times[over]
        texts = work.read("texts")
        kept = np.bincount(texts.key, minlength=work.count)
        shown = [None if k % 2 else str(k) for k in kept[gone].tolist()]
        work.emit(
            gone, {"what": ["over"] * gone.size, "n": counts[gone], "time": times, "text": pa.array(shown, pa.string())}
        )
        work.remove("count", gone)
        work.remove("texts", gone)
        old = work.read("times")
        mine = np.isin(old.key, gone)
        if mine.any():
            work.remove("times", old.key[mine], old.entry.filter(pa.array(mine)))


@dataclass
class Both(ferry.Process):
    """Emits what came on either side, and how many of the other side came before."""

    tables = {"seen": ferry.StateTable(pa.schema([("left", pa.int64()), ("right", pa.int64())]))}
    output = pa.schema([("side", pa.int64()), ("others", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        seen = work.get("seen")
        before = [seen.column(side).fill_null(0).to_numpy(zero_copy_only=False) for side in (0, 1)]
        for side in (0, 1):
            keys = work.key_of(side)
            work.emit(keys, {"side": np.full(keys.size, side), "others": before[1 - side][keys]})
        now = [before[side] + np.bincount(work.key_of(side), minlength=work.count) for side in (0, 1)]
        work.put("seen", np.arange(work.count), {"left": now[0], "right": now[1]})
