"""JSON to records of a schema. What does not parse is set aside one by one, and never stops the job.

One parser decides, Arrow's, so that a line is judged the same alone and among others. Must never touch files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.json as pj


def parse(data: bytes, schema: pa.Schema) -> tuple[pa.Table, list[bytes], str]:
    """(records, lines that are none, what is wrong with the first of them) of whole lines."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    try:
        return _strictly(data, len(lines), schema), [], ""
    except (pa.ArrowException, ValueError):
        pass
    table, bad = _one_by_one(lines, schema)
    return table, [lines[i] for i in sorted(bad)], bad[min(bad)] if bad else ""


def parse_each(values: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    """(records, what is wrong with the values that are none, by their place); a value may have several lines."""
    lines = [b"" if one is None else one.replace(b"\n", b" ") for one in values]
    if all(map(bytes.strip, lines)):
        try:
            return _strictly(b"\n".join(lines), len(lines), schema), {}
        except (pa.ArrowException, ValueError):
            pass
    return _one_by_one(lines, schema)


def _one_by_one(lines: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, dict[int, str]]:
    bad: dict[int, str] = {}
    objects = []
    for i, line in enumerate(lines):
        try:
            if not isinstance(json.loads(line.decode("utf-8")), dict):
                raise ValueError("not a JSON object")
            objects.append((i, line))
        except (ValueError, RecursionError) as wrong:
            bad[i] = str(wrong)
    tables = _halved(objects, schema, bad)
    return pa.concat_tables([schema.empty_table(), *tables]), bad


def _halved(lines: Sequence[tuple[int, bytes]], schema: pa.Schema, bad: dict[int, str]) -> list[pa.Table]:
    """Tables of the lines that fit the schema, in order; halves what does not parse until single lines are left."""
    if not lines:
        return []
    try:
        return [_strictly(b"\n".join(line for _, line in lines), len(lines), schema)]
    except (pa.ArrowException, ValueError) as wrong:
        if len(lines) == 1:
            bad[lines[0][0]] = str(wrong)
            return []
    middle = len(lines) // 2
    return _halved(lines[:middle], schema, bad) + _halved(lines[middle:], schema, bad)


def _strictly(data: bytes, rows: int, schema: pa.Schema) -> pa.Table:
    """All `rows` lines as records of the schema, or ValueError or ArrowException."""
    if not rows:
        return schema.empty_table()
    data.decode("utf-8")  # Arrow's parser lets bytes through that are no UTF-8.
    table = pj.read_json(
        io.BytesIO(data),
        pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != rows:
        # Arrow's parser takes two objects from one line, and one from two.
        raise ValueError(f"{rows} lines hold {table.num_rows} JSON objects")
    return table.cast(schema)
