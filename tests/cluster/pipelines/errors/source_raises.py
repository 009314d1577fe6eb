"""A source of the user's own that fails where it reads."""

import pyarrow as pa
from orders import wrong_now

import ferry


class Poller:
    """An API of pages, the second of which is not there."""

    def schema(self):
        """Of a record."""
        return pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("cents", pa.int64())])

    def start(self):
        """Before the first page."""
        return 0

    def latest(self, start, rows):
        """One page more."""
        return min(start + 1, 3)

    def ended(self, position):
        """Behind the last page."""
        return position >= 3

    def plan(self, start, end, tasks):
        """A page for each task."""
        return [{"page": page} for page in range(start, end)]

    def read(self, split, columns):
        """The records of a page."""
        pages = {0: ["north", "south"], 2: ["east"]}
        if split["page"] not in pages:
            wrong_now()
        shops = pages[split["page"]]
        n = len(shops)
        table = pa.table({"shop": shops, "ts": [0] * n, "cents": [1] * n}, self.schema())
        yield from table.select(columns).to_batches()


def sources(spark, args):
    """The API."""
    return {"orders": Poller()}


def pipeline(streams, args):
    """Sums by shop."""
    orders = streams["orders"].event_time("ts").key_by("shop").window(ferry.tumbling("10s"))
    return orders.aggregate("sales", cents=ferry.sum("cents")).sink(ferry.parquet("sales"))
