"""A function that returns other columns as soon as it meets an order that costs nothing."""

from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry


def free(batch):
    """Leaves a column out."""
    if 0 not in batch.column("cents").to_pylist():
        return batch
    wrong_now()
    return batch.drop_columns(["cents"])


def pipeline(streams, args):
    """Sums by shop."""
    priced = streams["orders"].map_batches(free)
    return per_shop(priced).aggregate("sales", cents=ferry.sum("cents")).sink(ferry.parquet("sales"))
