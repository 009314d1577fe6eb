"""A StatefulProcessor of Spark that yields something else than rows."""

from orders import sources, wrong_now  # noqa: F401
from pyspark.sql.streaming import StatefulProcessor

import ferry


class Count(StatefulProcessor):
    """Orders by shop."""

    def init(self, handle):
        """Its state."""
        self.count = handle.getValueState("count", "n INT")

    def handleInputRows(self, key, rows, timerValues):
        """One row, or so it should be."""
        n = (self.count.get() or (0,))[0] + sum(1 for _ in rows)
        self.count.update((n,))
        wrong_now()
        yield (key[0], n)

    def close(self):
        """Nothing."""


def pipeline(streams, args):
    """The counts."""
    orders = streams["orders"].event_time("ts").key_by("shop")
    counts = orders.transform_with_state("counts", Count(), "shop STRING, n INT", "None")
    return counts.sink(ferry.parquet("counts"))
