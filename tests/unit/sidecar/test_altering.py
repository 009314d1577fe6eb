"""Derived state equals the state before, whatever happens while it is derived; a copy that began before the switch is whole."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.programs import Programs, ProgramVersion, first_program
from ferry.kernels.altering import deriving
from ferry.kernels.schemas import state_schema
from ferry.sidecar.altering import Altering, obsolete
from ferry.sidecar.scans import begun
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.state import State, open_state

BEFORE = OperatorDescriptor("a", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("s", "sum", "x"),))
AFTER = replace(BEFORE, index=1, aggregates=(Aggregate("m", "max", "x"), *BEFORE.aggregates))
AGGREGATES = BEFORE, AFTER
X, Y = Side((("x", "x", "int64"),)), Side((("y", "x", "int64"), ("x", "x", "int64")))
JOINS = (
    OperatorDescriptor("j", 0, "join", BEFORE.key, BEFORE.window, (), X, X),
    OperatorDescriptor("j", 1, "join", BEFORE.key, BEFORE.window, (), Y, X),
)
VNODES, EVERY = 4, np.arange(4)
ALTERED = ((1, 0),)
LOADING, SWITCH, SETTLED = (
    first_program(1),
    (*first_program(1), ProgramVersion(2, 5, (1,), ALTERED)),
    (ProgramVersion(2, 5, (1,), ALTERED),),
)


class Instance:
    def __init__(
        self,
        folder: Path,
        programs: Programs = LOADING,
        kinds: tuple[OperatorDescriptor, ...] = AGGREGATES,
    ) -> None:
        self.kinds = kinds
        self.states: list[State] = [open_state(d, VNODES, folder / str(d.index), 1 << 24) for d in kinds]
        self.altering = Altering(self.states, kinds, VNODES, threading.RLock(), programs)
        self.epoch = 0

    def records(self, operator: int, keys: list[int], time: int) -> None:
        """An epoch with these records of an operator."""
        self.epoch += 1
        state, fragmenter = self.states[operator], Fragmenter(self.kinds[operator])
        fragmenter.add(pa.record_batch({"k": keys, "x": keys, "t": [time] * len(keys)}), ["k"], "t")
        delta, _ = state.delta([state.combine(fragmenter.drain())], EpochTimes(state.expired, state.expired))
        state.apply(delta, self.epoch, "")
        self.altering.applied(operator, delta, self.epoch, "")

    def load(self, chunk: pa.RecordBatch, operator: int = 0) -> None:
        self.states[operator].apply_absent(chunk)
        self.altering.loaded(operator, chunk)

    def drop(self, vnodes: list[int]) -> None:
        for state in self.states:
            state.drop(np.array(vnodes))

    def release(self, watermark: int) -> None:
        self.states[0].release(self.epoch, watermark)
        self.altering.release(self.epoch, (watermark,), False)

    def derive(self) -> None:
        while self.altering.step():
            pass


def rows(state: State, descriptor: OperatorDescriptor) -> list[Any]:
    found = pa.Table.from_batches(list(state.snapshot(EVERY)), state_schema(descriptor))
    return sorted(tuple(map(str, row.values())) for row in found.to_pylist())


def expected(instance: Instance) -> list[Any]:
    derive = deriving(*instance.kinds[:2])
    batches = [derive(piece) for piece in instance.states[0].snapshot(EVERY)]
    found = pa.Table.from_batches(batches, state_schema(instance.kinds[1]))
    return sorted(tuple(map(str, row.values())) for row in found.to_pylist())


KEYS = st.lists(st.integers(0, 40), min_size=1, max_size=30)
EVENTS = st.one_of(
    st.tuples(st.just("records"), KEYS, st.integers(0, 60)), st.tuples(st.just("step")), st.tuples(st.just("release"), st.integers(0, 50)),
    st.tuples(st.just("drop"), st.lists(st.integers(0, 3), max_size=2)), st.tuples(st.just("chunk"), KEYS), st.tuples(st.just("again")),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(KEYS, st.lists(EVENTS, max_size=20), st.integers(0, 8), st.sampled_from((AGGREGATES, JOINS)))
def test_what_happens_meanwhile_is_derived_too(
    tmp_path_factory: pytest.TempPathFactory, first: list[int], events: list[Any], begin: int, kinds: Any
) -> None:
    folder = tmp_path_factory.mktemp("altering")
    one, other = Instance(folder / "one", kinds=kinds), Instance(folder / "other", kinds=kinds)
    one.records(0, first, 5)
    one.states[1].apply_absent(expected_rows(one))  # of a life that ended meanwhile
    for number, (what, *values) in enumerate(events):
        if number == begin:
            one.altering.begin(ALTERED)
        match what:
            case "records":
                one.records(0, *values)
            case "chunk":
                other.records(0, values[0], 15)
                for piece in other.states[0].snapshot(EVERY):
                    one.load(piece)
            case "step":
                one.altering.step()
            case "again":
                one.altering.begin(ALTERED if number >= begin else ())
            case _:
                getattr(one, what)(*values)
    one.altering.begin(ALTERED)
    one.derive()
    one.release(0)
    assert rows(one.states[1], kinds[1]) == expected(one)
    for state in one.states + other.states:
        state.drop(EVERY)


def expected_rows(instance: Instance) -> pa.RecordBatch:
    (piece,) = instance.states[0].snapshot(EVERY)
    return deriving(*instance.kinds)(piece)


def test_a_join_is_there_at_once(tmp_path: Path) -> None:
    one = Instance(tmp_path, kinds=JOINS)
    one.records(0, [1, 2, 3], 5)
    one.altering.begin(ALTERED)
    assert not one.altering.step() and rows(one.states[1], JOINS[1]) == expected(one) != []


def test_a_copy_that_began_before_the_switch_is_whole(tmp_path: Path) -> None:
    """Its chunks have the state before only, and the learner derives them after the switch, too."""
    leader, learner = Instance(tmp_path / "leader"), Instance(tmp_path / "learner")
    leader.records(0, [*range(40)], 5)
    for one in (leader, learner):
        one.altering.begin(ALTERED)
        one.derive()
    assert leader.altering.left_out == {1}
    chunks = begun(leader.states, EVERY, leader.altering.left_out)
    for one in (leader, learner):
        assert one.altering.install(SWITCH) and not one.altering.left_out
        one.records(1, [7, 8], 5)
        assert not one.altering.install(SETTLED)
    leader.altering.release(5, (0, 0), copying=True)
    for operator, _, batch in chunks:
        if batch is not None:
            learner.load(batch, operator)
    assert len(rows(learner.states[1], AFTER)) == 40
    leader.altering.release(4, (0, 0), copying=False)
    assert rows(leader.states[0], BEFORE), "epoch 5 may be taken back"
    leader.altering.release(5, (0, 0), copying=False)
    assert rows(leader.states[0], BEFORE) == [] and len(rows(leader.states[1], AFTER)) == 40


@pytest.mark.parametrize("kinds", (AGGREGATES, JOINS))
@pytest.mark.parametrize("is_begun", (False, True))
def test_a_copy_that_begins_after_the_switch_has_each_row_once(tmp_path: Path, kinds: Any, is_begun: bool) -> None:
    """Though the state before is still there, and a learner derives its chunks. Without an epoch of the program, the table
    may be taken back, and the learner has the state before."""
    leader, learner = Instance(tmp_path / "leader", kinds=kinds), Instance(tmp_path / "learner", SWITCH, kinds=kinds)
    leader.records(0, [*range(40)], 5)
    leader.altering.begin(ALTERED)
    leader.derive()
    leader.altering.install(SWITCH)
    leader.epoch = 4
    if is_begun:
        leader.records(1, [7, 7], 5)
    base = CommitId(Step(leader.epoch, 0), Attempt(1, 1))
    for operator, _, batch in begun(leader.states, EVERY, leader.altering.left_out_of_copy(base)):
        if batch is not None:
            learner.load(batch, operator)
    assert rows(learner.states[1], kinds[1]) == rows(leader.states[1], kinds[1])
    assert is_begun or rows(learner.states[0], kinds[0]) == rows(leader.states[0], kinds[0])
    assert leader.altering.left_out_of_copy(None) == {1}


def test_a_learner_derives_the_last_deltas_of_the_program_before(tmp_path: Path) -> None:
    """They come after the table, while the learner still copies; later deltas of that operator are of no concern."""
    one = Instance(tmp_path, SWITCH)
    one.records(0, [1, 2, 3], 5)
    assert rows(one.states[1], AFTER) == expected(one) != []
    one.epoch = 4
    one.records(0, [4], 5)
    assert len(rows(one.states[1], AFTER)) == 3


def test_a_late_delta_reaches_an_operator_that_is_derived_from_an_altered_one(tmp_path: Path) -> None:
    one = Instance(tmp_path, kinds=(*JOINS, replace(JOINS[1], index=2, left=X)))
    one.records(0, [*range(40)], 5)
    one.altering.begin(ALTERED)
    one.altering.install(SWITCH)
    one.altering.begin(((2, 1),))
    one.records(0, [7, 8], 5)
    assert [state.statistics()["entries"].sum() for state in one.states] == [42, 42, 42]


@pytest.mark.parametrize("kinds", (AGGREGATES, JOINS))
def test_a_program_that_never_came_into_force_leaves_no_rows(tmp_path: Path, kinds: Any) -> None:
    """It was refused, or its table was taken back. The state of an operator that a later program removes is kept."""
    for what in ("refused", "taken back", "removed"):
        one = Instance(tmp_path / what, kinds=kinds)
        one.records(0, [*range(40)], 5)
        one.altering.begin(ALTERED)
        one.derive()
        if what == "refused":
            one.altering.begin(())
        else:
            one.altering.install(SWITCH)
            one.altering.install(LOADING if what == "taken back" else (*SWITCH, ProgramVersion(3, 7, (3,))))
            one.altering.install(LOADING if what == "taken back" else (ProgramVersion(3, 7, (3,)),))
        counts = [int(state.statistics()["entries"].sum()) for state in one.states]
        assert counts == ([40, 40] if what == "removed" else [40, 0]), what


def test_what_no_program_needs() -> None:
    first, more = ProgramVersion(1, 0, (0, 1)), ProgramVersion(2, 5, (2, 1), ((2, 0),))
    assert obsolete((first, more)) == obsolete((more, ProgramVersion(3, 7, (2,)))) == {0}
    both = ProgramVersion(2, 5, (3, 4, 0, 1), ((3, 0), (4, 1)), (3, 4))
    assert obsolete((first, both)) == set()
    assert obsolete((both, ProgramVersion(3, 9, (0, 1)))) == {3, 4}
    assert obsolete((both, ProgramVersion(3, 9, (3, 4)))) == {0, 1}
    returns = ProgramVersion(2, 5, (3, 4, 1), ((3, 0), (4, 1)), (3, 4))
    assert obsolete((first, returns)) == set()
    assert obsolete((returns, ProgramVersion(3, 9, (1,)))) == {3, 4}, "operator 0 was removed before, and may return"
    assert obsolete((returns, ProgramVersion(3, 9, (3, 4)))) == {0, 1}
    assert obsolete((ProgramVersion(3, 9, (0, 1)), ProgramVersion(4, 11, (1,)))) == set(), "kept for its return"


def test_the_first_table_of_an_instance(tmp_path: Path) -> None:
    assert not Instance(tmp_path, ()).altering.install(LOADING)


def test_an_operator_beside_the_one_it_was_derived_from_is_on_its_own(tmp_path: Path) -> None:
    """Neither deltas nor chunks of the other one are derived any more. The state that is in no program goes."""
    beside = ProgramVersion(2, 5, (1, 0), ALTERED, silent=(1,))
    for gone, programs in ((0, (1,)), (1, (0,))):
        one = Instance(tmp_path / str(gone))
        one.records(0, [1, 2, 3], 5)
        one.altering.begin(ALTERED)
        one.derive()
        assert one.altering.install((*LOADING, beside)) and not one.altering.install((beside,))
        one.records(0, [4], 5)
        chunk = expected_rows(one)
        one.load(next(iter(one.states[0].snapshot(EVERY))))
        assert len(rows(one.states[1], AFTER)) == 3 and chunk.num_rows == 4
        last = ProgramVersion(3, 9, programs, ALTERED if gone == 0 else ())
        one.altering.install((beside, last))
        one.altering.release(8, (0, 0), copying=False)
        assert all(state.statistics()["entries"].sum() for state in one.states), "epoch 9 may be taken back"
        one.altering.release(9, (0, 0), copying=False)
        assert [bool(state.statistics()["entries"].sum()) for state in one.states] == [gone == 1, gone == 0]


def test_an_instance_that_was_not_loaded_derives_at_the_table_and_never_again(tmp_path: Path) -> None:
    one = Instance(tmp_path)
    one.records(0, [1, 2, 3], 5)
    assert one.altering.missing(ALTERED) == [*ALTERED]
    one.altering.begin(ALTERED)
    one.derive()
    one.altering.install(SWITCH)
    one.records(1, [1], 5)
    before = rows(one.states[1], AFTER)
    one.altering.begin(ALTERED)
    assert one.altering.missing(ALTERED) == [] and not one.altering.step() and rows(one.states[1], AFTER) == before
    again = Instance(tmp_path / "again", SETTLED)
    assert again.altering.missing(ALTERED) == []


def test_a_program_that_is_taken_back_is_derived_no_more(tmp_path: Path) -> None:
    one = Instance(tmp_path)
    one.records(0, [1], 5)
    one.altering.begin(ALTERED)
    one.derive()
    one.altering.install(SWITCH)
    assert not one.altering.install(LOADING)
    one.records(0, [2], 5)
    assert len(rows(one.states[0], BEFORE)) == 2 and rows(one.states[1], AFTER) == []
