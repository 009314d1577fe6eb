"""What a member of a group needs of a checkpoint, in the order in which it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from ferry.contract.manifest import StoredFile
from ferry.durable.parts import read_parts
from ferry.durable.shelf import Shelf


def read_checkpoint(url: str, vnodes: Iterable[int]) -> Iterator[tuple[StoredFile, pa.RecordBatch]]:
    """Rows of these virtual nodes, as the manifest at `url` has them: of each the newest first.

    Raises Unreachable, Missing or Corrupt, and Refusal when there is no such manifest.
    """
    shelf = Shelf.at(url)
    wanted = dict.fromkeys(vnodes)
    for chain in shelf.find(url).chains:
        mine = np.array([v for v in chain.vnodes if v in wanted], np.int64)
        if mine.size:
            for file in reversed(chain.files):
                for batch in read_parts(shelf.location, file, mine):
                    yield file, batch
