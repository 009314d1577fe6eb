"""Files of lines as sources, read inside the ingest tasks in pieces of whole lines."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa

from ferry.connectors.files.directory import DirectorySplits, Piece
from ferry.connectors.files.hive import with_constants
from ferry.connectors.files.taken import File
from ferry.connectors.files.text_files import blocks, hint, line_edges, opened, packing
from ferry.connectors.formats.json_lines import BadLine, Epochs
from ferry.connectors.splits import BATCH_ROWS, PARTS, Malformed, malformed

JSON_BLOCK_BYTES = 1 << 20
"""Size of the blocks in which lines are parsed. A block is in memory as a whole."""

JSON_SHARE_BYTES = 4 << 20
"""Size of the pieces of a file that tasks share. A compressed file is a single piece."""

PACKED_TIMES = 6
"""Estimated size of an unpacked file, in sizes of the compressed file."""

Parser: TypeAlias = "Callable[[int, bytes], tuple[pa.Table, list[BadLine]]]"
"""(offset of the lines in their file, whole lines) -> (records, malformed lines)."""


class LineSplits(DirectorySplits):
    """Files with one record per line."""

    sets_aside = True

    def __init__(
        self, directory: str | os.PathLike[str], schema: pa.Schema, finite: bool, flow: str | None, epochs: Epochs
    ) -> None:
        super().__init__(directory, finite, flow)
        self._schema = schema
        self._epochs = epochs

    @abstractmethod
    def _parser(self, name: str, packed: str | None, schema: pa.Schema) -> Parser:
        """The parser of a file's lines to records of this schema."""

    def schema(self) -> pa.Schema:
        """The declared schema."""
        return self._schema

    def _divide(self, file: File) -> list[Piece]:
        path = self._path(file.name)
        packed = packing(path)
        with closing(opened(path, packed)) as lines:
            sample = lines.read(1 << 16)
        row_bytes = max(len(sample) // max(sample.count(b"\n"), 1), 1)
        if packed is not None:
            return [(0, file.size, file.size * PACKED_TIMES // row_bytes + 1)]
        edges = [*range(0, file.size, JSON_SHARE_BYTES), file.size]
        return [(low, high, (high - low) // row_bytes + 1) for low, high in pairwise(edges)]

    def _parts(self, name: str, low: int, high: int) -> list[tuple[int, int]] | None:
        """Smaller ranges with whole lines. None for a compressed file."""
        path = self._path(name)
        return None if packing(path) is not None else list(pairwise(line_edges(path, low, high, PARTS)))

    def _range(self, low: int, high: int) -> str:
        return f"bytes {low} to {high - 1}"

    def _in_lines(self, values: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns whose values are not in the file's path."""
        return pa.schema([f for f in self._schema if f.name not in values])

    def _read_piece(
        self, name: str, low: int, high: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch | Malformed]:
        """The records of a piece. A line belongs to the piece in which it begins."""
        path, values = self._path(name), self._constants(name)
        packed = packing(path)
        parsed = self._parser(name, packed, self._in_lines(values))
        wanted = self._schema if columns is None else pa.schema([self._schema.field(c) for c in columns])
        for at, data in blocks(path, packed, low, high, JSON_BLOCK_BYTES):
            table, bad = parsed(at, data)
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                whole = with_constants(batch, self._schema, values)
                yield whole if columns is None else whole.select(wanted.names)
            if bad:
                of, why = " of the unpacked file" if packed else "", hint(path, data)
                reasons = [f"{name}, line at byte {at + line.at}{of}: {why}{line.reason}" for line in bad]
                yield malformed([line.line for line in bad], reasons)
