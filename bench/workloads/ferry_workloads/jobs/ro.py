"""RO (Slash): how often each key occurs, without a window.

Output: key, num; of the keys that occurred, when the input has ended.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, KeysSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The keys."""
    return {"keys": arguments.paced(KeysSplits(arguments.generator(KeysGenerator, args)), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count per key."""
    return streams["keys"].key_by("key").aggregate("counts", num=ferry.count()).sink(ferry.parquet("ro"))
