"""The queries of the throughput benchmark, and the Parquet files of each that all systems read.

The records are those of Ferry's generators, which equal the oracle's generator value for value.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ferry_workloads.arrivals import KeyedArrivals
from ferry_workloads.cm import CmGenerator
from ferry_workloads.keys import KeysGenerator, PreloadedKeysSplits
from ferry_workloads.nexmark import NexmarkGenerator
from ferry_workloads.ranges import ArrivalSplits
from ferry_workloads.ysb import YsbGenerator

ROW_GROUPS = 2
"""Per file, so that one file can be shared by two tasks."""

WORD = pa.dictionary(pa.int32(), pa.string())
"""The type of an event is one of three words: Ferry reads it as the file keeps it, a number and a dictionary."""

SPARK_TYPES = {pa.int64(): "long", pa.float32(): "float", pa.string(): "string"}


@dataclass(frozen=True, slots=True)
class Case:
    """One query: the job of `ferry_workloads.jobs`, what it reads, and what is compared of its result."""

    generator: Any
    streams: dict[str, str]
    """stream -> the columns of it that the query needs; the files hold no others"""
    result: str
    """columns; with `window_end`, the windows are compared that both systems closed"""
    arguments: Callable[[int], dict[str, Any]] = lambda arrivals: {}
    """of the generator, beside seed and rate, for so many arrivals"""
    parameters: dict[str, Any] = field(default_factory=dict)
    """of the query, for both systems"""
    splits: Callable[[Any, str], ArrivalSplits] = ArrivalSplits
    peer: bool = True
    """whether Spark can do it"""

    @property
    def batch_is_file(self) -> bool:
        """Of two streams, both systems read a file of each a batch: their files have different numbers of rows."""
        return len(self.streams) > 1

    def schema(self, stream: str) -> pa.Schema:
        """The columns of the files, as Ferry reads them."""
        fields = [self.generator.schemas[stream].field(name) for name in self.streams[stream].split()]
        return pa.schema([pa.field(f.name, WORD) if f.name == "event_type" else f for f in fields])

    def spark_schema(self, stream: str) -> str:
        """The same columns for Spark."""
        made = self.generator.schemas[stream]
        return ", ".join(f"{name} {SPARK_TYPES[made.field(name).type]}" for name in self.streams[stream].split())


def _ysb(window_ms: int, ads_per_campaign: int, arguments: Callable[[int], dict[str, Any]]) -> Case:
    parameters = {"window_ms": window_ms, "ads_per_campaign": ads_per_campaign}
    result = "campaign_id, window_start, window_end, num"
    return Case(YsbGenerator, {"ysb": "ts ad_id event_type"}, result, arguments, parameters)


CASES = {
    "nbq5": Case(NexmarkGenerator, {"bid": "ts auction"}, "auction, window_start, window_end, num"),
    # As Slash runs it: ten million campaigns, the campaign's id in the record, two windows of ten minutes.
    "ysb": _ysb(600_000, 1, lambda n: {"campaigns": 10_000_000, "ads_per_campaign": 1, "rate": n / 1200}),
    # As the original suite does: a thousand counters, so nothing but the scan is measured.
    "ysb-100": _ysb(10_000, 10, lambda n: {"campaigns": 100, "ads_per_campaign": 10}),
    "cm": Case(CmGenerator, {"cm": "ts job_id cpu"}, "job_id, window_start, window_end, num, total_cpu, avg_cpu"),
    # Slash has a hundred million keys: a tenth of them here.
    "ro": Case(KeysGenerator, {"keys": "key"}, "key, num", lambda n: {"domain": 10_000_000}),
    # A sixth of the input loads every key once, and is over before anything is measured.
    "hash_count": Case(
        KeysGenerator, {"keys": "key"}, "key, num", lambda n: {"domain": n // 6},
        splits=lambda made, stream: PreloadedKeysSplits(made),
    ),
    # Twenty windows, as each has one row or two.
    "q7": Case(
        NexmarkGenerator, {"bid": "seq ts auction bidder price"},
        "window_start, window_end, auction, bidder, price, ts, seq", lambda n: {"rate": n / 1200},
    ),
    "q11": Case(NexmarkGenerator, {"bid": "ts bidder"}, "bidder, window_start, window_end, num"),
    # Nothing reads bids: all arrivals are people and auctions, one to three as always.
    "q3": Case(
        NexmarkGenerator, {"person": "ts id name city state", "auction": "ts id seller category"},
        "name, city, state, auction", lambda n: {"proportions": "1,3,0"},
    ),
    # People and bids as Slash mixes them. Spark joins no sessions.
    "nb11": Case(
        NexmarkGenerator, {"person": "seq ts id", "bid": "seq ts bidder"},
        "window_start, window_end, person, person_seq, bid_seq",
        lambda n: {"proportions": "1,0,4", "valid_refs": True}, peer=False,
    ),
}  # fmt: skip


AGGREGATES = ("nbq5", "ysb", "ysb-100", "cm", "ro", "hash_count")
"""One aggregate by key: queries that can also repartition records, and that one thread can do."""

SKEWED = tuple(name for name in AGGREGATES if issubclass(CASES[name].generator, KeyedArrivals))
"""Those of which it can be said how their keys are distributed."""


def write(query: str, directory: Path, files: int, rows: int, seed: int, rate: float, skew: float | None = None) -> int:
    """Write, of every stream, `files` files of its share of `rows` arrivals each; returns the number of records.

    The files are a second apart by their times, so that all systems read them in the same order. With `skew` keys are
    distributed by Zipf: key k as often as 1 / (k + 1)^skew.
    """
    case = CASES[query]
    skewed = {} if skew is None else {"keys": "zipf", "zipf_s": skew}
    generator = case.generator(**{"seed": seed, "rate": rate, **case.arguments(files * rows), **skewed})
    begin, total = 1_700_000_000, 0
    for stream, columns in case.streams.items():
        splits = case.splits(generator, stream)
        (directory / stream).mkdir(parents=True)
        for number in range(files):
            arrivals = {"start": number * rows, "stop": (number + 1) * rows}
            made = pa.Table.from_batches(splits.read(arrivals, columns.split()))
            file = directory / stream / f"part-{number:05d}.parquet"
            pq.write_table(made, file, row_group_size=-(-made.num_rows // ROW_GROUPS), compression="snappy")
            os.utime(file, (begin + number, begin + number))
            total += made.num_rows
    return total
