"""Reads a checkpoint for a member of a group, in load order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ferry.contract.manifest import StoredFile
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.copies import Copies
from ferry.durable.parts import read_parts

AHEAD_PARTS = 16
"""Number of parts fetched ahead: reading waits for the store, loading for the processor."""


def read_checkpoint(
    url: str, vnodes: Iterable[int], copies: Copies | None = None
) -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
    """Rows of these virtual nodes in the checkpoint at `url`, newest files first.

    Raises Unreachable, Missing or Corrupt, and Refusal when the manifest does not exist.
    """
    catalog = CheckpointCatalog.at(url)
    wanted = dict.fromkeys(vnodes)
    mine = [(chain.files, [v for v in chain.vnodes if v in wanted]) for chain in catalog.find(url).chains]
    # Chains of one leader end with the same changes: a file with the same position from the end in several chains is
    # read once.
    for k in range(max((len(files) for files, chosen in mine if chosen), default=0)):
        named: dict[StoredFile, list[int]] = {}
        for files, chosen in mine:
            if chosen and len(files) > k:
                named.setdefault(files[-1 - k], []).extend(chosen)
        for file, chosen in named.items():
            for batch in read_parts(catalog.location, file, np.array(chosen, np.int64), copies):
                yield file, batch


def ahead(parts: Iterator[tuple[StoredFile, pa.RecordBatch]]) -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
    """The same parts, fetched on a thread that is some parts ahead; it ends with the reader. Raises the errors of
    `parts`."""
    fetched: queue.Queue[tuple[StoredFile, pa.RecordBatch] | BaseException | None] = queue.Queue(AHEAD_PARTS)
    over = threading.Event()

    def fetch() -> None:
        try:
            for part in parts:
                fetched.put(part)
                if over.is_set():
                    return
            fetched.put(None)
        except BaseException as error:
            fetched.put(error)

    threading.Thread(target=fetch, name="fetch", daemon=True).start()
    try:
        while (item := fetched.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        over.set()
        while not fetched.empty():  # The fetching thread may wait for room.
            fetched.get()
