"""Writes files at the pace of the clock: `python -m bench.parts.latency.feed_files DIRECTORY KIND RATE BEGIN`.

Until it is killed. Record i is due at BEGIN + i / RATE, whoever reads, and its key is i modulo `KEYS`. A file comes each
`PERIOD` seconds, with what has become due since the one before it; it gets its name, which says what records it holds, when
it is whole.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from bench.parts.latency.feed import KEYS

PERIOD = 0.1
COLUMNS = pa.schema([("k", pa.int64()), ("t", pa.int64())])
"""Key; when it was created, in milliseconds since 1970."""

WRITERS = {
    "parquet": parquet.write_table,
    "csv": partial(csv.write_csv, write_options=csv.WriteOptions(include_header=False)),
}


def write(directory: Path, kind: str, numbers: range, rate: int, begin: float) -> None:
    """A file of these records."""
    i, whole = np.arange(numbers.start, numbers.stop), directory / f"{numbers.start}_{numbers.stop}.{kind}"
    hidden = whole.with_name(f".{whole.name}")
    times = np.floor((begin + i / rate) * 1000).astype(np.int64)
    WRITERS[kind](pa.table([i % KEYS, times], schema=COLUMNS), hidden)
    hidden.rename(whole)


def numbers_in(name: str) -> np.ndarray:
    """Records of the file of this name."""
    first, behind = Path(name).stem.split("_")
    return np.arange(int(first), int(behind))


def main() -> None:
    """Write on and on."""
    directory, kind, rate, begin = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    written = 0
    while True:
        due = int((time.time() - begin) * rate)
        if due > written:
            write(directory, kind, range(written, due), rate, begin)
            written = due
        time.sleep(PERIOD - (time.time() - begin) % PERIOD)


if __name__ == "__main__":
    main()
