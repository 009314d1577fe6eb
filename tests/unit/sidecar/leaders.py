"""Instances without a protocol, whose leaders write checkpoints, for the tests of these."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import messages as m
from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.manifest import Manifest, chain_from_wire
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.contract.settings import CheckpointSettings
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.process.shapes import shape_of
from ferry.protocol import instance as core
from ferry.sidecar.data import Data
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.process import ProcessState
from tests.unit.sidecar.test_data import settings_of
from tests.unit.store.processes import COLUMNS, Everything

KEY, TEXT_KEY = (("k", "int"),), (("s", "string"), ("k", "int"))
AGGREGATES = (Aggregate("n", "count"), Aggregate("most", "max", "n"))
PROCESS = shape_of("p", Everything(), pa.schema([("k", pa.int64())]), [COLUMNS], "seq")
OPERATORS = [
    OperatorDescriptor("a", 0, "aggregate", KEY, Window(20, 10), AGGREGATES),
    OperatorDescriptor("t", 1, "aggregate", TEXT_KEY, Window(20, 10), AGGREGATES),
    OperatorDescriptor("u", 2, "aggregate", KEY, GLOBAL, AGGREGATES, emit="changes", ttl_ms=25),
    OperatorDescriptor(
        "j", 3, "join", KEY, Window(20, 20), (), Side((("l", "n", "int64"),)), Side((("r", "n", "int64"),))
    ),
    OperatorDescriptor("p", 4, "process", KEY, Window(1, 1), process=PROCESS),
]
SECONDS = 20.0
Record = tuple[int, int, int]
"""key, event time, number"""


def opened(directory: Path, number: int, vnodes: int, sent: Any = None) -> Data:
    me = InstanceId(f"{number}.0")
    made = settings_of(directory)
    object.__setattr__(made, "virtual_nodes", vnodes)
    object.__setattr__(made, "checkpoint", CheckpointSettings(str(directory / "store")))
    here = directory / str(number)
    here.mkdir(parents=True, exist_ok=True)
    one = Data(made, me, here, OPERATORS, lambda send, body: sent and sent(send.message), lambda *a: True)
    one.saved()
    return one


def fragments(operator: OperatorDescriptor, records: Sequence[Record], begin: int) -> list[pa.RecordBatch]:
    if not records:
        return []
    k, t, n = (list(column) for column in zip(*records, strict=True))
    batch = pa.record_batch(
        {"k": k, "t": t, "n": n, "s": [f"é{x % 3}" for x in k], "text": [f"x{x % 2}" for x in n]}
    ).append_column("seq", pa.array(range(begin, begin + len(k)), pa.int64()))
    found = []
    for side in (0, 1) if operator.kind == "join" else (0,):
        fragmenter = Fragmenter(operator, side)
        fragmenter.add(batch, [name for name, _ in operator.key], "t")
        found += fragmenter.drain()
    return found


def as_multiset(batches: Any) -> Counter[str]:
    return Counter(str(row) for batch in batches for row in batch.to_pylist())


def contents(data: Data, vnodes: np.ndarray) -> list[Counter[str]]:
    """By operator; an aggregate's snapshot has each key once when nothing changes meanwhile."""
    return [as_multiset(state.snapshot(vnodes)) for state in data.states]


class Cluster:
    """Instances without a protocol: each is a leader of some virtual nodes, and all are copies of all."""

    def __init__(self, directory: Path, instances: int, vnodes: int) -> None:
        self.directory, self.vnodes = directory, vnodes
        self.answers: queue.SimpleQueue[m.Checkpointed] = queue.SimpleQueue()
        self.all = [opened(directory, i, vnodes, self._sent) for i in range(instances)]
        self.epoch, self.low, self.seq = -1, WATERMARK_NONE, 0
        self.version = Version(1, 0)
        self.leads: list[list[int]] = [[] for _ in self.all]
        self.number = 0
        self.anew = False
        """The next checkpoint has all state."""
        self.fired: Counter[str] = Counter()

    def _sent(self, message: Any) -> None:
        if isinstance(message, m.Checkpointed):
            self.answers.put(message)

    def lead(self, leader_of: Sequence[int]) -> None:
        self.leads = [[v for v in range(self.vnodes) if leader_of[v] == i] for i in range(len(self.all))]
        for one, mine in zip(self.all, self.leads, strict=True):
            one.perform(core.Archive(tuple(mine)))

    def run(self, records: Sequence[Record], high: int) -> None:
        """One epoch; what it fires is in `fired`."""
        self.epoch += 1
        self.fired = Counter()
        times = EpochTimes(self.low, max(high, self.low), self.epoch, self.epoch * 12)
        for operator in OPERATORS:
            step = Step(self.epoch, operator.index)
            commit_id = CommitId(step, Attempt(1, self.epoch + 1))
            merged = self.all[0].states[operator.index].combine(fragments(operator, records, self.seq))
            made = []
            for one, mine in zip(self.all, self.leads, strict=True):
                vnodes = np.array(mine, np.int64)
                part = share(merged, vnodes, self.vnodes)
                delta, _ = one.states[operator.index].delta([part] if part.num_rows else [], times, vnodes)
                made.append(
                    (m.Delta(step, commit_id.attempt, self.version, one.me, (one.me,), tuple(mine), 0, 0), delta)
                )
            for one in self.all:
                for delta, batch in made:
                    one._log.append(commit_id, f"{delta.leader}", {"delta": m.encode(delta)}, batch)
                one.perform(core.Apply(commit_id))
                one.perform(core.ForgetLog(step))
            for one, mine in zip(self.all, self.leads, strict=True):
                self.fired += as_multiset(one.states[operator.index].fired(times, np.array(mine, np.int64)))
        self.seq += len(records)
        self.low = times.high

    def final(self) -> None:
        """The rows of the epoch are with the sinks."""
        for one in self.all:
            one.perform(core.Forget(self.epoch, (self.low,) * len(OPERATORS)))

    def pump(self) -> None:
        for one in self.all:
            assert one.archive is not None
            one.archive.pump()

    def ask(self) -> None:
        self.number += 1
        anew, self.anew = self.anew, False
        for one, mine in zip(self.all, self.leads, strict=True):
            if mine:
                watermarks = (self.low,) * len(OPERATORS)
                one.perform(core.WriteCheckpoint(self.number, self.version, self.epoch, watermarks, anew))

    def heard(self, pump: bool = True) -> list[bytes]:
        """What all leaders answer."""
        found: dict[InstanceId, bytes] = {}
        end = time.monotonic() + SECONDS
        while len(found) < sum(map(bool, self.leads)):
            assert time.monotonic() < end, f"only {[*found]} have answered"
            if pump:
                self.pump()
            try:
                answer = self.answers.get(timeout=0.001)
            except queue.Empty:
                continue
            if answer.number == self.number:
                assert answer.instance not in found
                found[answer.instance] = answer.chains
        return [*found.values()]

    def checkpoint(self) -> Manifest:
        """Ask until there is one."""
        end = time.monotonic() + SECONDS
        while True:
            self.ask()
            if all(answers := self.heard()):
                break
            assert time.monotonic() < end
        return self.publish(answers)

    def publish(self, answers: Sequence[bytes]) -> Manifest:
        chains = [chain_from_wire(one) for text in answers for one in json.loads(text)]
        made = Manifest(
            self.number, "j", "j-1", "j-1", 1, 1.0, CommitId(Step(self.epoch, 4), Attempt(1, 1)), (), b"",
            self.vnodes, tuple(OPERATORS), tuple(chains),
        )  # fmt: skip
        assert sorted(v for chain in chains for v in chain.vnodes) == list(range(self.vnodes))
        catalog = CheckpointCatalog(Location(str(self.directory / "store"), "j"))
        catalog.check(made)
        catalog.publish(made)
        return made

    def restored(self, manifest: Manifest, directory: Path, leader_of: Sequence[int], instances: int) -> Cluster:
        """Other instances, which begin with it: each holds what it leads only."""
        other = Cluster(directory, instances, self.vnodes)
        other.leads = [[v for v in range(self.vnodes) if leader_of[v] == i] for i in range(instances)]
        other.epoch, other.low, other.seq = manifest.epoch, self.low, self.seq
        origin = f"{CheckpointCatalog(Location(str(self.directory / 'store'), 'j')).url(manifest)}#2"
        for one, mine in zip(other.all, other.leads, strict=True):
            one.perform(core.Save(one.saved().changed(origin=origin)))
            one.perform(core.Erase())
            commit = m.Commit(manifest.commit_id, 0, (), b"", origin)
            done = one.perform(core.Restore(commit, tuple(mine)))
            assert isinstance(done, core.Restored) and not done.reason, done
        other.final()
        return other

    def contents(self) -> list[Counter[str]]:
        """Of the leaders, by operator."""
        total = [Counter[str]() for _ in OPERATORS]
        for one, mine in zip(self.all, self.leads, strict=True):
            for operator, found in enumerate(contents(one, np.array(mine, np.int64))):
                total[operator] += found
        return total

    def close(self) -> None:
        for one in self.all:
            for state in one.states:
                if isinstance(state, ProcessState):
                    state._entries.close()


def share(batch: pa.RecordBatch, vnodes: np.ndarray, of: int) -> pa.RecordBatch:
    hashes = batch.column("hash").to_numpy()
    at = (
        np.zeros(hashes.size, np.int64) if of == 1 else (hashes >> np.uint64(64 - of.bit_length() + 1)).astype(np.int64)
    )
    return batch.filter(pa.array(np.isin(at, vnodes)))


def same(one: Cluster, other: Cluster) -> None:
    for operator, a, b in zip(OPERATORS, one.contents(), other.contents(), strict=True):
        # Keys that are forgotten leave the table when it suits each instance: what is fired later says what they are.
        assert a == b or operator.ttl_ms is not None, operator.name


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)
