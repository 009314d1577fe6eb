"""Files of CSV as a source that is read inside the ingest tasks: a line is a record, and tasks share the lines of a file."""

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
"""Of UTF-8, at the begin of a file."""


RETURN = b"\r"


class CsvSplits(LineSplits):
    """See `csv_files`."""

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
            raise SpecRefused(f"csv_files: header={header!r}; it is True or False: whether each file names its columns")
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
            return table, [one._replace(at=one.at + passed) for one in bad]

        return parsed

    def _fields(self, name: str, packed: str | None, schema: pa.Schema) -> CsvFields:
        """Of a file. Raises SpecRefused when its first line does not name the columns."""
        names, path = schema.names, self._path(name)
        if self._header and (line := first_line(path, packed)):
            if RETURN in line.rstrip(b"\r\n"):  # All of the file would count as its first line.
                why = (
                    hint(path, line).removesuffix("; ")
                    or "lines end with a carriage return alone: end them with a line feed"
                )
                raise SpecRefused(f"{path} cannot be read: {why}")
            try:
                names = names_of(line, self._shape.delimiter)
                if missing := [one for one in schema.names if one not in names]:
                    raise SpecRefused(f"its first line names no column {missing[0]!r}; it names {', '.join(names)}")
                if twice := [one for one in schema.names if names.count(one) > 1]:
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
    """A directory of files with a record in each line, and of its folders COLUMN=VALUE; new files are new records.

    Values are written as in JSON, without quotes; a field in quotes may hold the delimiter, and a quote as two (RFC 4180).
    A line break is always the end of a record. A line that has other fields, or does not fit the schema, is reported as
    Malformed (docs/reference/types.md, "CSV"). A file may be compressed (gzip, bz2, zstd, lz4). An unreadable file is
    named in the status, and read again later.

    Parameters:
        directory: where every worker sees the files under the same path.
        schema: the columns; further ones that a header names are passed over.
        finite: the input is what the directory held when the job began, and then it ends.
        flow: what comes in order for itself, as for `parquet_files`.
        header: the first line of each file names its columns, in any order. False: fields are the columns of the schema,
            in their order.
        delimiter: one character of ASCII between fields.
        null: a text that stands for null, beside an empty field; in quotes, both are texts.
        epoch: the unit of numbers in a column of timestamps, "s", "ms", "us" or "ns" since 1970: {"ts": "ms"}.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if a type is not read from CSV, an argument is none of these, or, when the job begins, the directory
        is not there, holds folders that would not be read, or files whose first line does not name the columns.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.timestamp("ms", tz="UTC"))])
        >>> ferry.csv_files("/data/clicks", columns, delimiter=";", flow="{flow}-*.csv").has_flows
        True
    """
    return CsvSplits(directory, schema, finite, flow, header, delimiter, null, epoch)
