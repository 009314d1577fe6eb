"""Ferry's own splits in and out of Spark: batch functions before and after SQL, and after an operator; printed rows.

Sales (Parquet files) without returns get the region of their shop from a table beside the stream, and their tax from a batch
function behind that SQL; they are summed per region in windows of 10 s, and of what fires a batch function takes the mean.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ferry

REGIONS = {0: "north", 1: "south", 2: "south", 3: "west"}
"""By shop; the others are closed."""


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {"sales": ferry.parquet_files(args["sales"], finite=True)}


def kept(sales: pa.RecordBatch) -> pa.RecordBatch:
    """No returns."""
    return sales.filter(pc.greater(sales.column("cents"), 0))


def placed(sales: Any) -> Any:
    """The region of the shop, from a table."""
    shops = sales.sparkSession.createDataFrame(list(REGIONS.items()), "shop long, region string")
    return sales.join(shops, "shop").select("region", "ts", "cents")


def taxed(sales: pa.RecordBatch) -> pa.Table:
    """A fifth of each sale."""
    return pa.table(sales).append_column("tax", pc.divide(sales.column("cents"), 5))


def shown(sums: pa.RecordBatch) -> pa.Table:
    """The mean instead of the sum."""
    mean = pc.divide(sums.column("total"), sums.column("num"))
    return pa.table(sums).append_column("mean", mean).drop_columns(["window_start", "total"])


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Sums and means per region, and about how many prices there were."""
    sales = streams["sales"].map_batches(kept).transform(placed).map_batches(taxed)
    sums = (
        sales.event_time("ts", delay="5s").key_by("region").window(ferry.tumbling("10s"))
        .aggregate("sums", num=ferry.count(), total=ferry.sum("cents"), tax=ferry.sum("tax"),
                   prices=ferry.approx_count_distinct("cents"))
    )  # fmt: skip
    return sums.map_batches(shown).sink(ferry.console(limit=2))
