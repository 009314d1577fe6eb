"""What shops sold, to tables of Delta Lake and PostgreSQL: closed windows, and totals that change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("cents", pa.int64())])


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """What there was when the job began."""
    return {"orders": ferry.parquet_files(args["orders"], ORDERS, finite=True)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Two operators, three sinks."""
    orders = streams["orders"].event_time("ts", delay="1s").key_by("shop")
    sales = orders.window(ferry.tumbling("1s")).aggregate("sales", orders=ferry.count(), cents=ferry.sum("cents"))
    totals = streams["orders"].key_by("shop").aggregate("totals", cents=ferry.sum("cents"), emit=ferry.changes())
    return [
        sales.sink(ferry.delta("sales")),
        sales.sink(ferry.postgres(args["dsn"], "sales")),
        totals.sink(ferry.postgres(args["dsn"], "totals", key="shop")),
    ]
