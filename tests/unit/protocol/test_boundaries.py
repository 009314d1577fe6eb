"""Boundaries of windows: the paper's figures, the oracle's formulas, and a small model of two nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, ProcessShape, Window
from ferry.process.classes import class_of
from ferry.protocol import boundaries as b
from tests.cluster.queries import oracle

times = st.lists(st.integers(0, 60), min_size=3, max_size=30, unique=True).map(sorted)
lengths = st.tuples(st.integers(1, 12), st.integers(1, 6))


def test_figure_2_the_origin_ends_with_the_last_window_that_starts_before_what_the_target_has_read() -> None:
    assert b.last_window(heard=4, newest=1, slide=2) == 3
    assert b.first_window(3, 2) == 5


def test_figure_3_an_aggregate_of_rows_over_a_join_decides_by_rows() -> None:
    at_sources = [4, 5]
    assert b.heard_by_controlling(at_sources, None, stamped_earliest=True) == 5
    assert b.heard_by_controlling(at_sources, None, stamped_earliest=False) is None, "a row has to reach it first"
    assert b.heard_by_controlling(at_sources, 7, stamped_earliest=False) == 7
    assert b.rows_before(3, slide=2) == 2, "equation 2; the text beside it says one"
    assert b.rows_before_of_all([1, 3], slide=2) == 2
    rows = [1, 2, 3, 4, 7, 8]
    assert b.row_handover(rows, newest=0, heard=5, slide=2) == (2, 0)
    assert b.row_handover(rows[:4], newest=0, heard=5, slide=2) is None, "it waits for the row of time 7"


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 9))
def test_time_windows_are_the_oracles(heard: int, newest: int, slide: int) -> None:
    assert b.last_window(heard, newest, slide) == oracle.migration_ts_time(heard, newest, slide)


@given(times, st.integers(0, 60), st.data(), st.integers(1, 6))
def test_row_windows_are_the_oracles(rows: list[int], heard: int, data: st.DataObject, slide: int) -> None:
    newest = data.draw(st.integers(0, len(rows) - 1))
    found = b.row_handover(rows, newest, heard, slide)
    if found is None:
        assert heard > rows[-1]
        return
    last, skipped = oracle.migration_row(rows, newest, heard, slide)
    assert found.last == last and skipped in (None, found.skipped)


@given(times, lengths, st.integers(0, 60))
def test_time_windows_of_both_together_are_those_without_a_migration(
    rows: list[int], lengths: tuple[int, int], heard: int
) -> None:
    size, slide = lengths
    newest = rows[0]
    starts = range(newest, rows[-1] + 1, slide)
    last = b.last_window(heard, newest, slide)
    first = b.first_window(last, slide)
    seen = [t for t in rows if t >= heard and t >= first]
    origin = {w: [t for t in rows if w <= t < w + size] for w in starts if w <= last}
    target = {w: [t for t in seen if w <= t < w + size] for w in starts if w >= first}
    assert {**origin, **target} == {w: [t for t in rows if w <= t < w + size] for w in starts}
    assert len(origin) + len(target) == len(starts)


@given(times, lengths, st.integers(0, 60))
def test_row_windows_of_both_together_are_those_without_a_migration(
    rows: list[int], lengths: tuple[int, int], heard: int
) -> None:
    size, slide = lengths
    found = b.row_handover(rows, 0, heard, slide)
    assume(found is not None)
    assert found is not None
    starts = range(0, len(rows), slide)
    first = next(at for at, t in enumerate(rows) if t >= heard) + found.skipped
    origin = {at: rows[at : at + size] for at in starts if at <= found.last}
    target = {at: rows[first:][at - first : at - first + size] for at in range(first, len(rows), slide)}
    assert {**origin, **target} == {at: rows[at : at + size] for at in starts}
    assert len(origin) + len(target) == len(starts)


@given(times, lengths, st.integers(0, 60))
def test_a_final_join_emits_each_pair_once(rows: list[int], lengths: tuple[int, int], heard: int) -> None:
    size, slide = lengths
    assume(slide <= size)
    last = b.last_window(heard, rows[0], slide)
    first = b.first_window(last, slide)

    def found(seen: list[int], starts: range) -> list[tuple[int, int]]:
        windows = [[t for t in seen if w <= t < w + size] for w in starts]
        return sorted({pair for window in windows for pair in combinations(window, 2)})

    origin = found(rows, range(rows[0], last + 1, slide))
    target = found([t for t in rows if t >= first], range(first, rows[-1] + 1, slide))
    emitted = [pair for pair in origin if b.is_of_origin(pair, first, is_last_operator=True)] + target
    assert sorted(emitted) == found(rows, range(rows[0], max(rows[-1], last) + 1, slide))
    assert [pair for pair in origin if b.is_of_origin(pair, first, is_last_operator=False)] == origin


@given(st.integers(1, 8), st.integers(1, 8), st.integers(-9, 99))
def test_what_the_origin_has_is_over_when_its_last_window_ends(size: int, slide: int, at: int) -> None:
    window = Window(size, slide)
    newest = at * window.pane_ms
    end = b.ends_at_origin(window, newest)
    assert end == window.last_end(newest)
    begins = b.begins_at_target(window, end)
    assert begins > newest and begins - slide <= newest and begins % slide == 0


def aggregate(window: Window) -> OperatorDescriptor:
    return OperatorDescriptor("n", 0, "aggregate", (("k", "int"),), window, (Aggregate("n", "count"),))


def process(made_of: str, **arguments: object) -> OperatorDescriptor:
    shape = ProcessShape(made_of, json.dumps(arguments), (), (), "", ())
    return replace(aggregate(GLOBAL), kind="process", aggregates=(), process=shape)


def test_what_is_never_over_cannot_be_handed_over() -> None:
    assert b.lasts_for_ever(aggregate(Window(10, 5))) == ""
    assert "has no window" in b.lasts_for_ever(aggregate(GLOBAL))
    interval = "ferry.process.interval:IntervalJoin"
    assert b.lasts_for_ever(process(interval, lower_ms=-1, upper_ms=2)) == ""
    assert "operator n (IntervalJoin) keeps state that no window" in b.lasts_for_ever(process(interval, lower_ms=None))
    assert b.lasts_for_ever(process("ferry.process.interval:OuterIntervalJoin", lower_ms=0, upper_ms=2)) == ""
    assert b.lasts_for_ever(process("ferry.process.row_windows:RowWindows", size=5)) == ""
    assert "(Mine) keeps" in b.lasts_for_ever(process("jobs.own:Mine"))


@pytest.mark.parametrize("made_of", b.ENDING)
def test_processes_that_end_are_there(made_of: str) -> None:
    argument, found = b.ENDING[made_of], class_of(made_of)
    assert argument is None or argument in found.__dataclass_fields__
