"""The simulated host has the same state as a real instance: both run the same stories and are compared after every step.

A story is a sequence of events for one instance. The real side is `Instance` and `Data` with files, the simulated side
`tests.sim.host`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract import messages as m
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, Term, vnode_shift
from ferry.contract.results import StepResult
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import RunSettings
from ferry.kernels.schemas import state_schema
from ferry.protocol import instance as core
from ferry.sidecar.data import Data
from tests.sim.data import SIZE
from tests.sim.world import World

A, ME, C = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
VNODES = 4
Rows = dict[tuple[int, int], int]
"""(slice, key) -> value; a key is of virtual node key % VNODES."""


@dataclass
class StoryStep:
    """One step of a story: an event, its rows, and the number of effects after which the instance dies, if it dies."""

    event: core.Event | None
    """None: the instance dies between two events."""
    rows: Rows = field(default_factory=dict)
    dies_after: int | None = None
    lost: str = ""
    """The leader whose logged deltas are lost at the restart ("*": all leaders)."""


def table(
    number: int, *groups: tuple[tuple[InstanceId, ...], tuple[InstanceId, ...]], initial: bool = False
) -> StoryStep:
    made = tuple(Group(Term(1, number), in_sync, learners) for in_sync, learners in groups)
    return StoryStep(m.Install(Table(Version(1, number), made, initial)))


def delta(epoch: int, number: int, rows: Rows, vnodes: tuple[int, ...], chain: tuple[InstanceId, ...] = (A, ME),
          version: int = 1, leader: InstanceId = A, operator: int = 0) -> StoryStep:  # fmt: skip
    step = Step(epoch, operator)
    return StoryStep(m.Delta(step, Attempt(1, number), Version(1, version), leader, chain, vnodes, 0, 0), rows)


def commit(
    epoch: int, number: int, low: int = 0, high: int = 0, dies_after: int | None = None, operator: int = 0
) -> StoryStep:
    results = (StepResult(Attempt(1, number), low, high),)
    return StoryStep(m.Commit(CommitId(Step(epoch, operator), Attempt(1, number)), 1, results), {}, dies_after)


def chunk(number: int, rows: Rows, base: int | None, last: bool = False, session: int = 1, floor: int = 0) -> StoryStep:
    commit_id = CommitId(Step(base, 0), Attempt(1, base + 1)) if base is not None else None
    return StoryStep(m.Chunk(A, session, number, commit_id, last, 0, floor), rows)


def spread(epoch: int, first: int | None = None) -> Rows:
    first = epoch if first is None else first
    return {(first + s, k): 100 * epoch + 10 * s + k + 1 for s in range(3) for k in range(8)}


def of(vnodes: tuple[int, ...], rows: Rows) -> Rows:
    return {at: x for at, x in rows.items() if at[1] % VNODES in vnodes}


DIES, ASK = StoryStep(None), StoryStep(m.Ask(1))
BOTH, ALL = ((A, ME), ()), (0, 1, 2, 3)
HELD = [table(1, BOTH, BOTH, BOTH, BOTH, initial=True), delta(0, 1, spread(0), ALL), commit(0, 1)]
LEARNS = ((A,), (ME,))
LEARNED = [
    table(1, LEARNS, LEARNS, ((A,), ()), ((A,), ())), commit(0, 1), chunk(0, of((0, 1), spread(0)), 0),
]  # fmt: skip

STORIES: dict[str, list[StoryStep]] = {
    "a replica follows": [*HELD, delta(1, 2, spread(1), ALL), commit(1, 2), DIES, ASK],
    "an Apply is cut short": [*HELD, delta(1, 2, spread(1), ALL), commit(1, 2, dies_after=2), ASK],
    "an Apply is cut short after the commit record": [*HELD, delta(1, 2, spread(1), ALL), commit(1, 2, dies_after=1), ASK],
    "an Apply is cut short, and its log is gone": [
        *HELD, delta(1, 2, spread(1), ALL), replace(commit(1, 2, dies_after=1), lost="*"), ASK, DIES, ASK,
    ],
    "an Apply is cut short, and a part of its log is gone": [
        table(1, BOTH, ((C, ME), ()), BOTH, ((C, ME), ()), initial=True), delta(0, 1, of((0, 2), spread(0)), (0, 2)),
        delta(0, 1, of((1, 3), spread(0)), (1, 3), (C, ME), leader=C), replace(commit(0, 1, dies_after=1), lost=C), ASK,
        table(2, LEARNS, ((C,), ()), ((A,), ()), ((C,), ())), commit(0, 1), chunk(0, of((0,), spread(0)), 0),
        chunk(1, {}, 0, last=True), DIES, ASK,
    ],
    "two attempts": [
        *HELD, delta(1, 2, spread(1), ALL), delta(1, 3, spread(2), ALL), DIES, ASK,
        table(1, BOTH, BOTH, BOTH, BOTH), commit(1, 3),
    ],
    "two chains": [
        table(1, BOTH, ((C, ME), ()), BOTH, ((C, ME), ()), initial=True), delta(0, 1, of((0, 2), spread(0)), (0, 2)),
        delta(0, 1, of((1, 3), spread(0)), (1, 3), (C, ME), leader=C), commit(0, 1), DIES,
    ],
    "slices end": [
        *HELD, delta(1, 2, spread(1), ALL), commit(1, 2, 0, 25), delta(2, 3, spread(2), ALL), commit(2, 3, 25, 35),
        delta(3, 4, spread(3, first=2), ALL), DIES, ASK,
    ],
    "slices that have ended do not come back": [
        *HELD, commit(0, 1), delta(1, 2, spread(1), ALL), commit(1, 2, 0, 25), delta(2, 3, spread(2, first=0), ALL),
        commit(2, 3, 25, 25, dies_after=2), ASK,
    ],
    "it leaves a group": [*HELD, table(2, BOTH, ((A,), ()), ((C,), ()), BOTH), DIES, ASK],
    "it leaves a group, and dies before it drops": [
        *HELD, StoryStep(table(2, BOTH, ((A,), ()), ((C,), ()), BOTH).event, {}, 1), ASK,
    ],
    "it leaves, and comes back": [
        *HELD, table(2, ((A,), ()), BOTH, BOTH, BOTH), table(3, LEARNS, BOTH, BOTH, BOTH),
        chunk(0, of((0,), spread(1)), 0), chunk(1, {}, 0, last=True), table(4, BOTH, BOTH, BOTH, BOTH), DIES, ASK,
    ],
    "a snapshot": [*LEARNED, chunk(1, {}, 0, last=True), table(2, BOTH, BOTH, ((A,), ()), ((A,), ())), DIES, ASK],
    "slices that are over at the leader only": [
        *LEARNED[:2], chunk(0, of((0, 1), spread(0)), 0, floor=15), chunk(1, {}, 0, last=True, floor=15), DIES,
    ],
    "slices that are over at the learner only": [
        *LEARNED[:1], commit(0, 1, 0, 15), delta(1, 2, of((0, 1), spread(1)), (0, 1), ()), commit(1, 2, 15, 15), DIES, ASK,
        LEARNED[0], commit(2, 3, 15, 15), chunk(0, of((0, 1), spread(0)), 2), chunk(1, {}, 2, last=True),
    ],
    "a snapshot is cut short": [*LEARNED, DIES, ASK],
    "whole, and dies before a table has it in sync": [*LEARNED, chunk(1, {}, 0, last=True), DIES, ASK],
    "a learner's delta beside the snapshot": [
        *LEARNED, delta(1, 2, of((0, 1), spread(1)), (0, 1), ()), commit(1, 2), chunk(1, {}, 0, last=True), DIES,
    ],
    "a learner's delta after its commit": [
        *LEARNED, chunk(1, {}, 0, last=True), commit(1, 2), delta(1, 2, of((0, 1), spread(1)), (0, 1), ()), DIES,
    ],
    "a learner's delta that comes over another leader's snapshot": [
        *LEARNED, chunk(1, {}, 0, last=True), commit(1, 2), table(2, LEARNS, ((C,), (ME,)), ((A,), ()), ((A,), ())),
        StoryStep(m.Chunk(C, 2, 0, CommitId(Step(1, 0), Attempt(1, 2)), False, 0, 0), of((1,), {**spread(0), **spread(1)})),
        StoryStep(m.Chunk(C, 2, 1, CommitId(Step(1, 0), Attempt(1, 2)), True, 0, 0)),
        delta(1, 2, of((0, 1), spread(1)), (0, 1), ()),
    ],
    "a snapshot begins again": [
        *LEARNED, StoryStep(core.PeerLost(A)), chunk(0, of((0, 1), spread(1)), 0, session=2),
        chunk(1, {}, 0, last=True, session=2),
    ],
    "a snapshot of a leader that is ahead in time": [
        *LEARNED, commit(1, 2, 0, 20), StoryStep(core.Tick(60_000)), chunk(0, of((0, 1), spread(2)), 1, session=2, floor=20),
        chunk(1, {}, 1, last=True, session=2, floor=20), DIES, ASK,
    ],
}  # fmt: skip


AGGREGATE = OperatorDescriptor(
    "n", 0, "aggregate", (("k", "int"),), Window(SIZE[0], SIZE[0]), (Aggregate("n", "count"),)
)
JOIN = OperatorDescriptor("j", 0, "join", (("k", "int"),), Window(SIZE[0], SIZE[0]), (),
             Side((("x", "x", "int64"),)), Side((("y", "y", "int64"),)))  # fmt: skip


def appended(step: StoryStep) -> StoryStep:
    """The same step for a state that only grows: every epoch has its own keys."""
    return replace(step, rows={(s, k + 2 * VNODES * (x // 100)): x for (s, k), x in step.rows.items()})


class Real:
    """`Instance` on `Data`, with files."""

    def __init__(self, directory: Path, descriptor: OperatorDescriptor) -> None:
        self.directory, self.descriptor = directory, descriptor
        self.begin()

    def begin(self) -> None:
        settings = RunSettings(
            job="j", run="j-1", directory=str(self.directory), secret="", redis="", pipeline_module=None,
            pipeline_file=None, pipeline_args={}, virtual_nodes=VNODES, replicas=1, workers=3, instances_per_worker=1,
            memory_bytes=16 << 20, epoch_interval_ms=100, epoch_max_rows=100, cores=1,
        )  # fmt: skip
        self.sent: list[m.Message] = []
        self.data = Data(
            settings,
            ME,
            self.directory,
            [self.descriptor],
            lambda send, _: self.sent.append(send.message),
            lambda *_: True,
        )
        self.core = core.Instance(ME, self.data.saved(), self.data.logged())
        self.perform(self.core.start(), None)

    def perform(self, effects: list[core.Effect], dies_after: int | None) -> None:
        for effect in effects[:dies_after]:
            assert self.data.perform(effect) is None

    def take(self, step: StoryStep) -> None:
        if step.event is not None:
            if isinstance(step.event, m.Delta | m.Chunk):
                self.data.receive(step.event, self.batch(step.rows))
            self.perform(self.core.step(step.event), step.dies_after)
        if step.event is None or step.dies_after is not None:
            if step.lost:
                for file in (self.directory / "log").glob(f"*-{step.lost}-*.delta"):
                    file.unlink()
            self.begin()

    def batch(self, rows: Rows) -> pa.RecordBatch:
        order = sorted((k % VNODES << vnode_shift(VNODES) | k, s, k, x) for (s, k), x in rows.items())
        columns: dict[str, list[Any]] = {
            "slice": [s * SIZE[0] for _, s, _, _ in order],
            "hash": [h for h, _, _, _ in order],
            "key": [k for _, _, k, _ in order],
        }
        values = [x for *_, x in order]
        if self.descriptor.kind == "aggregate":
            columns["n"] = values
        else:
            columns |= {"side": [0] * len(values), "l_x": values, "r_y": [None] * len(values)}
        return pa.RecordBatch.from_pydict(columns, schema=state_schema(self.descriptor))

    def holds(self) -> dict[int, Counter[tuple[int, int, int]]]:
        """By virtual node: (slice, key, value), with the number of rows."""
        out = {}
        for v in range(VNODES):
            found: Counter[tuple[int, int, int]] = Counter()
            for batch in self.data.states[0].snapshot(np.array([v])):
                value = "n" if self.descriptor.kind == "aggregate" else "l_x"
                slices, keys = batch["slice"].to_pylist(), batch["key"].to_pylist()
                found.update(zip((s // SIZE[0] for s in slices), keys, batch[value].to_pylist(), strict=True))
            out[v] = found
        return out

    @property
    def floor(self) -> int:
        return self.data.states[0].expired

    def logged(self) -> list[tuple[CommitId, tuple[int, ...]]]:
        return sorted((CommitId(d.step, d.attempt), d.vnodes) for d in self.data.logged())


class Simulated:
    """The same instance in the simulation."""

    def __init__(self) -> None:
        world = self.world = World(0)
        self.host, world.timers = world.hosts[ME], [False]
        self.sent: list[m.Message] = []

        def fail(what: str) -> None:
            raise AssertionError(what)

        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        world.checks = SimpleNamespace(applies=nothing, saved=nothing, fail=fail)  # type: ignore[assignment]
        world.before = lambda kind, who: self.count()  # type: ignore[method-assign]
        world.to_driver = lambda host, origin, message: self.sent.append(message)  # type: ignore[method-assign]
        world.net.send = lambda s, t, lane, message, body: self.sent.append(message)  # type: ignore[method-assign]
        self.left: int | None = None
        self.begin()

    def begin(self) -> None:
        self.left = None
        self.sent = []
        self.host.start()
        self.world.counts = {"Apply": 0, "Save": 0, "Drop": 0, "ForgetLog": 0, "Send": 0, "LogDelta": 0, "LoadChunk": 0}

    def count(self) -> str:
        if self.left is None:
            return ""
        self.left -= 1
        return "dies" if self.left < 0 else ""

    def take(self, step: StoryStep) -> None:
        self.left = step.dies_after
        if step.event is not None:
            body: Any = None
            rows = [(k % VNODES, (0, s, k), x) for (s, k), x in step.rows.items()]
            match step.event:
                case m.Delta(vnodes=vnodes):
                    body = {v: {row: x for w, row, x in rows if w == v} for v in vnodes}
                case m.Chunk():
                    body = rows
            self.host.take(step.event, "", body)
        if step.event is None or step.dies_after is not None:
            if self.host.alive:
                self.world.crash(self.host)
            log = self.host.files.log
            for commit_id in list(log) if step.lost else ():
                log[commit_id] = [(d, body) for d, body in log[commit_id] if step.lost not in ("*", d.leader)]
            self.begin()

    def holds(self) -> dict[int, Counter[tuple[int, int, int]]]:
        state = self.host.files.state
        return {v: Counter((s, k, x) for (_, s, k), x in state.get(v, {}).items()) for v in range(VNODES)}

    @property
    def floor(self) -> int:
        return self.host.floors[0]

    def logged(self) -> list[tuple[CommitId, tuple[int, ...]]]:
        return sorted((lb, d.vnodes) for lb, entries in self.host.files.log.items() for d, _ in entries)


def live(side: Real | Simulated, over: int) -> dict[int, Counter[tuple[int, int, int]]]:
    """Rows of slices that are not final: a file stays until all its slices are final, and final slices are never read."""
    return {
        v: Counter({row: n for row, n in held.items() if (row[0] + 1) * SIZE[0] > over})
        for v, held in side.holds().items()
    }


@pytest.mark.sim
@pytest.mark.parametrize("descriptor", [AGGREGATE, JOIN], ids=["aggregate", "join"])
@pytest.mark.parametrize("name", STORIES)
def test_the_simulated_host_holds_what_the_real_one_does(
    name: str, descriptor: OperatorDescriptor, tmp_path: Path
) -> None:
    real, simulated = Real(tmp_path, descriptor), Simulated()
    over = real.floor
    for number, step in enumerate(STORIES[name]):
        if descriptor.kind == "join":
            step = appended(step)
        real.take(step)
        simulated.take(step)
        where = f"after step {number}: {step.event}"
        assert real.core.saved == simulated.host.core.saved == simulated.host.files.saved, where
        assert real.floor == simulated.floor, where
        over = max(over, real.floor)
        assert live(real, over) == live(simulated, over), where
        assert real.logged() == simulated.logged(), where
        assert real.sent == simulated.sent, where
    assert any(real.holds().values()) or "cut short" in name or "leaves" in name


@pytest.mark.sim
@pytest.mark.parametrize("name", [name for name in STORIES if "log is gone" in name])
def test_an_apply_that_cannot_be_done_again_leaves_no_copy(name: str, tmp_path: Path) -> None:
    real = Real(tmp_path, AGGREGATE)
    story = STORIES[name]
    for step in story[: story.index(ASK) + 1]:
        real.take(step)
    (answer,) = [message for message in real.sent if isinstance(message, m.Answer)]
    assert (answer.committed, answer.holds, answer.prepared) == (None, (), ())
    assert not any(real.holds().values()) and not real.logged()
    assert real.core.saved.generation == 1, "it still knows the generation of its driver"
