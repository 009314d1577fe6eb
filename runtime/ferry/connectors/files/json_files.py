"""Files of JSON lines as a source, read inside the ingest tasks. A line is a record."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from ferry.connectors.files.line_files import LineSplits, Parser
from ferry.connectors.formats.json_lines import checked, parse


class JsonSplits(LineSplits):
    """The source of `json_files`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        schema: pa.Schema,
        finite: bool = False,
        flow: str | None = None,
        epoch: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, schema, finite, flow, checked("json_files", schema, epoch))

    def _parser(self, name: str, packed: str | None, schema: pa.Schema) -> Parser:
        return lambda at, data: parse(data, schema, self._epochs)


def json_files(
    directory: str | os.PathLike[str],
    schema: pa.Schema,
    finite: bool = False,
    flow: str | None = None,
    epoch: Mapping[str, str] | None = None,
) -> JsonSplits:
    """A directory of files with one JSON object per line as a source. New files are new records.

    Folders COLUMN=VALUE are read, too; their values become columns. A missing field is null. A line that is not an object,
    or does not fit the schema, is malformed (docs/reference/types.md, "JSON"). Files may be compressed (gzip, bz2, zstd,
    lz4). The status names a file that cannot be read; the source retries it.

    Parameters:
        directory: the files' directory, with the same path on every worker.
        schema: the columns. Other fields of the objects are ignored.
        finite: True: the input ends with the files that the directory held when the job began.
        flow: a pattern for the flows of files, as for `parquet_files`.
        epoch: by timestamp column, the unit of its numbers since 1970, "s", "ms", "us" or "ns": {"ts": "ms"}.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if a type is not supported in JSON, or `flow` is not a pattern. The job raises SpecRefused at its
        start, if the directory is missing, or has folders that the source would not read.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.int64())])
        >>> ferry.json_files("/data/clicks", columns, flow="{flow}-*.json").has_flows  # eu-0001.json, us-0001.json, ...
        True
    """
    return JsonSplits(directory, schema, finite, flow, epoch)
