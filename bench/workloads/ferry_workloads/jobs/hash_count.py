"""Hash-count (Megaphone): the count of each key of the domain, with every key preloaded once.

Output: key, num; of every key of the domain, when the input has ended.
"""

from __future__ import annotations

from typing import Any

import ferry
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, PreloadedKeysSplits


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The domain, and then the keys."""
    return {"keys": arguments.paced(PreloadedKeysSplits(arguments.generator(KeysGenerator, args)), args)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count per key."""
    return streams["keys"].key_by("key").aggregate("counts", num=ferry.count()).sink(ferry.parquet("hash_count"))
