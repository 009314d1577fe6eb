"""Parquet files as a source, read inside the ingest tasks. Tasks share the row groups of a file."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.connectors.files.directory import DirectorySplits, Piece, naming
from ferry.connectors.files.hive import inferred, with_constants
from ferry.connectors.files.listing import named, partitions
from ferry.connectors.files.taken import File
from ferry.connectors.files.text_files import for_arrow
from ferry.connectors.formats.parquet_types import FileTypes, converted, refuse_misfits
from ferry.connectors.splits import BATCH_ROWS, ranges
from ferry.contract.errors import Fault, InputAway, SpecRefused

WORD = pa.dictionary(pa.int32(), pa.string())
"""The type of text columns in dictionary encoding."""


class ParquetSplits(DirectorySplits):
    """The source of `parquet_files`."""

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
        """Path of the file with the columns of the schema. Empty for a declared schema, and before the first file."""

    def encoded(self, columns: Sequence[str]) -> ParquetSplits:
        """The same source with these text columns in dictionary encoding, as the files store them."""
        source, schema = copy.copy(self), self.schema()
        texts = [name for name in columns if pa.types.is_string(schema.field(name).type)]
        source._schema = pa.schema([f.with_type(WORD) if f.name in texts else f for f in schema])
        return source

    def schema(self) -> pa.Schema:
        """The declared schema; otherwise the schema of the first readable file, and the partition columns of all folders.

        Raises InputAway if no file is readable.
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
        refuse_misfits(path, types, mine := types.schema)  # Refuses a repeated column.
        beside = inferred(listed.name for listed in files)
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
        """The columns whose values are not in the file's path."""
        beside = partitions(name)
        return pa.schema([f for f in wanted if f.name not in beside])

    def _read_piece(self, name: str, low: int, high: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        whole, path = self.schema(), self._path(name)
        wanted = whole if columns is None else pa.schema([whole.field(c) for c in columns])
        values, mine = self._constants(name), self._in_file(name, wanted)
        words = [f.name for f in mine if pa.types.is_dictionary(f.type)]
        # Arrow would read INT96 times as nanoseconds, which overflow in the year 2262.
        settings = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
        with pq.ParquetFile(for_arrow(path), read_dictionary=words, **settings) as file:
            types = FileTypes.of(file.metadata)
            refuse_misfits(path, types, mine, self._first)
            for batch in file.iter_batches(BATCH_ROWS, row_groups=list(range(low, high)), columns=mine.names):
                # Arrow does not check for invalid UTF-8 and for indices outside of a dictionary.
                batch.validate(full=True)
                yield with_constants(converted(path, batch, types, mine, self._first), wanted, values)


def parquet_files(
    directory: str | os.PathLike[str], schema: pa.Schema | None = None, finite: bool = False, flow: str | None = None
) -> ParquetSplits:
    """A directory of Parquet files as a source. New files are new records.

    Folders COLUMN=VALUE are read, too; their values become columns. One epoch reads a whole file, also if the file has more
    rows than the epoch's limit. The status names a file that cannot be read; the source retries it until it is repaired. A
    file whose columns do not fit the schema exactly is refused.

    Parameters:
        directory: the files' directory, with the same path on every worker.
        schema: the columns of files and folders. None: the columns of the first file and of all folders. Declare the schema
            if old files may be removed, because every driver infers it again.
        finite: True: the input ends with the files that the directory held when the job began.
        flow: a pattern for the paths of files, with the placeholder {flow}. "{flow}/*" makes every folder a flow, from the
            creation of the folder on. "{flow}-*.parquet" makes every prefix of a name a flow, from its first file on. The
            watermark is the minimum over the flows (see `Stream.event_time`). A file that does not fit the pattern stops the
            job. None: all files are a single flow.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if `flow` is not a pattern or `schema` is not a schema. The job raises SpecRefused at its start, if
        the directory is missing, has no file to infer the columns from, has files that do not fit, or has folders that the
        source would not read.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("shop", pa.string()), ("ts", pa.int64())])
        >>> ferry.parquet_files("/data/sales", columns, flow="{flow}/*.parquet").has_flows  # a folder for each shop
        True
    """
    return ParquetSplits(directory, schema, finite, flow)
