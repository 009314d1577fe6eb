"""A module that is not installed."""

import polarz  # noqa: F401
from orders import per_shop, sources  # noqa: F401

import ferry


def pipeline(streams, args):
    """Sums by shop."""
    sales = per_shop(streams["orders"]).aggregate("sales", cents=ferry.sum("cents"))
    return sales.sink(ferry.parquet("sales"))
