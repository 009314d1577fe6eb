"""Writes the records of a workload once, as Parquet files that Ferry and the peer both read.

The records are those of Ferry's generators, which equal the oracle's generator value for value.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from ferry.workloads.nexmark import NexmarkGenerator
from ferry.workloads.ysb import YsbGenerator

ROW_GROUPS = 2
"""Per file, so that one file can be shared by two tasks."""

STREAMS: dict[str, tuple[Any, str, str]] = {
    "nbq5": (NexmarkGenerator, "bid", "auction"),
    "ysb": (YsbGenerator, "ysb", "campaign_id"),
}
"""Query -> generator, its stream, and the key of the result."""


def write(query: str, directory: Path, files: int, rows: int, seed: int, rate: float) -> int:
    """Write `files` files of about `rows` arrivals each; returns the number of records (NBQ5 reads only bids).

    The files are a second apart by their times, so that both systems read them in the same order.
    """
    kind, stream, _ = STREAMS[query]
    generator = kind(seed=seed, rate=rate)
    directory.mkdir(parents=True)
    begin, total = 1_700_000_000, 0
    for number in range(files):
        made = generator.read(stream, number * rows, (number + 1) * rows)
        file = directory / f"part-{number:05d}.parquet"
        with pq.ParquetWriter(file, made.schema, compression="snappy") as writer:
            writer.write_batch(made, row_group_size=-(-made.num_rows // ROW_GROUPS))
        os.utime(file, (begin + number, begin + number))
        total += made.num_rows
    return total
