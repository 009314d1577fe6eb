"""What one thread makes of a query of the throughput benchmark, as plainly as it can be written (COST, McSherry et al.).

`python -m bench.parts.throughput.single CONF.json` reads the same Parquet files as the others, some at a time, and after
these emits the windows that the watermark has passed. One hash table per pane, one core, no copies, no way back. It prints
a line of JSON per batch. Must never import anything of Ferry's.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

Ints: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"

ROWS_AT_ONCE = 1 << 16
"""Decoded at a time, so that they are still in the cache when they are counted."""

KEY, COUNT = 0, 1
FIRST_SLOTS = 1 << 10
END = 1 << 62
"""Watermark of an input that is over."""


@njit(cache=True)  # type: ignore[untyped-decorator]
def _slot(table: Ints, key: int) -> int:
    """Where a key is, or the free place that it gets."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    mask = len(table) - 1
    at = np.int64(mixed >> np.uint64(32)) & mask
    while table[at, COUNT] and table[at, KEY] != key:
        at = (at + 1) & mask
    return int(at)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _take(
    table: Ints, sums: Floats, used: int, keys: Ints, counts: Ints, values: Floats, begin: int
) -> tuple[int, int]:
    """Add rows from `begin` on, as long as there is room: (the first that was not added, slots in use).

    `counts`: of each row, or none: one each. `sums` and `values` are empty where nothing is summed.
    """
    room = len(table) * 7 // 10
    for i in range(begin, len(keys)):
        at = _slot(table, keys[i])
        if not table[at, COUNT]:
            if used == room:
                return i, used
            used += 1
            table[at, KEY] = keys[i]
        table[at, COUNT] += counts[i] if len(counts) else 1
        if len(values):
            sums[at] += values[i]
    return len(keys), used


NO_INTS, NO_FLOATS = np.zeros(0, np.int64), np.zeros(0, np.float64)


class Table:
    """Count, and sum of a value if there is one, by key. Open addressing; it doubles when seven tenths are in use."""

    def __init__(self, summed: bool, slots: int = FIRST_SLOTS) -> None:
        self.summed = summed
        self.rows = np.zeros((slots, 2), np.int64)
        self.sums = np.zeros(slots if summed else 0, np.float64)
        self.used = 0

    def add(self, keys: Ints, values: Floats = NO_FLOATS, counts: Ints = NO_INTS) -> None:
        """Take rows in."""
        done = 0
        while True:
            done, self.used = _take(self.rows, self.sums, self.used, keys, counts, values, done)
            if done == keys.size:
                return
            larger = Table(self.summed, 2 * len(self.rows))
            larger.merge(self)
            self.rows, self.sums = larger.rows, larger.sums

    def merge(self, other: Table) -> None:
        """Take in what another one holds."""
        keys, counts, sums = other.content()
        self.add(keys, sums, counts)

    def content(self) -> tuple[Ints, Ints, Floats]:
        """Keys, their counts and sums."""
        at = np.flatnonzero(self.rows[:, COUNT])
        return self.rows[at, KEY], self.rows[at, COUNT], self.sums[at] if self.summed else NO_FLOATS


@dataclass(frozen=True, slots=True)
class Query:
    """Which columns are read, and what is counted in which windows; without `size_ms` in none."""

    stream: str
    key: str
    columns: tuple[str, ...]
    size_ms: int = 0
    slide_ms: int = 0
    """0: windows do not overlap"""
    summed: str | None = None
    keys: Callable[[pa.RecordBatch, dict[str, Any]], pa.RecordBatch] = lambda rows, conf: rows
    """what is done to rows before they are counted"""


def _campaigns(rows: pa.RecordBatch, conf: dict[str, Any]) -> pa.RecordBatch:
    """Views, and the campaigns of their advertisements."""
    kinds = rows.column("event_type")
    view = kinds.dictionary.to_pylist().index("view") if "view" in kinds.dictionary.to_pylist() else -1
    wanted = kinds.indices.to_numpy() == view
    ads, times = (rows.column(name).to_numpy()[wanted] for name in ("ad_id", "ts"))
    return pa.record_batch({"ts": times, "campaign_id": ads // conf["ads_per_campaign"]})


COUNTS = Query("keys", "key", ("key",))
QUERIES = {
    "nbq5": Query("bid", "auction", ("ts", "auction"), 60_000, 10_000),
    "ysb": Query("ysb", "campaign_id", ("ts", "ad_id", "event_type"), 10_000, keys=_campaigns),
    "cm": Query("cm", "job_id", ("ts", "job_id", "cpu"), 2_000, summed="cpu"),
    "ro": COUNTS,
    "hash_count": COUNTS,
}


class Program:
    """A query as it runs."""

    def __init__(self, query: Query, conf: dict[str, Any]) -> None:
        self.query, self.conf, self.output = query, conf, Path(conf["output"])
        self.size = int(conf.get("window_ms", query.size_ms)) if query.size_ms else 0
        self.slide = query.slide_ms or self.size
        self.panes: dict[int, Table] = {}
        """by where they begin; one of all records where there are no windows"""
        self.newest = -END
        """event time"""
        self.low = -END
        """the watermark up to which windows were emitted"""
        self.late = 0
        self.files = 0
        self.output.mkdir(parents=True, exist_ok=True)

    def take(self, rows: pa.RecordBatch) -> None:
        """Some rows of a file."""
        rows = self.query.keys(rows, self.conf)
        keys = rows.column(self.query.key).to_numpy()
        values = rows.column(self.query.summed).to_numpy().astype(np.float64) if self.query.summed else NO_FLOATS
        if not self.size:
            self._pane(0).add(keys)
            return
        if not keys.size:
            return
        times = rows.column("ts").to_numpy()
        first, last = int(times.min()) // self.slide, int(times.max()) // self.slide
        self.newest = max(self.newest, int(times.max()))
        if first == last:
            self._take_pane(first * self.slide, keys, values)
            return
        panes = times // self.slide
        for pane in range(first, last + 1):
            mine = panes == pane
            if mine.any():
                self._take_pane(pane * self.slide, keys[mine], values[mine] if values.size else values)

    def _take_pane(self, start: int, keys: Ints, values: Floats) -> None:
        if start + self.size <= self.low:
            self.late += keys.size
        else:
            self._pane(start).add(keys, values)

    def _pane(self, start: int) -> Table:
        if start not in self.panes:
            self.panes[start] = Table(self.query.summed is not None)
        return self.panes[start]

    def emit(self, watermark: int) -> None:
        """Windows that end after the last watermark and not after this one."""
        ends = {end for start in self.panes for end in range(start + self.slide, start + self.size + 1, self.slide)}
        for end in sorted(end for end in ends if self.low < end <= watermark):
            parts = [self.panes[start] for start in range(end - self.size, end, self.slide) if start in self.panes]
            whole = parts[0]
            if len(parts) > 1:
                whole = Table(self.query.summed is not None)
                for part in parts:
                    whole.merge(part)
            self._write(whole, end)
        self.low = max(self.low, watermark)
        self.panes = {start: table for start, table in self.panes.items() if start + self.size > self.low}

    def batch_over(self) -> None:
        """What is final after a batch is written."""
        if self.size and self.newest > -END:
            self.emit(self.newest - int(self.conf["delay_ms"]))

    def input_over(self) -> None:
        """All that is left."""
        if self.size:
            self.emit(END)
        elif self.panes:
            self._write(self.panes[0], None)

    def _write(self, table: Table, end: int | None) -> None:
        keys, counts, sums = table.content()
        columns: dict[str, Any] = {self.query.key: keys}
        if end is not None:
            columns |= {"window_start": np.full(keys.size, end - self.size), "window_end": np.full(keys.size, end)}
        columns["num"] = counts
        if self.query.summed:
            columns |= {f"total_{self.query.summed}": sums, f"avg_{self.query.summed}": sums / counts}
        pq.write_table(pa.table(columns), self.output / f"part-{self.files:05d}.parquet", compression="snappy")
        self.files += 1


def rows_of(file: Path, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """A file, by this thread."""
    words = [name for name in columns if name == "event_type"]
    with pq.ParquetFile(file, read_dictionary=words, memory_map=True, pre_buffer=False) as opened:
        yield from opened.iter_batches(ROWS_AT_ONCE, columns=list(columns), use_threads=False)


def run(conf: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """When each batch was over, and how many rows it had; then the end, which has none."""
    query = QUERIES[conf["query"].partition("-")[0]]
    program = Program(query, conf)
    files = iter(sorted((Path(conf["directory"]) / query.stream).glob("*.parquet")))
    while some := list(itertools.islice(files, int(conf["files_per_batch"]))):
        rows = 0
        for file in some:
            for batch in rows_of(file, query.columns):
                rows += batch.num_rows
                program.take(batch)
        program.batch_over()
        yield {"end": time.time(), "rows": rows}
    program.input_over()
    yield {"end": time.time(), "rows": 0, "late": program.late}


def main() -> int:
    """The files of the configuration."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    for line in run(json.loads(Path(sys.argv[1]).read_text())):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
