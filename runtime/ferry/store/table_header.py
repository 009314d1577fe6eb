"""The header of a slice's table file: some words, then an array for each property of the parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ferry.contract.errors import StateUnavailable
from ferry.store import mapped

MAGIC_NUMBER = 0x33454C4241545246
MAGIC_UNSEEDED = 0x32454C4241545246
"""of a table of an earlier version: its seed is 0. Earlier versions refuse a table with the other number."""
MAGIC_NUMBERS = (MAGIC_NUMBER, MAGIC_UNSEEDED)
MAGIC, PARTS, WIDTH, DIRTY, END, HEAP_BEGIN, HEAP_END, DROPS, DROPS_AGAIN, SEED, SEED_AGAIN = range(11)
"""Indexes of words. The number of the last drop and the seed are there twice: a damaged number differs from its copy."""
HEADER_WORDS = 16
PARTS_ARRAYS = 4
"""Places of regions, rows, bytes of keys, sums of rows."""


def header_bytes(parts: int) -> int:
    """Bytes before the first row."""
    size = 8 * (HEADER_WORDS + PARTS_ARRAYS * parts)
    return -(-size // mapped.PAGE_BYTES) * mapped.PAGE_BYTES


def require_whole(path: Path, heap: Path | None, width: int, virtual_nodes: int, last_drop: int) -> None:
    """Raise StateUnavailable unless the words are plausible; before this check no size from them is used."""
    if not path.exists():
        raise StateUnavailable(f"{path}: it is missing")
    size = path.stat().st_size
    heap_size = heap.stat().st_size if heap is not None and heap.exists() else 0
    with path.open("rb") as file:
        words = np.frombuffer(file.read(8 * HEADER_WORDS).ljust(8 * HEADER_WORDS, b"\0"), np.int64).tolist()
    parts = words[PARTS]
    whole = (
        words[MAGIC] in MAGIC_NUMBERS
        and (words[MAGIC] == MAGIC_NUMBER) == (words[SEED] != 0)
        and words[SEED] == words[SEED_AGAIN]
        and parts >= virtual_nodes
        and parts & (parts - 1) == 0
        and words[WIDTH] == width
        and words[DIRTY] in (0, 1)
        and 0 <= words[END] <= (size - header_bytes(parts)) // (8 * width)
        and 0 <= words[HEAP_BEGIN] <= words[HEAP_END] <= heap_size
        and words[DROPS] <= last_drop
        and (words[DROPS] == words[DROPS_AGAIN] or words[DIRTY] == 1)
    )
    if not whole:
        raise StateUnavailable(f"{path}: its header is damaged; it has {size} bytes, its keys {heap_size}")
