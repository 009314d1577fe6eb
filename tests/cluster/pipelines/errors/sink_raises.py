"""A function behind foreach_epoch that raises."""

from orders import per_shop, sources, wrong_now  # noqa: F401

import ferry


def store(epoch, generation, rows):
    """Into a table that has another name for a column."""
    table = {"shop": None, "total": None}
    for row in rows.toLocalIterator():
        wrong_now()
        table[row.shop] = row.totl


def pipeline(streams, args):
    """Sums by shop."""
    sales = per_shop(streams["orders"]).aggregate("sales", total=ferry.sum("cents"))
    return sales.sink(ferry.foreach_epoch(store))
