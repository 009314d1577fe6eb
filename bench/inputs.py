"""Writes the records of a workload once, as Parquet files that Ferry and the peer both read.

The records are those of Ferry's generators, which equal the oracle's generator value for value.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ferry.workloads.nexmark import NexmarkGenerator
from ferry.workloads.ysb import YsbGenerator

ROW_GROUPS = 2
"""Per file, so that one file can be shared by two tasks."""


@dataclass(frozen=True, slots=True)
class Case:
    """One query of the throughput benchmark and what it reads."""

    generator: Any
    stream: str
    key: str
    """of the result"""
    window_ms: int
    arguments: dict[str, Any] = field(default_factory=dict)
    """of the generator, beside seed and rate"""
    windows: int | None = None
    """How many windows the whole input spans; None: as many as `--rate` makes."""


CASES = {
    "nbq5": Case(NexmarkGenerator, "bid", "auction", 60_000),
    # As Slash runs it: ten million campaigns, the campaign's id in the record, windows of ten minutes.
    "ysb": Case(YsbGenerator, "ysb", "campaign_id", 600_000, {"campaigns": 10_000_000, "ads_per_campaign": 1}, 2),
    # As the original suite does: a thousand counters, so nothing but the scan is measured.
    "ysb-100": Case(YsbGenerator, "ysb", "campaign_id", 10_000, {"campaigns": 100, "ads_per_campaign": 10}),
}


def write(query: str, directory: Path, files: int, rows: int, seed: int, rate: float) -> int:
    """Write `files` files of about `rows` arrivals each; returns the number of records (NBQ5 reads only bids).

    The files are a second apart by their times, so that both systems read them in the same order.
    """
    case = CASES[query]
    if case.windows is not None:
        rate = files * rows / (case.windows * case.window_ms / 1000)
    generator = case.generator(seed=seed, rate=rate, **case.arguments)
    directory.mkdir(parents=True)
    begin, total = 1_700_000_000, 0
    for number in range(files):
        made = generator.read(case.stream, number * rows, (number + 1) * rows)
        file = directory / f"part-{number:05d}.parquet"
        with pq.ParquetWriter(file, made.schema, compression="snappy") as writer:
            writer.write_batch(made, row_group_size=-(-made.num_rows // ROW_GROUPS))
        os.utime(file, (begin + number, begin + number))
        total += made.num_rows
    return total
