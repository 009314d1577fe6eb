"""Wrong arguments are refused at the call: names that are empty or no text, and numbers that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferry as typed
from ferry.kernels import aggregates

ferry: Any = typed
ROWS = pa.schema([("ts", pa.int64())])

REFUSED = {
    "parquet: directory ''; give its path": lambda: ferry.parquet(""),
    "parquet: directory 3; give its path": lambda: ferry.parquet(3),
    "console: limit 'x'; it is the number of printed rows": lambda: ferry.console("x"),
    "files: directory ''; give its path": lambda: ferry.json_files("", ROWS),
    "files: directory b'in'; give its path": lambda: ferry.parquet_files(b"in"),
    "flow=3: give a pattern for files": lambda: ferry.parquet_files("in", flow=3),
    "files: finite='no'; it is True or False": lambda: ferry.parquet_files("in", finite="no"),
    "parquet_files: schema ['ts']; give a pyarrow.schema": lambda: ferry.parquet_files("in", ["ts"]),
    "json_files: epoch='ms'; give the unit of columns": lambda: ferry.json_files("in", ROWS, epoch="ms"),
    "kafka: topic 3; give its name": lambda: ferry.kafka("b:9", 3),
    "kafka_sink: topic ''; give its name": lambda: ferry.kafka_sink("b:9", ""),
    "kafka_sink: key= 3; give its name": lambda: ferry.kafka_sink("b:9", "t", key=3),
    "kafka_sink: name= ''; give its name": lambda: ferry.kafka_sink("b:9", "t", name=""),
    "mean: column 3; give its name": lambda: ferry.mean(3),
    "count: column ''; give its name": lambda: ferry.count(""),
    "arg_max: column None; give its name": lambda: ferry.arg_max("a", None),
    "records: column ['a']; give its name": lambda: ferry.records(["a"]),
    "records: column 4; give its name": lambda: ferry.records("a", order=4),
    "window: rows(True, 1) needs positive numbers": lambda: ferry.rows(True),
    "ferry.select: column 3; give its name": lambda: ferry.select(3),
}


@pytest.mark.parametrize("words", REFUSED)
def test_nonsense_is_refused_where_it_is_written(words: str) -> None:
    with pytest.raises(ferry.SpecRefused) as refused:
        REFUSED[words]()
    assert words in str(refused.value)


def test_every_function_refuses_a_column_without_a_name() -> None:
    for name in set(aggregates.__all__) - {"arg_max"}:
        with pytest.raises(ferry.SpecRefused, match=f"{name}: column 7; give its name"):
            getattr(ferry, name)(7)


def test_a_sink_takes_a_path_as_sources_do(tmp_path: Path) -> None:
    assert repr(ferry.parquet(tmp_path)) == f"parquet({str(tmp_path)!r})"
