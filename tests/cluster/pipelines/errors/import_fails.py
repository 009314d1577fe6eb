"""A module that is not installed."""

from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry

wrong_now()
import polarz  # noqa: E402, F401


def pipeline(streams, args):
    """Sums by shop."""
    sales = per_shop(streams["orders"]).aggregate("sales", cents=ferry.sum("cents"))
    return sales.sink(ferry.parquet("sales"))
