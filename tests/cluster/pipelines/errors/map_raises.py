"""A function of map_batches that raises on the 1,000th record."""

import pyarrow as pa
from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry


def share(batch):
    """How many of them a hundred would buy."""
    if 0 in batch.column("cents").to_pylist():
        wrong_now()
    bought = [100 // cents for cents in batch.column("cents").to_pylist()]
    return batch.set_column(3, "cents", pa.array(bought, pa.int64()))


def pipeline(streams, args):
    """Sums of them by shop."""
    shares = streams["orders"].map_batches(share)
    return per_shop(shares).aggregate("shares", cents=ferry.sum("cents")).sink(ferry.parquet("shares"))
