"""An argument that the job file does not give."""

from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry


def pipeline(streams, args):
    """Sums by shop."""
    wrong_now()
    column = {"euros": "cents"}[args.get("currency", "dollars")]
    sales = per_shop(streams["orders"]).aggregate("sales", total=ferry.sum(column))
    return sales.sink(ferry.parquet("sales"))
