"""An argument that the job file does not give."""

from orders import per_shop, sources  # noqa: F401

import ferry


def pipeline(streams, args):
    """Sums by shop."""
    column = {"euros": "cents"}[args.get("currency", "dollars")]
    sales = per_shop(streams["orders"]).aggregate("sales", total=ferry.sum(column))
    return sales.sink(ferry.parquet("sales"))
