"""Files of JSON lines as a source, read inside the ingest tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from ferry.connectors.files.line_files import LineSplits, Parser
from ferry.connectors.formats.json_lines import checked, parse


class JsonSplits(LineSplits):
    """See `json_files`."""

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
    """A directory of files with one JSON object per line, and of its folders COLUMN=VALUE; new files are new records.

    A missing field is null. A line that is no object, or does not fit the schema, is
    reported as Malformed (docs/reference/types.md, "JSON"). A file may be
    compressed (gzip, bz2, zstd, lz4); one that cannot be read is named in the status, and waited for.

    Parameters:
        directory: where every worker sees the files under the same path.
        schema: the columns; fields that it does not name are ignored.
        finite: the input is what the directory held when the job began, and then it ends.
        flow: what comes in order for itself, as for `parquet_files`.
        epoch: the unit of numbers in a column of timestamps, "s", "ms", "us" or "ns" since 1970: {"ts": "ms"}.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if a type is not read from JSON, `flow` is no pattern, or, when the job begins, the directory is not
        there or holds folders that would not be read.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("user", pa.string()), ("ts", pa.int64())])
        >>> ferry.json_files("/data/clicks", columns, flow="{flow}-*.json").has_flows  # eu-0001.json, us-0001.json, ...
        True
    """
    return JsonSplits(directory, schema, finite, flow, epoch)
