"""Immutable segments of rows: Arrow files of one batch sorted by hash, mapped when read.

Named `SEQUENCE.LEVEL.LABEL.arrow`; written under another name, then renamed. The schema's metadata says which labels a
segment contains and which older segments it replaces, so that a crash between the rename and their removal is harmless.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from ferry.contract.errors import Exhausted, StateUnavailable
from ferry.kernels import columns
from ferry.kernels.grouping import Ints
from ferry.store import mapped

_METADATA = b"ferry"
_LABEL_CHARACTERS = 120
"""Of the label, in the file name; the whole label is in the metadata."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file, open; `batch` looks into the mapped file and stays valid when it is unlinked."""

    path: Path
    sequence: int
    level: int
    labels: tuple[str, ...]
    replaces: tuple[str, ...]
    last_slice: int
    """greatest slice that it, or a segment it replaces, had rows of"""
    batch: pa.RecordBatch
    offsets: Ints
    """rows of virtual node v are [offsets[v], offsets[v + 1])"""
    slices: Ints = field(repr=False)
    """distinct slices of its rows, in order"""

    @property
    def row_bytes(self) -> int:
        """Average bytes of a row, at least 1."""
        return max(1, self.batch.nbytes // max(1, self.batch.num_rows))


def read(path: Path, virtual_nodes: int) -> Segment:
    """Open a segment; raises StateUnavailable when it cannot be read."""
    sequence, level, _ = path.name.split(".", 2)
    try:
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        about = json.loads(batch.schema.metadata[_METADATA])
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as e:
        raise StateUnavailable(f"{path}: not a segment that can be read ({e}); warm this instance again") from e
    batch = batch.replace_schema_metadata(None)
    slices = np.unique(batch.column("slice").to_numpy(zero_copy_only=True))
    return Segment(
        path, int(sequence), int(level), tuple(about["labels"]), tuple(about["replaces"]), about["last_slice"], batch,
        columns.split_by_vnode(batch, virtual_nodes), slices,
    )  # fmt: skip


def write(
    directory: Path,
    sequence: int,
    level: int,
    batch: pa.RecordBatch,
    labels: Iterable[str],
    replaces: Iterable[Segment],
    last_slice: int,
) -> Path:
    """Write a segment of rows sorted by hash, and remove those it replaces. Raises Exhausted before the disk is full."""
    mapped.require_room(directory, batch.nbytes + 4096)
    labels, replaces = list(labels), list(replaces)
    name = quote(labels[0], safe="").replace(".", "%2E")[:_LABEL_CHARACTERS] if len(labels) == 1 else "merged"
    path = directory / f"{sequence:012d}.{level}.{name}.arrow"
    about = {"labels": labels, "replaces": [s.path.name for s in replaces], "last_slice": last_slice}
    batch = batch.replace_schema_metadata({_METADATA: json.dumps(about)})
    unfinished = path.with_suffix(".tmp")
    try:
        with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
    except OSError as e:
        unfinished.unlink(missing_ok=True)
        raise Exhausted(f"{path}: could not be written: {e}") from e
    os.replace(unfinished, path)
    for old in replaces:
        old.path.unlink(missing_ok=True)
    return path


def read_all(directory: Path, virtual_nodes: int) -> list[Segment]:
    """All segments in order; unfinished files and replaced segments are removed."""
    for path in directory.glob("*.tmp"):
        path.unlink()
    found = [read(path, virtual_nodes) for path in sorted(directory.glob("*.arrow"))]
    replaced = {name for segment in found for name in segment.replaces}
    for segment in found:
        if segment.path.name in replaced:
            segment.path.unlink()
    return [s for s in found if s.path.name not in replaced]
