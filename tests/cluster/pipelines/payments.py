"""A process of two inputs, and an aggregate of what it emits: orders that were paid within a time, and those that were not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ferry


@dataclass
class Paid(ferry.Process):
    """An order is paid by a payment up to `hold` after it, whichever is read first; else a timer says that it is not."""

    hold: int
    tables = {
        "orders": ferry.StateTable(pa.schema([("ts", pa.int64()), ("cents", pa.int64())])),
        "payments": ferry.StateTable(pa.schema([("ts", pa.int64())])),
    }
    output = pa.schema([("what", pa.string()), ("at", pa.int64()), ("cents", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        orders, payments = work.key_of(0), work.key_of(1)
        work.put("orders", orders, {"ts": work.times(0), "cents": work.rows(0).column("cents")})
        work.put("payments", payments, {"ts": work.times(1)})
        work.set_timer(orders, work.times(0) + self.hold)
        order, payment = work.get("orders"), work.get("payments")
        due, paid = (one.column("ts").fill_null(-(10**12)).to_numpy(zero_copy_only=False) for one in (order, payment))
        known = np.array(order.column("ts").is_valid()) & np.array(payment.column("ts").is_valid())
        now = np.zeros(work.count, bool)
        now[orders] = now[payments] = True
        good = known & (paid <= due + self.hold)
        self._emit(work, np.flatnonzero(good & now), "paid", np.maximum(due, paid), order)
        keys, _ = work.timers()
        self._emit(work, keys[~good[keys]], "unpaid", due + self.hold, order)

    def _emit(self, work: ferry.Work, keys: np.ndarray, what: str, at: np.ndarray, order: pa.RecordBatch) -> None:
        cents = order.column("cents").take(pa.array(keys))
        work.emit(keys, {"what": [what] * keys.size, "at": at[keys], "cents": cents})


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The files that are there when the job begins."""
    return {name: ferry.parquet_files(args[name], finite=True) for name in ("orders", "payments")}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """How many orders, and how much, was paid or not, by time."""
    orders, payments = (streams[name].event_time("ts", delay="0s") for name in ("orders", "payments"))
    made = orders.key_by("id").process("paid", Paid(args["hold"]), other=payments.key_by("order"))
    counted = (
        made.event_time("at").key_by("what").window(ferry.tumbling("10s"))
        .aggregate("sums", orders=ferry.count(), cents=ferry.sum("cents"))
    )  # fmt: skip
    return counted.sink(ferry.parquet("sums"))
