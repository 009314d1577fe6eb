"""Sinks straight behind each source that Ferry has, and SQL behind those that may have malformed records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry

SALES = pa.schema([pa.field("n", pa.int64(), nullable=False), ("shop", pa.string()), ("ts", pa.int64())])
PAGE = 40


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The same sales from files, a table and a function; for a poller up to `sales`."""
    folder = args["folder"]

    def page(first: int) -> tuple[list[dict[str, Any]], int]:
        with open(f"{folder}/calls", "a") as calls:
            calls.write(f"{first}\n")
        last = min(first + PAGE, args["sales"])
        return [{"n": n, "shop": f"s{n % 7}", "ts": n * 100} for n in range(first, last)], last

    return {
        "json": ferry.json_files(f"{folder}/json", SALES, finite=True),
        "csv": ferry.csv_files(f"{folder}/csv", SALES, finite=True, delimiter=";"),
        "table": ferry.table(f"sqlite:///{folder}/sales.db", "sales", SALES, column="n", finite=True),
        "poll": ferry.poll(page, SALES, f"{folder}/journal", every="50ms", first=0, finite=True),
    }


def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every second sale."""
    return batch.filter(pc.equal(pc.bit_wise_and(batch["n"], 1), 1))


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Each source to a sink as it is; with `sql`, also through Spark to a sink and to an operator."""
    outputs = [stream.sink(ferry.parquet(name)) for name, stream in streams.items()]
    outputs.append(streams["csv"].map_batches(odd).sink(ferry.parquet("odd")))
    outputs.append(streams["json"].transform(lambda rows: rows.where("n % 2 = 1")).sink(ferry.parquet("odd_by_sql")))
    if args["sql"]:
        timed = streams["csv"].transform(lambda rows: rows.where("n % 2 = 1")).event_time("ts", ahead=None)
        counts = timed.key_by("shop").window(ferry.tumbling("1s")).aggregate("counts", sales=ferry.count())
        outputs.append(counts.sink(ferry.parquet("counts")))
    return outputs
