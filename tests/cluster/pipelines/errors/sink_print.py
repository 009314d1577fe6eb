"""Something that is no sink."""

from orders import per_shop, sources  # noqa: F401

import ferry


def pipeline(streams, args):
    """Sums by shop."""
    return per_shop(streams["orders"]).aggregate("sales", cents=ferry.sum("cents")).sink(print)
