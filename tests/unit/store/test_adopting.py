"""A join with other columns adopts the segments of a join: no row is written, and columns that go do not return."""

from __future__ import annotations

import errno
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Side
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Exhausted
from ferry.kernels import schemas
from ferry.store import rows, segments
from ferry.store.rows import RowState
from tests.unit.store.test_rows import RECORDS, contents, fired, fragments, naive_join, shape_of, upkeep

VNODES, EVERY = 8, np.arange(8)
LEFTS = (("who", "k", "int64"), ("a", "a", "string"), ("text", "text", "string"))
RIGHTS = (("b", "b", "int64"), ("f", "f", "double"))
COLUMNS = st.tuples(st.sets(st.integers(0, 2), min_size=1), st.sets(st.integers(0, 1), min_size=1))
WHOLE = ({0, 1, 2}, {0, 1})

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), RECORDS), st.tuples(st.just("work"), st.integers(1, 30)), st.tuples(st.just("reopen")),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 7), max_size=4)), st.tuples(st.just("expire"), st.integers(0, 15)),
        st.tuples(st.just("alter"), COLUMNS), st.tuples(st.just("again")),
    ),
    max_size=12,
)  # fmt: skip


def operator(index: int, columns: tuple[set[int], set[int]]) -> Any:
    left, right = (
        Side(tuple(c for n, c in enumerate(side) if n in of)) for side, of in zip((LEFTS, RIGHTS), columns, strict=True)
    )
    return replace(shape_of(), index=index, left=left, right=right)


def opened(folder: str | Path, descriptor: Any) -> RowState:
    return RowState(descriptor, VNODES, Path(folder, str(descriptor.index)))


def epoch(state: RowState, records: list[Any], number: int) -> None:
    times = EpochTimes(state.expired, state.expired)
    state.apply(state.delta([state.combine(fragments(state.descriptor, records))], times)[0], number, "a")


def as_now(before: RowState, now: RowState) -> Counter[Any]:
    """The rows of `before` with the columns of `now`."""
    names, was = schemas.rows_schema(now.descriptor).names, schemas.rows_schema(before.descriptor).names
    out: Counter[Any] = Counter()
    for row, count in contents(before).items():
        values = dict(zip(was, row, strict=True))
        out[tuple(values.get(name) for name in names)] += count
    return out


@settings(max_examples=120, deadline=None)
@given(STEPS)
def test_any_history_of_columns(steps: list[Any]) -> None:
    """Whatever becomes of the state before, and however often the adoption is repeated."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "TIER", 3)
        patch.setattr(segments, "PART_BYTES", 200)
        patch.setattr(rows, "_FUEL", 1)
        states = [opened(folder, operator(0, WHOLE))]
        held = [Counter[Any]()]
        """rows of each"""
        for number, (what, *values) in enumerate(steps):
            state = states[-1]
            match what:
                case "epoch":
                    epoch(state, values[0], number)
                    held[-1] = contents(state)
                case "work":
                    for one in states:
                        for _ in range(values[0]):
                            one.work()
                case "reopen":
                    was, states[:] = states[:], [opened(folder, one.descriptor) for one in states]
                    for one, other in zip(states, was, strict=True):
                        one.release(0, other.expired)
                case "drop":
                    state.drop(np.array(sorted(values[0]), np.int64))
                    held[-1] = contents(state)
                case "expire":
                    state.release(number, max(state.expired, 0) + values[0])
                    held[-1] = contents(state)
                case "alter":
                    states.append(opened(folder, operator(len(states), values[0])))
                    held.append(Counter())
                    _adopt(states, held)
                case "again" if len(states) > 1:
                    epoch(state, [(0, 99, 1, 2), (1, 99, 1, 2)], number)  # of a life that ended meanwhile
                    _adopt(states, held)
            assert [contents(one) for one in states] == held, what
            assert all(
                one.statistics()["entries"].sum() >= sum(h.values()) for one, h in zip(states, held, strict=True)
            )


def _adopt(states: list[RowState], held: list[Counter[Any]]) -> None:
    before, now = states[-2:]
    now.release(-1, before.expired)
    now.expired = before.expired
    assert now.adopt(before)
    held[-1] = as_now(before, now)


RECORDS_OF_A_WINDOW = [(side, 5, key, number) for side in (0, 1) for key in (1, 2) for number in (1, 2)]


def test_what_was_adopted_is_joined_and_no_row_was_written(tmp_path: Path) -> None:
    """Also if the state before has dropped its rows, and its files are gone."""
    before, after = opened(tmp_path, operator(0, WHOLE)), opened(tmp_path, operator(1, ({0, 1}, {0, 1})))
    for number in range(3):
        epoch(before, [r for r in RECORDS_OF_A_WINDOW if r[3] != number], number)
    assert after.adopt(before)
    assert {f.stat().st_ino for f in after.directory.glob("*.arrow")} == {
        s.path.stat().st_ino for s in before._segments
    }
    expected = naive_join(shape_of(), [r for n in range(3) for r in RECORDS_OF_A_WINDOW if r[3] != n], 0, 20)
    before.drop(EVERY)
    upkeep(before)
    assert not [*before.directory.glob("*.arrow")]
    assert fired(after, 0, 20) == expected == fired(opened(tmp_path, after.descriptor), 0, 20)


def test_applied_deltas_were_adopted_too(tmp_path: Path) -> None:
    """A restarted instance repeats its last epoch."""
    before, after = opened(tmp_path, operator(0, WHOLE)), opened(tmp_path, operator(1, WHOLE))
    epoch(before, RECORDS_OF_A_WINDOW, 7)
    after.adopt(before)
    for state in (after, opened(tmp_path, after.descriptor)):
        was = contents(state)
        epoch(state, RECORDS_OF_A_WINDOW, 7)
        assert contents(state) == was != Counter()


def test_columns_that_come_back_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file still has their values: before and after a restart, and for the next program."""
    monkeypatch.setattr(rows, "TIER", 2)
    states = [opened(tmp_path, operator(n, columns)) for n, columns in enumerate((WHOLE, ({0}, {1}), WHOLE, WHOLE))]
    for number in range(3):
        epoch(states[3], RECORDS_OF_A_WINDOW, number)  # of a life that ended meanwhile
    epoch(states[0], RECORDS_OF_A_WINDOW, 0)
    states[1].adopt(states[0])
    states[2].adopt(states[1])
    epoch(states[2], [(0, 5, 3, 4)], 1)
    states[3].adopt(states[2])
    for number, is_opened in ((2, False), (3, False), (2, True), (3, True)):
        state = opened(tmp_path, states[number].descriptor) if is_opened else states[number]
        seen = {(row[4] is None, row[5], row[7]) for row in contents(state)}
        assert seen == {(False, None, None), (True, None, None), (False, "4", None)}, seen
        was, joined = contents(state), fired(state, 0, 20)
        assert {row[3:5] for row in joined} == {(None, None)} == {row[4:6] for row in joined}, joined
        upkeep(state)
        assert contents(state) == was and fired(state, 0, 20) == joined


@pytest.mark.parametrize("what", ("expired", "a merge under way"))
def test_new_rows_are_not_taken_for_adopted_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """After a restart they have greater numbers, though no segment with the last number of the adoption is there."""
    monkeypatch.setattr(rows, "TIER", 2)
    monkeypatch.setattr(rows, "_FUEL", 0)
    before, after = opened(tmp_path, operator(0, ({0}, {1}))), opened(tmp_path, operator(1, WHOLE))
    for number in range(2):
        epoch(before, RECORDS_OF_A_WINDOW, number)
    if what == "a merge under way":
        before._merge()
        assert before._sequence == 3 and len(before._segments) == 2
    after.adopt(before)
    if what == "expired":
        after.release(2, 10)
    for number in (2, 3):
        after = opened(tmp_path, after.descriptor)
        epoch(after, [(0, 15, number, 4)], number)
    assert {row[5] for row in contents(opened(tmp_path, after.descriptor)) if row[2] == 3} == {"4"}


def test_segments_that_were_replaced_in_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged segment names them, and an adopted one may have such a name here."""
    monkeypatch.setattr(rows, "TIER", 3)
    monkeypatch.setattr(rows, "MERGE_BYTES_MAX", 20_000)  # A large segment stays beside smaller ones.
    before, after = opened(tmp_path, operator(0, WHOLE)), opened(tmp_path, operator(1, WHOLE))
    for number, many in enumerate((1, 1, 1, 200, 1, 1, 1)):
        epoch(before, RECORDS_OF_A_WINDOW * many, number)
        upkeep(before)
    gone = {name for segment in before._segments for name in segment.about.replaces}
    epoch(after, RECORDS_OF_A_WINDOW, 0)
    assert after.adopt(before) and gone & {segment.path.name for segment in after._segments[1:]}
    assert contents(opened(tmp_path, after.descriptor)) == contents(before)


def test_a_file_system_that_gives_a_file_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adoption says so, and leaves the state empty. A full disk is an error."""
    before, after = opened(tmp_path, operator(0, WHOLE)), opened(tmp_path, operator(1, WHOLE))
    for number in range(3):
        epoch(before, RECORDS_OF_A_WINDOW, number)
    real, linked = Path.hardlink_to, list[Path]()

    def link(self: Path, target: Path, allowed: int, code: int) -> None:
        if len(linked) == allowed:
            raise OSError(code, "no")
        linked.append(self)
        real(self, target)

    for allowed in (0, 2):
        linked.clear()
        monkeypatch.setattr(Path, "hardlink_to", lambda self, target, n=allowed: link(self, target, n, errno.EMLINK))
        assert not after.adopt(before) and contents(after) == Counter()
        after = opened(tmp_path, after.descriptor)
        assert contents(after) == Counter()
        linked.clear()
        monkeypatch.setattr(Path, "hardlink_to", lambda self, target, n=allowed: link(self, target, n, errno.ENOSPC))
        with pytest.raises(Exhausted):
            after.adopt(before)
    monkeypatch.undo()
    assert opened(tmp_path, after.descriptor).adopt(before)
    assert contents(opened(tmp_path, after.descriptor)) == contents(before)
