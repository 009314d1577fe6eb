"""UniMiCo Q2: with each reading of S the sum of the last five.

Output: seq, ts, n, total.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.unimico import UnimicoGenerator, UnimicoSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The first stream of UniMiCo."""
    return {"s": arguments.paced(UnimicoSplits(arguments.generator(UnimicoGenerator, args), "s"), args)}


def of_one_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with a constant key column."""
    return rows.append_column("all", pa.array([0] * rows.num_rows, pa.int64()))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """A window of five rows, of all readings."""
    delay = arguments.delay(args, arguments.generator(UnimicoGenerator, args))
    last = streams["s"].map_batches(of_one_key).event_time("ts", delay=delay).key_by("all").window(ferry.rows(5))
    sums = last.aggregate("uq2_last_five", ["seq", "ts"], order="seq", n=ferry.count(), total=ferry.sum("m"))
    return sums.sink(ferry.parquet("uq2"))
