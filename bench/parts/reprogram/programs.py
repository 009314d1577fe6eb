"""The programs of Ferry, each a function; `text` is the file that is deployed.

SMQ: its counters for each map instance. NBQ5: bids per auction, a text of 224 bytes, with a state that is loaded first.
NBQ8: people with a text of 224 bytes, who are loaded first, and their auctions. The event time of both stands still, so
that no window fires and NBQ5's state keeps its size.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import ferry
from bench.parts.reprogram.case import NBQ8, SMQ
from bench.shared import bigstate
from bench.shared.paced_keys import CREATED, NUMBER, PacedKeys
from ferry_workloads.jobs import smq as counters

INSTANCES = 80
"""Map instances of SMQ, as in the paper."""

OPERATOR = {"smq": "smq_counters", "nbq5": "counts", "nbq8": "pairs"}

Batches = Callable[[pa.RecordBatch], pa.RecordBatch]


def text(program: str) -> str:
    """A file with this program."""
    here = "from bench.parts.reprogram.programs import"
    return f"{here} sources\n{here} {program} as pipeline\n"


def arguments(query: str, rate: int, keys: int) -> dict[str, Any]:
    """Of the job."""
    return {"query": query, "rate": rate, "keys": keys}


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The only stream of the query, by the clock."""
    if args["query"] == SMQ:
        return {"numbers": counters.sources(spark, _of_smq(args))["smq"]}
    return {"numbers": PacedKeys(int(args["keys"]), float(args["rate"]), numbered=args["query"] == NBQ8)}


def smq(streams: Any, args: dict[str, Any]) -> Any:
    """SMQ without a filter."""
    return _smq(streams["numbers"], args)


def smq_fifth(streams: Any, args: dict[str, Any]) -> Any:
    """Behind the paper's filter."""
    return _smq(streams["numbers"].map_batches(one_of(5)), args)


def smq_tenth(streams: Any, args: dict[str, Any]) -> Any:
    """Behind another version of it."""
    return _smq(streams["numbers"].map_batches(one_of(10)), args)


def nbq5(streams: Any, args: dict[str, Any]) -> Any:
    """Bids per auction in windows of 60 s every 10 s."""
    return _nbq5(streams["numbers"])


def nbq5_columns(streams: Any, args: dict[str, Any]) -> Any:
    """With one aggregate more: the sum of the event times, which are all equal, so it tells how many records it has had."""
    return _nbq5(streams["numbers"], total=ferry.sum("ts"))


def nbq8(streams: Any, args: dict[str, Any]) -> Any:
    """Pairs of people and their auctions in windows of 12 hours."""
    return _nbq8(streams["numbers"], args)


def nbq8_columns(streams: Any, args: dict[str, Any]) -> Any:
    """With one column more of an auction: its time of creation."""
    return _nbq8(streams["numbers"], args, created=CREATED)


def one_of(number: int) -> Batches:
    """A filter for the numbers that can be divided by this one."""

    def passing(records: pa.RecordBatch) -> pa.RecordBatch:
        return records.filter(pa.array(np.asarray(records.column("seq")) % number == 0))

    return passing


def _smq(numbers: Any, args: dict[str, Any]) -> Any:
    return counters.counted(OPERATOR["smq"], numbers, _of_smq(args)).sink(ferry.parquet("numbers"))


def _of_smq(args: dict[str, Any]) -> dict[str, Any]:
    return {"pace": args["rate"], "parallelism": INSTANCES}


def _nbq5(numbers: Any, **more: Any) -> Any:
    window = ferry.sliding(timedelta(seconds=60), timedelta(seconds=10))
    counts = (
        numbers.event_time("ts").key_by("key").window(window).aggregate(OPERATOR["nbq5"], num=ferry.count(), **more)
    )
    return counts.sink(ferry.parquet("numbers"))


def _nbq8(numbers: Any, args: dict[str, Any], **more: str) -> Any:
    """The first records are the people. Each later record is an auction of the person whose number is its key."""
    keys = int(args["keys"])

    def people(records: pa.RecordBatch) -> pa.RecordBatch:
        chosen = records.filter(pa.array(np.asarray(records.column(NUMBER)) < keys))
        return chosen.append_column("name", bigstate.texts(np.asarray(chosen.column("key"))))

    def auctions(records: pa.RecordBatch) -> pa.RecordBatch:
        return records.filter(pa.array(np.asarray(records.column(NUMBER)) >= keys))

    window = ferry.tumbling(timedelta(hours=12))
    persons = numbers.map_batches(people).event_time("ts").key_by("key").window(window)
    sellers = numbers.map_batches(auctions).event_time("ts").key_by("key")
    pairs = persons.join(OPERATOR["nbq8"], sellers, left={"name": "name"}, right={"auction": NUMBER, **more})
    return pairs.sink(ferry.parquet("numbers"))
