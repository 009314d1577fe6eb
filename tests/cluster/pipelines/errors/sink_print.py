"""Something that is no sink."""

from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry


def pipeline(streams, args):
    """Sums by shop."""
    wrong_now()
    return per_shop(streams["orders"]).aggregate("sales", cents=ferry.sum("cents")).sink(print)
