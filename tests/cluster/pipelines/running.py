"""How often each key has occurred so far, after every epoch for the keys that occurred in it."""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, KeysSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    return {"keys": KeysSplits(arguments.generator(KeysGenerator, args))}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    counts = streams["keys"].key_by("key").aggregate("counts", num=ferry.count(), emit=ferry.changes())
    return counts.sink(ferry.parquet("running"))
