"""Parquet files as a source, read inside the ingest tasks: row groups are what tasks share."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.connectors.files.directory import DirectorySplits, Piece, naming
from ferry.connectors.files.hive import inferred, with_constants
from ferry.connectors.files.listing import named, partitions
from ferry.connectors.files.taken import File
from ferry.connectors.files.text_files import for_arrow
from ferry.connectors.formats.json_lines import BadLine
from ferry.connectors.formats.parquet_types import FileTypes, converted, refuse_misfits
from ferry.connectors.splits import BATCH_ROWS, ranges
from ferry.contract.errors import Fault, InputAway, SpecRefused

WORD = pa.dictionary(pa.int32(), pa.string())
"""Texts as a Parquet file keeps them, where they repeat."""

JSON_BLOCK_BYTES = 1 << 20
"""Lines are parsed in pieces of this size; one is read whole into memory."""

JSON_SHARE_BYTES = 4 << 20
"""Files of lines are shared among tasks in pieces of this size, but for those that are compressed."""

PACKED_TIMES = 6
"""A compressed file is taken to hold so many times its bytes."""

Parser: TypeAlias = "Callable[[int, bytes], tuple[pa.Table, list[BadLine]]]"
"""Of (where lines begin in their file, whole lines): records, and the lines that are none."""


class ParquetSplits(DirectorySplits):
    """See `parquet_files`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        finite: bool = False,
        flow: str | None = None,
    ) -> None:
        super().__init__(directory, finite, flow)
        if not isinstance(schema, pa.Schema | None):
            raise SpecRefused(f"parquet_files: schema {schema!r}; give a pyarrow.schema")
        self._schema = schema
        self._first = ""
        """Path of the file whose columns are the schema; empty: the schema was declared, or is not known so far."""

    def encoded(self, columns: Sequence[str]) -> ParquetSplits:
        """The same files; these columns of text come as the files keep them, a number for each and a dictionary."""
        made, schema = copy.copy(self), self.schema()
        texts = [name for name in columns if pa.types.is_string(schema.field(name).type)]
        made._schema = pa.schema([f.with_type(WORD) if f.name in texts else f for f in schema])
        return made

    def schema(self) -> pa.Schema:
        """The declared schema, else that of the first file that can be read, and the columns that folders name.

        Raises InputAway, when there is none.
        """
        if self._schema is None:
            self._folder.require_there()
            files, bad = self._folder.listing().files, []
            for file in files:
                try:
                    self._schema, self._first = self._inferred(file, files), self._path(file.name)
                    return self._schema
                except (Fault, FileNotFoundError) as wrong:
                    bad.append(str(wrong))
            raise InputAway(
                f"{self.directory!r} holds no file to take the columns from{': ' if bad else ''}{named(bad)}; give schema="
            )
        return self._schema

    def _inferred(self, file: File, files: Sequence[File]) -> pa.Schema:
        path = self._path(file.name)
        with naming(path):
            types = FileTypes.of(pq.read_metadata(for_arrow(path)))
        refuse_misfits(path, types, mine := types.schema)  # It may have a column twice.
        beside = inferred(one.name for one in files)
        return pa.schema([*(f for f in mine if f.name not in beside.names), *beside])

    def _divide(self, file: File) -> list[Piece]:
        about = pq.read_metadata(for_arrow(self._path(file.name)))
        refuse_misfits(self._path(file.name), FileTypes.of(about), self._in_file(file.name, self.schema()), self._first)
        return [(i, i + 1, about.row_group(i).num_rows) for i in range(about.num_row_groups)]

    def _parts(self, name: str, low: int, high: int) -> list[tuple[int, int]] | None:
        return ranges(low, high) if high - low > 1 else None

    def _range(self, low: int, high: int) -> str:
        return f"row groups {low} to {high - 1}" if high - low > 1 else f"row group {low}"

    def _in_file(self, name: str, wanted: pa.Schema) -> pa.Schema:
        """The columns that are not in the path."""
        beside = partitions(name)
        return pa.schema([f for f in wanted if f.name not in beside])

    def _read_piece(self, name: str, low: int, high: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        whole, path = self.schema(), self._path(name)
        wanted = whole if columns is None else pa.schema([whole.field(c) for c in columns])
        values, mine = self._constants(name), self._in_file(name, wanted)
        words = [f.name for f in mine if pa.types.is_dictionary(f.type)]
        # Arrow would read times of INT96 as nanoseconds, which end in 2262, and then begin anew.
        settings = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
        with pq.ParquetFile(for_arrow(path), read_dictionary=words, **settings) as file:
            types = FileTypes.of(file.metadata)
            refuse_misfits(path, types, mine, self._first)
            for batch in file.iter_batches(BATCH_ROWS, row_groups=list(range(low, high)), columns=mine.names):
                # Arrow reads texts that are no UTF-8, and numbers of words that are not there.
                batch.validate(full=True)
                yield with_constants(converted(path, batch, types, mine, self._first), wanted, values)


def parquet_files(
    directory: str | os.PathLike[str], schema: pa.Schema | None = None, finite: bool = False, flow: str | None = None
) -> ParquetSplits:
    """A directory of Parquet files, and of its folders COLUMN=VALUE; new files are new records.

    A file is read whole in one epoch, also when it holds more rows than an epoch should. One that cannot be read is named in
    the status, and waited for until somebody mends it. Columns are exactly those of the file, or refused.

    Parameters:
        directory: where every worker sees the files under the same path.
        schema: the columns, of files and of folders; else those of the first file, and of all folders. Give it when old
            files may go: every driver looks for itself.
        finite: the input is what the directory held when the job began, and then it ends.
        flow: a pattern for the paths of files, which says what comes in order for itself: "{flow}/*" makes every folder in
            the directory a flow, from when the folder is there; "{flow}-*.parquet" every beginning of a name, from its first
            file on. The watermark waits for the slowest flow (see `Stream.event_time`), and a file that fits no flow ends
            the job. None: all files are one flow.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if the directory is not there, or holds no file to take the columns from, or files that do not fit,
        or folders that would not be read, when the job begins; or if `flow` is no pattern, or `schema` no schema.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("shop", pa.string()), ("ts", pa.int64())])
        >>> ferry.parquet_files("/data/sales", columns, flow="{flow}/*.parquet").has_flows  # a folder for each shop
        True
    """
    return ParquetSplits(directory, schema, finite, flow)
