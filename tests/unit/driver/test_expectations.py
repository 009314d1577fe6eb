"""Violations of one epoch: once for each sink, whatever holds its rows, and told without an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ferry.api.pipeline import Build, Input, Output
from ferry.api.stream import Stream
from ferry.connectors.console.sink import console
from ferry.connectors.sink import RowParts
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver.comparison import Compared, Comparison
from ferry.driver.expectations import VIOLATED, Checks, tell

SCHEMA = pa.schema([("cents", pa.int64())])
ROWS = pa.table({"cents": [1, -2, -3]})


def output(sink: Any = None) -> Output:
    stream = Stream(Build(lambda function, schema, where: schema), Input("sales", (), SCHEMA, None, 0))
    made = stream.expect("cents are positive", pc.field("cents") >= 0).sink(console())
    return Output(made.input, sink or made.sink)


class Parts(RowParts):
    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Any]]) -> list[Any]:
        return [part for batches in (ROWS.to_batches(), ROWS.to_batches()) for part in write(batches)]


def test_a_repeated_write_is_checked_again_and_counted_once() -> None:
    checks, one, other = Checks(), output(), output()
    for _ in range(2):
        checks.check(one, ROWS)
    checks.check(other, Parts())
    first, second = checks.violations
    assert (first.rows, first.of, second.rows, second.of) == (2, 3, 4, None)
    assert "2 of 3 rows for" in str(first) and str(first).endswith("violate it, such as cents=-2")
    assert "test_expectations.py" in str(first), "the line of the declaration"


def test_rows_of_a_shadow_are_checked_for_the_new_program_only() -> None:
    checks, comparison = Checks(), Comparison(5)
    checks.check(output(Compared(comparison, 0, "parquet('x')", other=False)), ROWS)
    assert not checks.violations
    checks.check(output(Compared(comparison, 0, "parquet('x')", other=True)), ROWS)
    assert [one.silent for one in checks.violations] == [True] and "for parquet('x')" in str(checks.violations[0])


def test_violations_are_counted_and_told_once(tmp_path: Path) -> None:
    metrics, checks = DriverMetrics("sales", str(tmp_path)), Checks()
    notes = list[str]()
    metrics.problems._note = lambda kind, text: notes.append(kind)
    checks.check(output(), ROWS)
    for _ in range(3):
        tell(checks.violations, metrics)
    assert metrics.violations == {"cents are positive": 6} and notes == ["warning"]
    assert [one.reason for one in metrics.problems.lasting] == [VIOLATED]
