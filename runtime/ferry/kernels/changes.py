"""Changes of a process's state as rows, for deltas and snapshots. Pure: arrays in, batches out."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ferry.kernels.grouping import Hashes

PUT, REMOVE, EMIT = 0, 1, 2
"""Effect of a row: set an entry, remove one, or keep rows until their epoch is released."""

EVENT_TIMERS, PROCESSING_TIMERS = 254, 255
"""Tables of timers: the entry is the time, as an integer."""

CHANGES = pa.schema(
    [("hash", pa.uint64()), ("change", pa.int8()), ("place", pa.binary()), ("value", pa.binary())],
)
"""Sorted by hash. The place of rows to EMIT is an `emission`, their value an Arrow message; else see `places`."""

_EMISSION = struct.Struct(">QII")


def emission(epoch: int, number: int, rows: int) -> bytes:
    """Place of rows to EMIT: their epoch, their number in the epoch, and the number of rows."""
    return _EMISSION.pack(epoch, number, rows)


def changes_of(hashes: Hashes, change: int, places: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
    """Rows with the same effect."""
    column = pa.array(np.full(hashes.size, change, np.int8))
    arrays = [pa.array(hashes), column, pa.array(places, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGES)
