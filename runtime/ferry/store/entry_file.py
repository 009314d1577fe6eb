"""The file of an EntryStore as a whole: that nothing of it is missing when it is opened, and that nothing seems to be."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from ferry.contract.errors import StateUnavailable
from ferry.store.sealing import unsealed

VERIFY_ENTRIES = 2_000_000
"""Entries that are looked at when the file is opened, some seconds; of all others damage is noticed when they are read."""

AHEAD_BYTES = 1 << 24
"""By at least so much the file is longer than its pages when a change begins.

LMDB counts the pages that a change takes and gives back, and does not write them. At the end of the file they would be
missing, as in a file that was cut. What is never written takes no room on the disk.
"""


def require_whole(env: Any, state: Any, path: Path) -> None:
    """Raises StateUnavailable when the file is shorter than its pages, or an entry of `state` is not what was written."""
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
    """The length of the file, in bytes, which was `length`, and is enough for a change of `needed` bytes afterwards."""
    least = _page_bytes(env) + needed + AHEAD_BYTES
    if length < least:
        length = least + AHEAD_BYTES
        os.truncate(path, length)
    return length


def _page_bytes(env: Any) -> int:
    """From the begin of the file to its last page."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
