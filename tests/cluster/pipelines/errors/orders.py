"""What the broken programs read: 3,000 orders, of which the 1,000th costs nothing. And where they say when they go wrong."""

import os
import time

import pyarrow as pa

import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64()), ("number", pa.int64()), ("cents", pa.int64())])


def sources(spark, args):
    """Files of JSON, read to their end."""
    return {"orders": ferry.json_files(args["directory"], ORDERS, finite=True)}


def per_shop(orders):
    """A stream by shop, in windows of ten seconds."""
    return orders.event_time("ts").key_by("shop").window(ferry.tumbling("10s"))


def wrong_now():
    """The program goes wrong in its next statement: `tests.cluster.errors` measures from then."""
    with open(os.environ["WRONG_AT"], "a") as file:
        file.write(f"{time.time()}\n")
