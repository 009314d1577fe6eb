"""Integrity of the file of an EntryStore: a file with missing pages is noticed when it is opened, and an intact one is
accepted."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from ferry.contract.errors import StateUnavailable
from ferry.store.sealing import unsealed

VERIFY_ENTRIES = 2_000_000
"""Number of entries that are checked at open, some seconds; damage of other entries is noticed when they are read."""

AHEAD_BYTES = 1 << 24
"""By at least this much the file is longer than its pages when a change begins.

LMDB counts pages that a change takes and frees again, without writing them. Such pages at the end of the file would
look like a truncated file. Unwritten pages take no room on the disk.
"""


def require_whole(env: Any, state: Any, path: Path) -> None:
    """Raises StateUnavailable when the file is shorter than its pages, or an entry of `state` is damaged."""
    pages = _page_bytes(env)
    if (size := path.stat().st_size) < pages:
        raise StateUnavailable(f"{path}: it has {size} bytes, its pages {pages}; warm this instance again")
    with env.begin(db=state) as txn, txn.cursor() as cursor:
        before, count = b"", 0
        for key, value in islice(cursor, VERIFY_ENTRIES):
            unsealed(key[6:], value)
            if key <= before:
                raise StateUnavailable(f"{path}: entries are not in order; warm this instance again")
            before, count = key, count + 1
        if count < min(VERIFY_ENTRIES, txn.stat(state)["entries"]):
            raise StateUnavailable(f"{path}: entries are missing; warm this instance again")


def lengthened(env: Any, length: int, path: Path, needed: int) -> int:
    """The new length of the file in bytes, formerly `length`: enough for a change of `needed` bytes."""
    least = _page_bytes(env) + needed + AHEAD_BYTES
    if length < least:
        length = least + AHEAD_BYTES
        os.truncate(path, length)
    return length


def _page_bytes(env: Any) -> int:
    """Bytes from the begin of the file to its last page."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
