"""Two programs' rows as multisets, over epochs; what differs is counted and shown."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from ferry.connectors.files.parquet_sink import parquet
from ferry.contract.names import Step
from ferry.driver.comparison import Compared, Comparison
from ferry.driver.errors import Halted
from ferry.driver.publisher import Publisher
from ferry.protocol.coordinator import Halt

SINKS = ("out", "another", "out")


def write(comparison: Comparison, other: bool, *values: int, sink: int = 0) -> None:
    Compared(comparison, sink, SINKS[sink], other).write(1, 1, pa.table({"n": [*values]}))


def test_equal_rows_in_any_order_and_in_different_epochs_do_not_differ() -> None:
    comparison = Comparison(99)
    write(comparison, False, 1, 2, 2)
    write(comparison, True, 2, 1)
    comparison.ended()
    assert (comparison.missing, comparison.more, comparison.listed()["examples"]) == (1, 0, ["- out: n=2"])
    write(comparison, True, 2)
    comparison.ended()
    assert (comparison.missing, comparison.more, comparison.rows, comparison.epochs) == (0, 0, 3, 2)
    assert comparison.listed()["examples"] == [] and comparison.words() == "0 of 3 rows of 2 epochs differ"


def test_rows_that_differ_are_counted_by_sink_and_shown() -> None:
    comparison = Comparison(99, ("parquet('more')",))
    for value in range(50):
        write(comparison, False, value, value)
        write(comparison, True, value, value + 100)
        write(comparison, True, value, sink=1)
        comparison.ended()
    assert (comparison.missing, comparison.more) == (50, 100)
    listed = comparison.listed()
    assert len(listed["examples"]) == 20 and "- out: n=0" in listed["examples"] and "+ out: n=100" in listed["examples"]
    assert "+ another: n=0" in listed["examples"] and listed["uncompared"] == ["parquet('more')"]


def test_an_epoch_that_is_repeated_counts_once_and_the_last_one_is_the_last() -> None:
    comparison = Comparison(1)
    for _ in range(2):
        write(comparison, False, 7)
    write(comparison, True, 7)
    comparison.ended()
    write(comparison, False, 8)
    comparison.ended()
    assert comparison.is_over and (comparison.rows, comparison.epochs, comparison.missing) == (1, 1, 0)


def test_two_sinks_of_the_same_words_are_two() -> None:
    comparison = Comparison(9)
    write(comparison, False, 1)
    write(comparison, True, 2)
    for other in (False, True):
        write(comparison, other, 1, sink=2)
    comparison.ended()
    assert (comparison.missing, comparison.more) == (1, 1)


def test_epochs_without_rows_are_no_verdict() -> None:
    comparison = Comparison(1)
    for _ in range(3):
        write(comparison, False)
        comparison.ended()
    assert not comparison.is_over and comparison.epochs == 0
    write(comparison, False, 1)
    comparison.ended()
    assert comparison.is_over and comparison.missing == 1


def test_an_error_before_a_sink_that_only_compares_rows_ends_the_comparison() -> None:
    one: Any = object.__new__(Publisher)
    rows: Any = SimpleNamespace(commit_id=SimpleNamespace(step=Step(5, 0)))
    told, errors = (
        list[bool](),
        [ValueError("a shadow's"), Halted(Halt("bug", "the job ends")), ValueError("the job's")],
    )
    sinks = [
        Compared(comparison := Comparison(3), 0, "'x'", True),
        Compared(Comparison(3), 0, "'x'", True),
        parquet("x"),
    ]

    def write_to(output: Any, *_: Any) -> None:
        told.append(True)
        raise errors[sinks.index(output.sink)]

    one._write_to = write_to
    for sink, ends in zip(sinks, (False, True, True), strict=True):
        one._outputs = {0: [cast(Any, SimpleNamespace(sink=sink))]}
        with pytest.raises((Halted, ValueError)) if ends else nullcontext():
            one._write(rows, None, 5)
    assert comparison.failed == "'x': a shadow's"
    one._outputs = {0: [cast(Any, SimpleNamespace(sink=sinks[0]))]}
    one._write(rows, None, 6)
    assert len(told) == 3, "nothing is compared any more"


def test_an_error_behind_a_source_ends_only_the_comparison() -> None:
    """It stopped the job, after all tries."""
    one: Any = object.__new__(Publisher)
    comparison, given, read = Comparison(3), list[Any](), list[Any]()
    outputs = [SimpleNamespace(sink=Compared(comparison, 0, "'x'", True)), SimpleNamespace(sink=parquet("x"))]

    def records(batch: Any, output: Any) -> pa.Table:
        read.append(output)
        if output is outputs[0]:
            raise ValueError("a shadow's")
        return pa.table({"n": [1]})

    one.plan, one._outputs, one._records = SimpleNamespace(sources={"s": None}), {"s": outputs}, records
    one.loop = SimpleNamespace(machine=SimpleNamespace(generation=1))
    one.checks = SimpleNamespace(check=lambda output, rows: None)
    one._give, one._succeeded = lambda sink, *_: given.append(sink), lambda: None
    for epoch in (5, 6):
        one._publish_records(cast(Any, None), epoch)
    assert comparison.failed == "'x': a shadow's" and given == [outputs[1].sink] * 2
    assert read == [*outputs, outputs[1]], "nothing is compared any more"
