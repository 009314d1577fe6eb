"""NBQ5 on bids that come fast for a while and then slowly, counted by a function that takes its time in the instances.

`busy` records a second for `seconds`, then `calm`. What a state costs is slept, so that no other process has a part in it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import ferry
from ferry_workloads import paced
from ferry_workloads.jobs import arguments, nbq5
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits

OWN = ("busy", "calm", "seconds", "each")


def of_generator(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in OWN}


@dataclass
class SlowCount(ferry.Aggregator):
    """How many records there are; each state that is merged takes so many seconds."""

    each: float
    state = pa.schema([("n", pa.int64())])
    output = pa.schema([("num", pa.int64())])
    commutative = True

    def update(self, rows: Any, begins: Any) -> dict[str, Any]:
        return {"n": np.diff(np.append(begins, rows.num_rows))}

    def merge(self, states: Any, begins: Any) -> dict[str, Any]:
        time.sleep(self.each * states.num_rows)
        return {"n": np.add.reduceat(states.column("n").to_numpy(), begins)}

    def result(self, states: Any) -> dict[str, Any]:
        return {"num": states.column("n")}


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids, as the clock says."""
    bids = nbq5.sources(spark, of_generator(args))["bid"]
    assert isinstance(bids, NexmarkSplits)
    profile = [(args["seconds"], args["busy"]), (3600, args["calm"])]
    return {"bid": paced(bids, profile=profile)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """As NBQ5."""
    made = arguments.generator(NexmarkGenerator, of_generator(args))
    bids = streams["bid"].event_time("ts", delay=f"{made.disorder_bound_ms()}ms").key_by("auction")
    counts = bids.window(ferry.sliding("1m", "10s")).aggregate("counts", SlowCount(args["each"]))
    return counts.sink(ferry.parquet("nbq5"))
