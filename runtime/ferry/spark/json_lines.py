"""JSON lines to records of a schema. What does not parse is set aside line by line, and never stops the job.

One parser decides, Arrow's, so that a line is judged the same alone and among others. Must never touch files.
"""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.json as pj


def parse(data: bytes, schema: pa.Schema) -> tuple[pa.Table, list[bytes], str]:
    """(records, lines that are none, what is wrong with the first of them) of whole lines."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    try:
        return _strictly(data, len(lines), schema), [], ""
    except (pa.ArrowException, ValueError):
        pass
    bad: list[tuple[bytes, str]] = []
    objects = []
    for line in lines:
        try:
            if not isinstance(json.loads(line.decode("utf-8")), dict):
                raise ValueError("not a JSON object")
            objects.append(line)
        except (ValueError, RecursionError) as wrong:
            bad.append((line, str(wrong)))
    tables = _halved(objects, schema, bad)
    return pa.concat_tables([schema.empty_table(), *tables]), [line for line, _ in bad], bad[0][1] if bad else ""


def _halved(lines: list[bytes], schema: pa.Schema, bad: list[tuple[bytes, str]]) -> list[pa.Table]:
    """Tables of the lines that fit the schema, in order; halves what does not parse until single lines are left."""
    if not lines:
        return []
    try:
        return [_strictly(b"\n".join(lines), len(lines), schema)]
    except (pa.ArrowException, ValueError) as wrong:
        if len(lines) == 1:
            bad.append((lines[0], str(wrong)))
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
