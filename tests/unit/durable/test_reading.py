"""Parts of a checkpoint that are fetched while others are loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from ferry.contract.errors import Unreachable
from ferry.contract.manifest import StoredFile
from ferry.durable.reading import AHEAD_PARTS, ahead

FILE = StoredFile("f", 1, 1, 0, "scan", 0, 1)
PARTS = [(FILE, pa.record_batch({"n": [i]})) for i in range(5 * AHEAD_PARTS)]


def threads() -> int:
    return sum(one.name == "fetch" for one in threading.enumerate())


def over() -> bool:
    end = time.monotonic() + 10
    while threads() and time.monotonic() < end:
        time.sleep(0.005)
    return not threads()


def test_they_come_in_their_order_and_once() -> None:
    assert [*ahead(iter(PARTS))] == PARTS
    assert over()


def test_what_is_fetched_is_bounded() -> None:
    fetched = []

    def parts() -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
        for part in PARTS:
            fetched.append(part)
            yield part

    found = ahead(parts())
    next(found)
    time.sleep(0.1)
    assert AHEAD_PARTS <= len(fetched) <= AHEAD_PARTS + 2
    found.close()  # type: ignore[attr-defined]
    assert over() and len(fetched) < len(PARTS), "nobody reads on"


def test_a_store_that_is_gone_is_heard_of_behind_what_it_gave() -> None:
    def parts() -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
        yield from PARTS[:3]
        raise Unreachable("gone")

    found = ahead(parts())
    assert [next(found) for _ in range(3)] == PARTS[:3]
    with pytest.raises(Unreachable, match="gone"):
        next(found)
    assert over()
