"""What an instance's data sends of a delta: the bytes that are logged."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.documents import RunSettings
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.contract.tickets import ReadTicket
from ferry.kernels.schemas import fired_schema, state_schema
from ferry.protocol import instance as core
from ferry.sidecar import data
from ferry.sidecar.data import Data
from ferry.spark.fragment import Fragmenter

ME, NEXT, LEARNER = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
SHAPE = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), Window(1000, 1000), (Aggregate("n", "count"),))
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
        self, directory: Path, me: InstanceId, lend_bytes: int, alive: Callable[[], None] = lambda: None
    ) -> None:
        self.sent: list[tuple[core.Send, Any]] = []
        self.me, self.directory = me, directory
        self.data = Data(
            settings_of(directory),
            me,
            directory,
            [SHAPE],
            lambda *a: self.sent.append(a),
            lambda *a: True,
            lend_bytes,
            alive,
        )
        self.data.saved()

    def compute(self) -> core.Computed:
        """An epoch with some records; one chain, and a learner."""
        f = Fragmenter(SHAPE, groups_max=10_000)
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
    said: list[int] = []
    one = One(tmp_path, ME, 0, lambda: said.append(1))
    one.compute()
    for chain in ((ME,), (ME, NEXT), (ME, LEARNER)):
        one.data.perform(core.LogDelta(delta_of(chain, (0, 1))))
    before = len(said)
    one.data.perform(core.Put(CommitId(STEP, ATTEMPT)))
    assert before >= 4 and len(said) - before >= 3


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

    # The next of the chain logs what came, and puts it.
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
    rows = pa.ipc.read_record_batch(body, state_schema(SHAPE))
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
    assert not one.data._bodies and len(places) <= 2, "a block is used again when what was sent from there is gone"


def test_the_last_of_a_chain_keeps_no_body(tmp_path: Path) -> None:
    one = One(tmp_path, ME, 0)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME,), ALL)))
    assert not one.data._bodies


def test_pieces_of_a_read_in_which_nothing_fires_let_the_loop_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = One(tmp_path, ME, 0)
    one.compute()
    nothing, row = (pa.RecordBatch.from_pylist(r, schema=fired_schema(SHAPE)) for r in ([], [{"k": 1, "n": 2}]))
    monkeypatch.setattr(one.data.states[0], "fired", lambda *_: iter([nothing, nothing, row, nothing]))
    let_in: list[bool] = []

    def loop() -> None:
        let_in.append(one.data._lock.acquire(timeout=60))
        one.data._lock.release()

    def sleep(seconds: float) -> None:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()

    monkeypatch.setattr(data.time, "sleep", sleep)
    _, read = one.data.read(ReadTicket(1, 1, 0, (1, 1), 0, 1000, ALL), lambda: True)
    assert list(read) == [row] and let_in == [True] * 3


def test_the_next_life_keeps_what_is_held_and_what_was_learned_whole(tmp_path: Path) -> None:
    one, label = One(tmp_path, ME, 0), CommitId(STEP, ATTEMPT)
    one.compute()
    one.data.perform(core.LogDelta(delta_of((ME,), ALL)))
    one.data.perform(core.Put(label))
    saved = core.Saved(1, label, holds=(0, 3), learned=(1,))
    one.data.perform(core.Save(saved))
    again = One(tmp_path, ME, 0)
    assert again.data.saved() == saved
    assert again.data.states[0].statistics()["entries"].astype(bool).tolist() == [v in (0, 1, 3) for v in ALL]


@pytest.mark.parametrize(
    "low, high, ends",
    [
        (limits.WATERMARK_NONE, limits.WATERMARK_NONE, 0),
        (limits.WATERMARK_NONE, 59_999, 12),
        (120_000, 120_000, 0),
        (120_000, 124_999, 0),
        (120_000, 125_000, 1),
        (119_999, 125_000, 2),
        (120_000, 420_000, 12),
        (120_000, limits.WATERMARK_END, 12),
    ],
)
def test_a_new_row_fires_in_as_many_windows_as_end(low: int, high: int, ends: int) -> None:
    """What fires decides whether the driver may fetch it: a minute every five seconds is twelve rows of one."""
    made: Any = object.__new__(Data)
    made.descriptors = [SimpleNamespace(window=Window(60_000, 5_000))]
    assert made._ends(0, low, high) == ends
