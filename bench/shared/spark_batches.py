"""How old records of Spark are: its checkpoint says which records each batch had, and when it had ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract.latency import LatencyHistogram
from ferry.kernels.ages import ages

SPARK = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""All batches stay in the checkpoint."""

BACKLOG_GONE = "8"
"""The first batch takes many seconds, and those after it have what came meanwhile."""


def aged(created: np.ndarray, now: float) -> LatencyHistogram:
    """Of records that were created at these times and have come to the sinks now (all in seconds since 1970)."""
    counts = ages(pa.array(np.floor(created * 1000).astype(np.int64)), int(now * 1000))
    return LatencyHistogram({int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)})


def batches(checkpoint: Path) -> Iterator[tuple[float, dict[str, Any]]]:
    """When each one had ended (seconds since 1970), and the offset of its only source up to which it had read."""
    for number in sorted(int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit()):
        offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
        yield (checkpoint / "commits" / str(number)).stat().st_mtime, offset
