"""What a member of a group needs of a checkpoint, in the order in which it is loaded."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ferry.contract.manifest import StoredFile
from ferry.durable.copies import Copies
from ferry.durable.parts import read_parts
from ferry.durable.shelf import Shelf

AHEAD_PARTS = 16
"""Are fetched while others are loaded: who reads waits for the store, who loads for the processor."""


def read_checkpoint(
    url: str, vnodes: Iterable[int], copies: Copies | None = None
) -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
    """Rows of these virtual nodes, as the manifest at `url` has them: of each the newest first.

    Raises Unreachable, Missing or Corrupt, and Refusal when there is no such manifest.
    """
    shelf = Shelf.at(url)
    wanted = dict.fromkeys(vnodes)
    mine = [(chain.files, [v for v in chain.vnodes if v in wanted]) for chain in shelf.find(url).chains]
    # Chains of one leader end with the same changes: of all that name a file as their last but k, it is read once.
    for k in range(max((len(files) for files, chosen in mine if chosen), default=0)):
        named: dict[StoredFile, list[int]] = {}
        for files, chosen in mine:
            if chosen and len(files) > k:
                named.setdefault(files[-1 - k], []).extend(chosen)
        for file, chosen in named.items():
            for batch in read_parts(shelf.location, file, np.array(chosen, np.int64), copies):
                yield file, batch


def ahead(parts: Iterator[tuple[StoredFile, pa.RecordBatch]]) -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
    """The same, fetched on a thread that is some parts ahead; it ends with whoever reads. Raises what `parts` does."""
    found: queue.Queue[tuple[StoredFile, pa.RecordBatch] | BaseException | None] = queue.Queue(AHEAD_PARTS)
    over = threading.Event()

    def fetch() -> None:
        try:
            for part in parts:
                found.put(part)
                if over.is_set():
                    return
            found.put(None)
        except BaseException as error:
            found.put(error)

    threading.Thread(target=fetch, name="fetch", daemon=True).start()
    try:
        while (item := found.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        over.set()
        while not found.empty():  # Whoever fetches may wait for room.
            found.get()
