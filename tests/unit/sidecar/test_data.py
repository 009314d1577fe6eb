"""What an instance's data sends of a delta: the bytes that are logged."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.programs import first_program
from ferry.contract.routing import Version
from ferry.contract.settings import RunSettings
from ferry.contract.status import Links
from ferry.contract.tickets import ReadTicket
from ferry.kernels.schemas import fired_schema, state_schema
from ferry.process.shapes import shape_of
from ferry.protocol import instance as core
from ferry.sidecar import reads
from ferry.sidecar.data import BeginsAnew, Data
from ferry.sidecar.signs import Signs, look, write_end
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.process import ProcessState
from tests.unit.store.processes import COLUMNS, Everything, Fragile

ME, NEXT, LEARNER = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
DESCRIPTOR = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), Window(1000, 1000), (Aggregate("n", "count"),))
VNODES = 8
STEP, ATTEMPT = Step(1, 0), Attempt(1, 1)


def settings_of(directory: Path) -> RunSettings:
    return RunSettings(
        job="j", run="j-1", directory=str(directory), secret="", redis="", pipeline_module=None, pipeline_file=None,
        pipeline_args={}, virtual_nodes=VNODES, replicas=1, workers=3, instances_per_worker=1, memory_bytes=16 << 20,
        epoch_interval_ms=100, epoch_max_rows=100, cores=1,
    )  # fmt: skip


class One:
    """The data of one instance, and what it sent."""

    def __init__(
        self, directory: Path, me: InstanceId, lend_bytes: int, signs: Signs | None = None, *more: OperatorDescriptor
    ) -> None:
        self.sent: list[tuple[core.Send, Any]] = []
        self.me, self.directory = me, directory
        self.data = Data(
            settings_of(directory),
            me,
            directory,
            [DESCRIPTOR, *more],
            lambda *a: self.sent.append(a),
            lambda *a: True,
            lend_bytes,
            signs,
        )
        self.data.saved()

    def compute(self) -> core.Computed:
        """An epoch with some records; one chain, and a learner."""
        f = Fragmenter(DESCRIPTOR, groups_max=10_000)
        f.add(pa.record_batch({"k": list(range(3000)), "t": [1] * 3000}), ["k"], "t")
        (part,) = f.drain()
        merged = self.data.states[0].combine([part])
        self.data.receive(m.Partials(STEP, ATTEMPT, ME), merged)
        prepare = m.Prepare(STEP, ATTEMPT, Version(1, 1), ((ME, ()),), limits.WATERMARK_NONE, 0)
        done = self.data.perform(core.Compute(prepare, (ME,), (((ME, NEXT), tuple(range(VNODES))),)))
        assert isinstance(done, core.Computed)
        return done

    def bodies(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return [body for send, body in sent if isinstance(send.message, m.Delta)]

    def lies_in_arena(self, body: Any) -> bool:
        arena = self.data.arena
        if arena is None:
            return False
        start = ctypes.addressof(ctypes.c_char.from_buffer(arena))
        return start <= body.address and body.address + body.size <= start + len(arena)


def test_a_loop_says_that_it_lives_between_the_parts_of_long_work(tmp_path: Path) -> None:
    """Else its parent would take it for one that hangs, and kill it in the middle."""
    signs = Signs()
    signs.begin(tmp_path / "alive")
    one = One(tmp_path, ME, 0, signs)
    one.compute()
    for chain in ((ME,), (ME, NEXT), (ME, LEARNER)):
        one.data.perform(core.LogDelta(delta_of(chain, (0, 1))))
    before = look(tmp_path / "alive")
    one.data.perform(core.Apply(CommitId(STEP, ATTEMPT)))
    after = look(tmp_path / "alive")
    assert before is not None and after is not None and before.turn > 4 and after.turn - before.turn >= 3


def test_records_are_counted_as_they_come_not_as_rows_that_tasks_made_of_them(tmp_path: Path) -> None:
    """The key 7 has half of all records, and one row of a thousand."""
    one, f, keys = One(tmp_path, ME, 0), Fragmenter(DESCRIPTOR), [*range(1000), *[7] * 1000]
    f.add(pa.record_batch({"k": keys, "t": [1] * len(keys)}), ["k"], "t")
    one.data.receive(m.Partials(STEP, ATTEMPT, ME), one.data.states[0].combine(f.drain()))
    prepare = m.Prepare(STEP, ATTEMPT, Version(1, 1), ((ME, ()),), limits.WATERMARK_NONE, 0)
    one.data.perform(core.Compute(prepare, (ME,), (((ME, NEXT), tuple(range(VNODES))),)))
    told = one.data.tally.report(ME, "life", np.zeros(VNODES), Links())
    assert (sum(told.received), sum(told.computed)) == (2000, 1000)
    (hot,) = [v for v, rows, records in zip(told.vnodes, told.computed, told.received) if records != rows]
    assert told.received[told.vnodes.index(hot)] == told.computed[told.vnodes.index(hot)] + 1000


def test_altered_operators_and_copies_take_no_memory_from_the_others(tmp_path: Path) -> None:
    """A job may have had hundreds of them."""
    every = [replace(DESCRIPTOR, index=number) for number in range(5)]
    settings = settings_of(tmp_path)
    made = Data(settings, ME, tmp_path, every, lambda *a: None, lambda *a: True)
    assert made._memory_bytes == settings.memory_bytes


def test_states_of_processes_are_told_what_is_held_whole_and_of_which_timers_the_clock_is(tmp_path: Path) -> None:
    key, inputs = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("text", pa.string())])
    process = OperatorDescriptor(
        "p", 1, "process", (("k", "int"),), Window(1, 1), process=shape_of("p", Everything(), key, [inputs], None)
    )
    made = Data(settings_of(tmp_path), ME, tmp_path, [DESCRIPTOR, process], lambda *a: None, lambda *a: True)
    told: list[list[int]] = []
    state = made.states[1]
    assert isinstance(state, ProcessState)
    state.whole = lambda vnodes: told.append(sorted(vnodes.tolist()))  # type: ignore[method-assign]
    saved = made.saved()
    for holds, learned in (((1, 2), ()), ((1, 2), ()), ((1,), (5,))):
        made.perform(core.Save(saved.changed(holds=holds, learned=learned)))
    assert told == [[], [1, 2], [1, 5]]
    assert made.next_timer() is None
    f = Fragmenter(process)
    f.add(pa.record_batch({"k": [1, 2], "t": [70, 50], "n": [1, 1], "text": ["a", "b"]}), ["k"], "t")
    delta, _ = state.delta([state.combine(f.drain())], EpochTimes(0, 0, 1, 10), np.arange(VNODES))
    state.apply(delta, 1, "x")
    assert made.next_timer() == 50


@pytest.mark.parametrize(("n", "final", "said"), [(0, False, "user code: ZeroDivisionError"), (-1, True, "of no use")])
def test_an_instance_outlives_the_code_of_the_user(tmp_path: Path, n: int, final: bool, said: str) -> None:
    """It says so, has nothing of the attempt, and computes the next one."""
    process = OperatorDescriptor(
        "p", 0, "process", (("k", "int"),), Window(1, 1),
        process=shape_of("p", Fragile(), pa.schema([("k", pa.int64())]), [COLUMNS], None),
    )  # fmt: skip
    signs = Signs()
    made = Data(settings_of(tmp_path), ME, tmp_path, [process], lambda *a: None, lambda *a: True, signs=signs)
    made.saved()

    def compute(number: int, n: int) -> core.Event | None:
        f, attempt = Fragmenter(process), Attempt(1, number)
        f.add(pa.record_batch({"k": [1], "t": [0], "n": [n], "text": ["a"]}), ["k"], "t")
        made.receive(m.Partials(STEP, attempt, ME), made.states[0].combine(f.drain()))
        prepare = m.Prepare(STEP, attempt, Version(1, 1), ((ME, ()),), limits.WATERMARK_NONE, 0)
        return made.perform(core.Compute(prepare, (ME,), (((ME,), tuple(range(VNODES))),)))

    failed = compute(1, n)
    assert isinstance(failed, core.ComputeFailed) and said in failed.reason and "\n" not in failed.reason
    assert (failed.attempt, failed.final) == (Attempt(1, 1), final) and signs.computing is None
    assert not made.logged()
    assert isinstance(compute(2, 7), core.Computed)
    made.states[0].apply_absent = made.states[0].will_fire = made.states[0].delta = None  # type: ignore[assignment]
    void = m.Prepare(STEP, Attempt(1, 3), Version(1, 1), (), 1, 0)
    computed = made.perform(core.Compute(void, (), (((ME,), ALL),)))
    assert computed == core.Computed(STEP, Attempt(1, 3), (((ME,), ALL, 0, 0),)), "a void step runs nothing"


def test_a_program_that_is_missing_is_a_failure_of_this_instance(tmp_path: Path) -> None:
    """Elsewhere there may be the right one."""
    shape = shape_of("p", Fragile(), pa.schema([("k", pa.int64())]), [COLUMNS], None)
    gone = replace(shape, made_of="ferry_pipeline_mine_0123:Fragile")
    process = OperatorDescriptor("p", 0, "process", (("k", "int"),), Window(1, 1), process=gone)
    made = Data(settings_of(tmp_path), ME, tmp_path, [process], lambda *a: None, lambda *a: True)
    f = Fragmenter(process)
    f.add(pa.record_batch({"k": [1], "t": [0], "n": [1], "text": ["a"]}), ["k"], "t")
    made.receive(m.Partials(STEP, ATTEMPT, ME), made.states[0].combine(f.drain()))
    prepare = m.Prepare(STEP, ATTEMPT, Version(1, 1), ((ME, ()),), limits.WATERMARK_NONE, 0)
    with pytest.raises(SpecRefused, match="there is no ferry_pipeline_mine_0123:Fragile here"):
        made.perform(core.Compute(prepare, (ME,), (((ME,), tuple(range(VNODES))),)))


def delta_of(chain: tuple[InstanceId, ...], vnodes: tuple[int, ...]) -> m.Delta:
    return m.Delta(STEP, ATTEMPT, Version(1, 1), ME, chain, vnodes, 0, 0)


ALL = tuple(range(VNODES))


@pytest.mark.parametrize("lend_bytes", [0, 1 << 20])
def test_what_is_sent_down_a_chain_is_what_is_logged(tmp_path: Path, lend_bytes: int) -> None:
    one = One(tmp_path, ME, lend_bytes)
    one.compute()
    delta = delta_of((ME, NEXT), ALL)
    one.data.perform(core.LogDelta(delta))
    for _ in range(2):
        one.data.perform(core.SendDelta(NEXT, delta))
    first, second = one.bodies()
    assert first is second, "it is made once"
    assert one.lies_in_arena(first) == bool(lend_bytes)
    ((_, _, logged),) = one.data._log.entries(CommitId(STEP, ATTEMPT))
    assert logged.num_rows == 3000 and pa.ipc.read_record_batch(first, logged.schema) == logged

    # The next of the chain logs what came, and applies it.
    other = One(tmp_path / "other", NEXT, lend_bytes)
    other.data.receive(delta, memoryview(bytes(first)))
    other.data.perform(core.LogDelta(delta))
    assert other.data._log.entries(CommitId(STEP, ATTEMPT))[0][2] == logged
    other.data.perform(core.SendDelta(LEARNER, delta))
    assert [bytes(body) for body in other.bodies()] == [bytes(first)], "it is forwarded as it came"


def test_what_is_not_logged_here_is_made_when_it_is_sent(tmp_path: Path) -> None:
    one = One(tmp_path, ME, 1 << 20)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME, NEXT), ALL)))
    one.data.perform(core.SendDelta(LEARNER, delta_of((), (1, 2))))
    (body,) = one.bodies()
    rows = pa.ipc.read_record_batch(body, state_schema(DESCRIPTOR))
    assert not one.lies_in_arena(body) and 0 < rows.num_rows < 3000


def test_a_delta_of_the_log_of_an_earlier_life_is_made_again(tmp_path: Path) -> None:
    delta = delta_of((ME, NEXT), ALL)
    one = One(tmp_path, ME, 1 << 20)
    one.compute()
    one.data.perform(core.LogDelta(delta))
    again = One(tmp_path, ME, 1 << 20)
    assert again.data.logged() == (delta,)
    again.compute()
    again.data.perform(core.SendDelta(NEXT, delta))
    assert len(again.bodies()) == 1


def test_what_is_forgotten_is_sent_from_no_more(tmp_path: Path) -> None:
    one = One(tmp_path, ME, 256 << 10)
    delta = delta_of((ME, NEXT), ALL)
    places = set()
    for _ in range(5):
        one.compute()
        one.data.perform(core.LogDelta(delta))
        one.data.perform(core.SendDelta(NEXT, delta))
        (body,) = one.bodies()
        places.add(body.address)
        assert one.lies_in_arena(body)
        one.data.perform(core.ForgetLog(STEP))
    del body
    assert not one.data.attempt._bodies and len(places) <= 2, (
        "a block is used again when what was sent from there is gone"
    )


def test_the_last_of_a_chain_keeps_no_body(tmp_path: Path) -> None:
    one = One(tmp_path, ME, 0)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME,), ALL)))
    assert not one.data.attempt._bodies


def test_pieces_of_a_read_in_which_nothing_fires_let_the_loop_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = One(tmp_path, ME, 0)
    one.compute()
    nothing, row = (pa.RecordBatch.from_pylist(r, schema=fired_schema(DESCRIPTOR)) for r in ([], [{"k": 1, "n": 2}]))
    monkeypatch.setattr(one.data.states[0], "fired", lambda *_: iter([nothing, nothing, row, nothing]))
    let_in: list[bool] = []

    def loop() -> None:
        let_in.append(one.data._lock.acquire(timeout=60))
        one.data._lock.release()

    def sleep(seconds: float) -> None:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()

    monkeypatch.setattr(reads, "time", SimpleNamespace(sleep=sleep))  # of this module: other threads sleep, too
    _, read = one.data.read(ReadTicket(1, 1, 0, (1, 1), 0, 1000, ALL), lambda: True)
    assert list(read) == [row] and let_in == [True] * 3


def test_the_next_life_keeps_what_is_held_and_what_was_learned_whole(tmp_path: Path) -> None:
    one, commit_id = One(tmp_path, ME, 0), CommitId(STEP, ATTEMPT)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME,), ALL)))
    one.data.perform(core.Apply(commit_id))
    saved = core.InstanceRecord(1, commit_id, holds=(0, 3), learned=(1,))
    one.data.perform(core.Save(saved))
    again = One(tmp_path, ME, 0)
    assert again.data.saved() == saved
    assert again.data.states[0].statistics()["entries"].astype(bool).tolist() == [v in (0, 1, 3) for v in ALL]


def test_files_of_an_operator_that_no_program_had_are_no_state(tmp_path: Path) -> None:
    """A deploy came to nothing, and another operator has its id now."""
    one, commit_id = One(tmp_path, ME, 0), CommitId(STEP, ATTEMPT)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME,), ALL)))
    one.data.perform(core.Apply(commit_id))
    saved = core.InstanceRecord(1, commit_id, holds=ALL, programs=first_program(1))
    one.data.perform(core.Save(saved))
    (tmp_path / "state-1").mkdir()
    (tmp_path / "state-1" / "inventory").write_bytes(b"of another kind")
    other = replace(DESCRIPTOR, name="other", index=1)
    again = One(tmp_path, ME, 0, None, other)
    assert again.data.saved() == saved and again.data.states[0].statistics()["entries"].all()
    one.data.add(Catalogue((DESCRIPTOR, other), ()))
    assert not one.data.states[1].statistics()["entries"].any()


def test_damaged_files_are_given_up_by_name_and_the_next_life_begins_with_nothing(tmp_path: Path) -> None:
    one = One(tmp_path, ME, 0)
    one.compute()
    for chain in ((ME, NEXT),):
        one.data.perform(core.LogDelta(delta_of(chain, ALL)))
    one.data.perform(core.Apply(CommitId(STEP, ATTEMPT)))
    saved = core.InstanceRecord(generation=7, committed=CommitId(STEP, ATTEMPT), holds=ALL)
    one.data.perform(core.Save(saved))
    (table,) = tmp_path.glob("state-0/*.table")
    words = np.fromfile(table, np.int64)
    words[np.flatnonzero(words == 1)[-1]] ^= 1 << 20
    words.tofile(table)
    with pytest.raises(BeginsAnew, match=f"its state is damaged.*{table.name}: rows of virtual node"):
        One(tmp_path, ME, 0)
    again = One(tmp_path, ME, 0).data
    assert again._record.saved == core.InstanceRecord(generation=7), "it is no copy, and obeys whom it has obeyed"
    assert table.name in again.damage and not table.exists() and not again.sizes().any()
    assert not One(tmp_path, ME, 0).data.damage, "that is over"


@pytest.mark.parametrize(("code", "damaged"), [(-11, True), (-7, True), (-9, False), (-15, False), (1, False)])
def test_files_that_crash_whoever_opens_them_are_damaged(tmp_path: Path, code: int, damaged: bool) -> None:
    """But not those of a process that somebody has killed meanwhile."""
    record = One(tmp_path, ME, 0).data._record
    record.write(core.InstanceRecord(generation=3, holds=ALL, committed=CommitId(STEP, ATTEMPT)))
    record.opens()
    write_end(tmp_path, code)
    found = One(tmp_path, ME, 0).data
    assert (found._record.saved.holds == ()) == damaged and bool(found.damage) == damaged
