"""NBQ5 on bids that come fast for a while and then slowly: `busy` records a second for `seconds`, then `calm`."""

from __future__ import annotations

from typing import Any

from ferry import workloads
from ferry.workloads.jobs import nbq5
from ferry.workloads.nexmark import NexmarkSplits

OWN = ("busy", "calm", "seconds")


def of_generator(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in args.items() if name not in OWN}


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The bids, as the clock says."""
    bids = nbq5.sources(spark, of_generator(args))["bid"]
    assert isinstance(bids, NexmarkSplits)
    profile = [(args["seconds"], args["busy"]), (3600, args["calm"])]
    return {"bid": workloads.paced(bids, profile=profile)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """As ever."""
    return nbq5.pipeline(streams, of_generator(args))
