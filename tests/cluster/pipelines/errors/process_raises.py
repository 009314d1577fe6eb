"""A process that raises for one key."""

from dataclasses import dataclass

import pyarrow as pa
from orders import sources, wrong_now  # noqa: F401

import ferry


@dataclass
class Shares(ferry.Process):
    """How often each shop's last order fits into a budget."""

    budget: int
    tables = {"last": ferry.StateTable(pa.schema([("cents", pa.int64())]))}
    output = pa.schema([("shop", pa.string()), ("times", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        cents = work.rows().column("cents").to_pylist()
        if 0 in cents:
            wrong_now()
        times = [self.budget // one for one in cents]
        key = work.key_of()
        work.emit(key, {"shop": work.keys.column("shop").take(pa.array(key)), "times": times})


def pipeline(streams, args):
    """What comes of it."""
    orders = streams["orders"].event_time("ts").key_by("shop")
    return orders.process("shares", Shares(1000)).sink(ferry.parquet("shares"))
