"""Records that tasks condense, against the same records as they are: changes of state, rows and late ones are the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.processes import EACH_TIME
from ferry.api.stream import Stream
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import DataRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.driver.epochs import Epochs
from ferry.kernels.kinds import type_of
from ferry.process.aggregator import Aggregator, Functions
from ferry.process.sessions import SessionAggregate
from ferry.process.shapes import process_of, shape_of
from ferry.spark.tasks import process_rows, warmup
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.process_rows import condensing
from ferry.store.process import ProcessState
from tests.unit.process.test_aggregator import Joined

VNODES = 8
GAP = 10
KEYS: dict[str, Any] = {"integer": (("k", "int"),), "text": (("s", "string"), ("k", "int"))}
INPUT = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("w", pa.string())])
WORDS = {
    "n": ferry.count(), "values": ferry.count("v"), "total": ferry.sum("v"), "mean": ferry.mean("v"),
    "least": ferry.min("v"), "most": ferry.max("w"), "first": ferry.first("v"), "last": ferry.last("w"),
    "best": ferry.arg_max("v", by="w"), "distinct": ferry.approx_count_distinct("w"),
}  # fmt: skip


@dataclass
class FunctionsOfRecords(Functions):
    """The same functions, of records that no task condenses."""

    commutative = False


@dataclass
class Xor(ferry.Aggregator):
    """One of a user's own."""

    column: str
    state = output = pa.schema([("bits", pa.int64())])
    commutative = True

    def update(self, rows: pa.RecordBatch, begins: Any) -> Any:
        values = rows.column(self.column).fill_null(0).to_numpy(zero_copy_only=False)
        return {"bits": np.bitwise_xor.reduceat(values, begins)}

    def merge(self, states: pa.RecordBatch, begins: Any) -> Any:
        return {"bits": np.bitwise_xor.reduceat(states.column("bits").to_numpy(), begins)}

    def result(self, states: pa.RecordBatch) -> Any:
        return states


@dataclass
class XorOfRecords(Xor):
    """The same, and it does not say that states may come in any order."""

    commutative = False


@dataclass
class WithoutNulls(Xor):
    """It does not stand what is in none of its records."""

    def update(self, rows: pa.RecordBatch, begins: Any) -> Any:
        return {"bits": np.bitwise_xor.reduceat(rows.column(self.column).to_numpy(), begins)}


PAIRS = {"functions": (Functions(WORDS), FunctionsOfRecords(WORDS)), "own": (Xor("v"), XorOfRecords("v"))}


def descriptor_of(aggregator: Aggregator, key: Any) -> OperatorDescriptor:
    columns = pa.schema([(name, type_of(kind)) for name, kind in key])
    shape = shape_of("p", SessionAggregate(GAP, aggregator), columns, [INPUT], None)
    made = OperatorDescriptor("p", 0, "process", key, EACH_TIME, process=shape)
    assert OperatorDescriptor.from_wire(made.to_wire()) == made
    return made


def opened(descriptor: OperatorDescriptor, directory: Path) -> ProcessState:
    return ProcessState(descriptor, lambda: process_of(descriptor), VNODES, directory)


def test_an_aggregator_of_the_users_is_given_no_records_that_nobody_sent() -> None:
    descriptor = descriptor_of(WithoutNulls("v"), KEYS["integer"])
    warmup.load([(descriptor, condensing(descriptor))])


@pytest.mark.parametrize(
    ("aggregator", "named"),
    [(Xor("v"), r"Xor \(test_process_rows\.py:\d+\)"), (XorOfRecords("v"), ""), (Functions(WORDS), "")],
)
def test_an_aggregator_of_the_users_is_named_where_tasks_call_it(aggregator: Aggregator, named: str) -> None:
    operator: Any = SimpleNamespace(descriptor=descriptor_of(aggregator, KEYS["integer"]), inputs=())
    epochs: Any = SimpleNamespace(plan=SimpleNamespace(sources={}))
    assert re.fullmatch(named, Epochs._code_in_tasks(epochs, operator))


Record = tuple[int | None, int, int | None]
"""key, event time, value"""


def fragments(descriptor: OperatorDescriptor, tasks: Sequence[Sequence[Sequence[Record]]], low: int) -> Any:
    """What tasks send of their batches."""
    found = []
    for batches in tasks:
        condense = cloudpickle.loads(cloudpickle.dumps(condensing(descriptor, low)))  # as Spark gives it to tasks
        task = Fragmenter(descriptor, condense=condense)
        for batch in batches:
            rows = [
                {"k": k, "s": "x" * (k or 0), "t": t, "v": v, "w": None if v is None else f"{v * t % 7}"}
                for k, t, v in batch
            ]
            task.add(pa.RecordBatch.from_pylist(rows, INPUT), [name for name, _ in descriptor.key], "t")
            found += task.take_full()
        found += task.drain()
    return found


records = st.tuples(st.none() | st.integers(0, 3), st.integers(0, 90), st.none() | st.integers(-3, 3))
tasks = st.lists(st.lists(st.lists(records, max_size=8), max_size=3), max_size=3)


@pytest.mark.parametrize("pair", PAIRS)
@given(st.lists(st.tuples(tasks, st.integers(0, 25)), max_size=5), st.sampled_from([*KEYS]), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_condensed_sessions_are_those_of_the_records(
    tmp_path_factory: pytest.TempPathFactory, pair: str, epochs: Any, key: str, held: int
) -> None:
    descriptors = [descriptor_of(aggregator, KEYS[key]) for aggregator in PAIRS[pair]]
    states = [opened(descriptor, tmp_path_factory.mktemp("state")) for descriptor in descriptors]
    low = WATERMARK_NONE
    for epoch, (given_, step) in enumerate([*epochs, ([], None)]):
        high = WATERMARK_END if step is None else max(low, 0) + step
        changes, sent = [], []
        for descriptor, state in zip(descriptors, states, strict=True):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(process_rows, "HELD_ROWS", held)
                parts = fragments(descriptor, given_, low)
            delta, late = state.delta([state.combine(parts)], EpochTimes(low, high, epoch))
            state.apply(delta, epoch, "x")
            changes.append((delta, late))
            sent.append(sum(part.num_rows for part in parts))
        assert changes[0][0].equals(changes[1][0])
        assert changes[0][1] == changes[1][1], "late ones are counted one by one"
        assert sent[0] <= sent[1] == sum(len(batch) for batches in given_ for batch in batches)
        low = high
    for state in states:
        state._entries.close()


def sent_of(records: Sequence[Record], low: int = WATERMARK_NONE, aggregator: Aggregator = PAIRS["own"][0]) -> Any:
    batches = fragments(descriptor_of(aggregator, KEYS["integer"]), [[records[:3], records[3:]]], low)
    return [(row["key"], row["time"], row.get("0_last")) for batch in batches for row in batch.to_pylist()]


SOME = [(1, 12, 0), (1, 2, 0), (2, 5, 0), (1, 23, 0), (1, 13, 0), (2, 5, 0)]


def test_a_part_is_what_a_task_has_of_a_session() -> None:
    assert sent_of(SOME) == [(1, 2, 23), (2, 5, 5)]
    assert sent_of([*SOME, (1, 34, 0)]) == [(1, 2, 23), (1, 34, 34), (2, 5, 5)], "more than a gap apart"


def test_late_records_are_parts_by_themselves() -> None:
    assert sent_of(SOME, 12) == [(1, 2, 2), (1, 12, 23), (2, 5, 5)]
    assert sent_of(SOME, 15) == [(1, 2, 2), (1, 12, 23), (2, 5, 5), (2, 5, 5)]
    assert len(sent_of(SOME, WATERMARK_END)) == len(SOME), "as when the watermark is not known"


def test_records_go_as_they_are_to_an_aggregator_that_heeds_their_order() -> None:
    assert sent_of(SOME, WATERMARK_NONE, Joined("s")) == [(k, t, None) for k, t, _ in SOME]


def test_many_records_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_rows, "HELD_ROWS", 3)
    assert sent_of(SOME) == [(1, 2, 12), (2, 5, 5), (1, 13, 23), (2, 5, 5)]
    monkeypatch.setattr(process_rows, "HELD_ROWS", 100)
    monkeypatch.setattr(process_rows, "HELD_BYTES", 1)
    assert len(sent_of(SOME)) == 4


def test_a_sum_that_is_too_great_in_a_task_names_its_operator() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", pa.int64())])
    build = Build(lambda function, schema, where: schema)
    keyed = Stream(build, Input("in", (), schema, None, 0)).event_time("t").key_by("k")
    keyed.window(ferry.session("1s")).aggregate("visits", total=ferry.sum("x"))
    visits = build.operators[0].descriptor
    fragmenter = Fragmenter(visits, condense=condensing(visits, WATERMARK_NONE))
    fragmenter.add(pa.record_batch({"k": [1, 1], "t": [0, 1], "x": [2**62, 2**62]}), ["k"], "t")
    with pytest.raises(DataRefused, match=r"^too large: operator visits: a sum is beyond .* take the mean$"):
        fragmenter.drain()
