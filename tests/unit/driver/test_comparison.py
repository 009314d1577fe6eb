"""Two programs' rows as multisets, over epochs; what differs is counted and shown."""

from __future__ import annotations

import pyarrow as pa

from ferry.driver.comparison import Compared, Comparison

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
