"""Compiles Ferry's kernels into NUMBA_CACHE_DIR: puts some records of every kind of operator through tasks and instances.

Runs while an image is built; no Spark, no network. A missed kernel costs time when a pod starts, never a result.
"""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba.core.dispatcher import Dispatcher

import ferry.kernels
from ferry.api.processes import EACH_TIME
from ferry.connectors.formats.json_lines import checked, parse, parse_each
from ferry.connectors.formats.json_text import json_text, plain_text
from ferry.contract.descriptors import GLOBAL, Aggregate, KeyType, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.contract.names import Attempt, CommitId, Step
from ferry.kernels.aggregates import count, count_distinct
from ferry.kernels.aggregates import max as greatest
from ferry.kernels.columns import records_by_vnode, split_by_vnode, take_vnodes
from ferry.process.aggregator import Functions
from ferry.process.api import Process
from ferry.process.distinct import Distinct
from ferry.process.distinct_values import functions_of
from ferry.process.running import RunningAggregate
from ferry.process.sessions import SessionAggregate
from ferry.process.shapes import shape_of
from ferry.process.windowed import WindowAggregate
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import hole_punching, slice_table
from ferry.store.aggregate import AggregateState
from ferry.store.log import DeltaLog
from ferry.store.rows import RowState
from ferry.store.state import open_state
from ferry.store.table_header import DIRTY
from ferry.store.unbounded import UnboundedAggregateState
from ferry_workloads.arrivals import Arrivals
from ferry_workloads.cm import CmGenerator
from ferry_workloads.keys import KeysGenerator
from ferry_workloads.nexmark import NexmarkGenerator
from ferry_workloads.smq import SmqGenerator
from ferry_workloads.unimico import UnimicoGenerator
from ferry_workloads.ysb import YsbGenerator

MANY = 1 << 16
"""Enough rows that tables grow and are sorted by radix."""

VNODES = np.arange(64, dtype=np.int64)
COMMIT_ID = CommitId(Step(0, 0), Attempt(1, 1))
ALL = (
    Aggregate("n", "count"),
    Aggregate("s", "sum", "v"),
    Aggregate("f", "sum", "w", number="float"),
    Aggregate("lo", "min", "v"),
    Aggregate("hi", "max", "w", number="float"),
    Aggregate("m", "mean", "v"),
    Aggregate("top", "arg_max", "v", by="w", by_number="float"),
    Aggregate("a", "first", "v"),
    Aggregate("z", "last", "w", number="float"),
    Aggregate("sd", "stddev", "v"),
    Aggregate("var", "variance", "w", number="float"),
)
SKETCHES = tuple(Aggregate(column, "approx_count_distinct", column) for column in ("v", "w", "t"))
"""Large: one operator has them."""
PLAIN = (
    ALL[1:2],
    ALL[2:3],
    ALL[3:4],
    ALL[4:5],
    ALL[0:2],
    (ALL[0], ALL[2], Aggregate("m", "mean", "w", number="float")),
)
"""Usual aggregates, whose loops are compiled for them."""
KEYS: tuple[tuple[tuple[str, KeyType], ...], ...] = ((("k", "int"),), (("k", "int"), ("t", "string")))
WINDOWS = (Window(1_000, 1_000), Window(2_000, 500))


def descriptors() -> list[OperatorDescriptor]:
    """One of every kind: counts, all aggregates and joins; integer keys and others; both kinds of windows, and none."""
    left, right = Side((("a", "v", "int64"), ("b", "t", "string"))), Side((("c", "w", "double"),))
    found = []
    for key in KEYS:
        for window in WINDOWS:
            for aggregates in (ALL[:1], ALL):
                found.append(OperatorDescriptor("aggregate", 0, "aggregate", key, window, aggregates))
        found.append(OperatorDescriptor("join", 0, "join", key, WINDOWS[0], left=left, right=right))
    found.append(OperatorDescriptor("distinct", 0, "aggregate", KEYS[0], WINDOWS[1], SKETCHES))
    found += [OperatorDescriptor("plain", 0, "aggregate", KEYS[0], WINDOWS[1], plain) for plain in PLAIN]
    found += [OperatorDescriptor("changes", 0, "aggregate", key, GLOBAL, ALL, emit="changes", ttl_ms=1) for key in KEYS]
    return found


def records(rows: int) -> pa.RecordBatch:
    """Input that fits all operators: few rows have keys in common, many have not."""
    n = np.arange(rows, dtype=np.int64)
    keys = 97 if rows < MANY else rows
    text = [f"key {i % keys}" for i in range(rows)]
    values = {"k": n % keys, "v": n, "w": n / 7, "ts": 10 * n % 3_000}
    return pa.RecordBatch.from_pydict({name: pa.array(v) for name, v in values.items()} | {"t": text})


def carried(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As it arrives at another process: in memory that is not to be written."""
    return pa.ipc.read_record_batch(pa.py_buffer(batch.serialize().to_pybytes()), batch.schema)


def fragments(descriptor: OperatorDescriptor, rows: int) -> list[pa.RecordBatch]:
    """What a task streams."""
    out = []
    for side in (0, 1) if descriptor.kind == "join" else (0,):
        fragmenter = Fragmenter(descriptor, side, groups_max=32 if rows < MANY else 1 << 18)
        fragmenter.add(records(rows), [name for name, _ in descriptor.key], "ts")
        out += fragmenter.drain()
    return out


def instance(descriptor: OperatorDescriptor, directory: Path) -> None:
    """One epoch on a leader and a replica, a snapshot to a learner, fired rows."""
    slice_table.KEYS_BYTES = slice_table.SHRINK_BYTES = 1  # few keys are moved, and small regions made smaller, too

    def opened(name: str) -> AggregateState | RowState:
        if descriptor.kind == "join":
            return RowState(descriptor, VNODES.size, directory / name)
        kind = AggregateState if descriptor.windowed else UnboundedAggregateState
        return kind(descriptor, VNODES.size, directory / name, 1 << 24)

    ways: list[Callable[[pa.RecordBatch], pa.RecordBatch]] = [carried, lambda batch: batch]
    states = [opened("leader"), opened("replica")]
    for carry, state in zip(ways, states, strict=True):
        for number, rows in enumerate((300, MANY)):
            merged = state.combine([carry(batch) for batch in fragments(descriptor, rows)])
            share = take_vnodes(merged, split_by_vnode(merged, VNODES.size), VNODES)
            watermark = 100 if number else WATERMARK_NONE
            records_by_vnode([carry(share)], VNODES.size)
            delta, _ = state.delta([carry(share)], EpochTimes(watermark, watermark, number))
            hints = state.hints if isinstance(state, AggregateState) else None
            mine = take_vnodes(delta, split_by_vnode(delta, VNODES.size), VNODES[:40])
            log = DeltaLog(directory / f"log-{id(state)}-{number}")
            log.append(COMMIT_ID, "leader", {}, carry(mine))
            for _, _, logged in log.entries(COMMIT_ID):
                state.apply(logged, number, "leader")
            state.apply(carry(delta), number, "rest", hints)
        state.fired_count(EpochTimes(0, 2_000), VNODES)
        assert sum(batch.num_rows for batch in state.fired(EpochTimes(0, 2_000, 1), VNODES, 10_000))
        learner = opened(f"learner-{id(state)}")
        for chunk in state.snapshot(VNODES, 1 << 18):
            learner.apply_absent(carry(chunk))
        learner.drop(VNODES[5:])
        while learner.work() or not getattr(learner, "is_tidy", True):
            pass
        state.statistics(VNODES)
    for table in (directory / "leader").glob("*.table"):
        with table.open("r+b") as file:  # as a process leaves it that is killed in the middle of a write
            file.seek(8 * DIRTY)
            file.write((1).to_bytes(8, "little"))
    opened("leader").release(1, 3_100)


def generators() -> list[Arrivals]:
    """The workloads that come with Ferry, in and out of order, with every distribution of keys."""
    disorder: dict[str, Any] = {"group": 50, "delay_prob": 0.1}
    orders: tuple[dict[str, Any], ...] = ({}, disorder, {**disorder, "rate": 1.0})
    keys: Iterator[dict[str, Any]] = ({"keys": name} for name in ("uniform", "zipf", "pareto"))
    keyed = (NexmarkGenerator, YsbGenerator, KeysGenerator)
    found: list[Arrivals] = [kind(**a) for a in (*orders, *keys) for kind in keyed]
    return [*found, *(CmGenerator(**a) for a in orders), SmqGenerator(), UnimicoGenerator()]


def generate() -> None:
    """A few records of every stream."""
    for made in generators():
        for stream in made.schemas:
            made.read(stream, 0, 2_000)
            made.read(stream, 0, 2_000, ["ts"])


def process(made: Process, key: tuple[tuple[str, KeyType], ...], directory: Path) -> None:
    """A process with state and timers, on a leader, and a snapshot to a learner."""
    columns = records(1).schema
    shape = shape_of("process", made, pa.schema([columns.field(name) for name, _ in key]), [columns], None)
    descriptor = OperatorDescriptor("process", 0, "process", key, EACH_TIME, process=shape)
    state, learner = (open_state(descriptor, VNODES.size, directory / name, 1 << 24) for name in ("leader", "learner"))
    for number, rows in enumerate((300, MANY)):
        merged = state.combine([carried(batch) for batch in fragments(descriptor, rows)])
        share = take_vnodes(merged, split_by_vnode(merged, VNODES.size), VNODES)
        times = EpochTimes(WATERMARK_NONE, WATERMARK_END if number else WATERMARK_NONE, number)
        delta, _ = state.delta([carried(share)], times, VNODES)
        state.apply(carried(delta), number, "leader")
    assert sum(batch.num_rows for batch in state.fired(times, VNODES))
    for chunk in state.snapshot(VNODES):
        learner.apply_absent(carried(chunk))


def json() -> None:
    """Values of every type as JSON texts, and back, in files and in topics."""
    zoned, clock = pa.timestamp("us", "Europe/Berlin"), pa.time64("us")
    kinds = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("ms"), zoned, pa.date32(), clock, pa.duration("us"))
    columns = [pa.array([1, 2, 3], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind) for kind in kinds]
    columns += [pa.array(["1.5", "-2", None]).cast(pa.decimal128(20, 4)), pa.array([b"\xff\x00", b"", None])]
    columns += [pa.array(["a", 'é"\\\n', None]), pa.array([[1], [], None]), pa.array([{"a": 1}, None, {"a": None}])]
    for names, values in ((pa.string(), pa.int64()), (pa.int64(), pa.string())):
        columns.append(pa.array([[(1, 2)], [], None], pa.map_(pa.int64(), pa.int64())).cast(pa.map_(names, values)))
    rows = pa.table(columns, names=[f"c{i}" for i in range(len(columns))])
    texts = [text.encode() for text in json_text(rows)]
    for column in rows.columns:
        plain_text(column)
    table, bad = parse(b"\n".join(texts), rows.schema)
    assert table.equals(rows) and not bad
    others = [b'{"\\u0063\\u0030": 1e2, "c3": 5, "c10": "\\ud83d\\ude00"}', b"null", b"[", None]
    parse_each([*texts, *others], rows.schema, checked("json", rows.schema, {"c3": "ms"}))


def left() -> list[str]:
    """Kernels that were not compiled."""
    modules = [
        importlib.import_module(f"ferry.kernels.{one.name}") for one in pkgutil.iter_modules(ferry.kernels.__path__)
    ]
    found = {
        f"{m.__name__}.{name}": one for m in modules for name, one in vars(m).items() if isinstance(one, Dispatcher)
    }
    assert found
    return [name for name, one in found.items() if not one.signatures]


def main() -> None:
    """Everything once."""
    hole_punching.REST_TIMES = 0
    generate()
    with tempfile.TemporaryDirectory() as directory:
        for number, descriptor in enumerate(descriptors()):
            instance(descriptor, Path(directory) / str(number))
        functions = Functions({"n": count(), "top": greatest("t")})
        sets = functions_of({"texts": count_distinct("t"), "numbers": count_distinct("v")})
        processes = (
            RunningAggregate(functions, {"at": "ts"}, ["ts"]),
            SessionAggregate(10, functions),
            WindowAggregate(10, 5, sets),
            Distinct(10),
        )
        for number, (made, key) in enumerate(product(processes, KEYS)):
            process(made, key, Path(directory) / f"process-{number}")
    json()
    if missing := left():
        raise SystemExit(f"these kernels were not used: {missing}")


if __name__ == "__main__":
    main()
