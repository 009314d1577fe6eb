"""CSV files as a source, read inside the ingest tasks. A line is a record; several tasks may read the lines of one file."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from ferry.connectors.files.directory import Piece
from ferry.connectors.files.line_files import LineSplits, Parser
from ferry.connectors.files.listing import partitions
from ferry.connectors.files.taken import File
from ferry.connectors.files.text_files import first_line, hint, packing
from ferry.connectors.formats.csv_lines import CsvFields, CsvShape, names_of, refuse_columns
from ferry.connectors.formats.json_lines import BadLine, checked
from ferry.contract.errors import SpecRefused

MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8 at the beginning of a file."""


RETURN = b"\r"


class CsvSplits(LineSplits):
    """The source of `csv_files`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        schema: pa.Schema,
        finite: bool = False,
        flow: str | None = None,
        header: bool = True,
        delimiter: str = ",",
        null: str = "",
        epoch: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, schema, finite, flow, checked("csv_files", schema, epoch))
        refuse_columns("csv_files", schema)
        if not isinstance(header, bool):
            raise SpecRefused(
                f"csv_files: header={header!r}; it is True or False: whether the first line of each file names its columns"
            )
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise SpecRefused(
                f"csv_files: delimiter={delimiter!r}; give one character of ASCII, such as ',', ';' or '\\t'"
            )
        if not isinstance(null, str):
            raise SpecRefused(f"csv_files: null={null!r}; give the text that stands for null, such as 'NA'")
        self._header = header
        self._shape = CsvShape(delimiter, null)

    def _divide(self, file: File) -> list[Piece]:
        self._fields(file.name, packing(self._path(file.name)), self._in_lines(partitions(file.name)))
        return super()._divide(file)

    def _parser(self, name: str, packed: str | None, schema: pa.Schema) -> Parser:
        fields = self._fields(name, packed, schema)

        def parsed(at: int, data: bytes) -> tuple[pa.Table, list[BadLine]]:
            passed = 0
            if at == 0:
                passed = data.find(b"\n") + 1 or len(data) if self._header else len(MARK) * data.startswith(MARK)
            table, bad = fields.parse(data[passed:])
            return table, [line._replace(at=line.at + passed) for line in bad]

        return parsed

    def _fields(self, name: str, packed: str | None, schema: pa.Schema) -> CsvFields:
        """The fields of a file's lines. Raises SpecRefused if its first line does not name the columns."""
        names, path = schema.names, self._path(name)
        if self._header and (line := first_line(path, packed)):
            if RETURN in line.rstrip(b"\r\n"):  # The whole file would be its first line.
                why = (
                    hint(path, line).removesuffix("; ")
                    or "lines end with a carriage return alone: end them with a line feed"
                )
                raise SpecRefused(f"{path} cannot be read: {why}")
            try:
                names = names_of(line, self._shape.delimiter)
                if missing := [name for name in schema.names if name not in names]:
                    raise SpecRefused(f"its first line names no column {missing[0]!r}; it names {', '.join(names)}")
                if twice := [name for name in schema.names if names.count(name) > 1]:
                    raise SpecRefused(f"its first line names column {twice[0]!r} twice")
            except SpecRefused as refused:
                remedy = "give header=False if it is a record, or another delimiter="
                why = hint(path, line).removesuffix("; ") or f"{refused}; {remedy}"
                raise SpecRefused(f"{path} cannot be read: {why}") from refused
        return CsvFields(self._shape, schema, self._epochs, names)


def csv_files(
    directory: str | os.PathLike[str],
    schema: pa.Schema,
    finite: bool = False,
    flow: str | None = None,
    header: bool = True,
    delimiter: str = ",",
    null: str = "",
    epoch: Mapping[str, str] | None = None,
) -> CsvSplits:
    """A directory of CSV files as a source, with one record per line. New files are new records.

    Folders COLUMN=VALUE are read, too; their values become columns. Values are written as in JSON, without quotes. A quoted
    field may contain the delimiter, and a quote written twice (RFC 4180). A line break always ends a record. A line with a
    wrong number of fields, or with a value that does not fit the schema, is malformed (docs/reference/types.md, "CSV").
    Files may be compressed (gzip, bz2, zstd, lz4). The status names a file that cannot be read; the source retries it.

    Parameters:
        directory: the files' directory, with the same path on every worker.
        schema: the columns. Further columns of a header are ignored.
        finite: True: the input ends with the files that the directory held when the job began.
        flow: a pattern for the flows of files, as for `parquet_files`.
        header: True: the first line of each file names its columns, in any order. False: the fields are the columns of the
            schema, in order.
        delimiter: the character between fields, of ASCII.
        null: a text for null, besides the empty field. In quotes both are texts.
        epoch: by timestamp column, the unit of its numbers since 1970, "s", "ms", "us" or "ns": {"ts": "ms"}.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if a type is not supported in CSV, or an argument is invalid. The job raises SpecRefused at its
        start, if the directory is missing, has folders that the source would not read, or a file's header lacks a column.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.timestamp("ms", tz="UTC"))])
        >>> ferry.csv_files("/data/clicks", columns, delimiter=";", flow="{flow}-*.csv").has_flows
        True
    """
    return CsvSplits(directory, schema, finite, flow, header, delimiter, null, epoch)
