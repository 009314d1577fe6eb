"""What `ferry.read_state` reads of real states, against the records that made them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Refusal
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.programs import ProgramVersion
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.durable.parts import Corrupt
from ferry.reading.state import operator_of
from tests.unit.reading.checkpoints import publish
from tests.unit.store import test_aggregate as aggregates
from tests.unit.store import test_process as processes
from tests.unit.store import test_rows as joins

Record = tuple[int, ...]


@pytest.fixture
def where(tmp_path: Path) -> Location:
    return Location(str(tmp_path / "checkpoints"), "job")


def times(epoch: int, low: int, high: int) -> EpochTimes:
    return EpochTimes(low, high, epoch, 1000)


def read(where: Location, operator: str, **options: Any) -> pa.Table:
    return ferry.read_state(where.text.rpartition("/")[0], operator, job="job", **options)


def chance_records(count: int, seed: int, first: int, span: int) -> list[Record]:
    """Event time, key, x, y, what is maximised; no two of a key are maximal."""
    chance = np.random.default_rng(seed)
    drawn = zip(
        chance.integers(first, first + span, count),
        chance.integers(0, 30, count),
        chance.integers(-9, 9, count),
        strict=True,
    )
    return [(int(t), int(k), int(x), int(x) * 3, 1000 * seed + i) for i, (t, k, x) in enumerate(drawn)]


@pytest.mark.parametrize("key", [aggregates.INT_KEY, aggregates.TEXT_KEY, aggregates.PAIR_KEY])
@pytest.mark.parametrize("window", [Window(20, 10), Window(10, 10), GLOBAL])
def test_an_aggregate_has_its_results_by_key_and_pane(
    where: Location, tmp_path: Path, key: Any, window: Window
) -> None:
    descriptor = aggregates.shape_of(key, window)
    batches = [chance_records(200, seed, 10 * seed, 30) for seed in range(4)]
    marks = [WATERMARK_NONE, WATERMARK_NONE, 10, 20, 30]
    epochs = [
        (aggregates.partials(descriptor, batch), times(i, marks[i], marks[i + 1])) for i, batch in enumerate(batches)
    ]
    publish(where, descriptor, epochs, tmp_path / "state")
    grouped: dict[tuple, list[Record]] = {}
    for i, batch in enumerate(batches):
        for record in batch:
            pane = record[0] // window.pane_ms * window.pane_ms if descriptor.windowed else None
            if pane is None or window.last_end(pane) > marks[i]:
                grouped.setdefault((aggregates.key_of(descriptor, record[1]), pane), []).append(record)
    expected = {
        (*found, *([] if pane is None else [pane]), *aggregates.result(records))
        for (found, pane), records in grouped.items()
        if pane is None or window.last_end(pane) > marks[-1]
    }
    state = read(where, "op")
    rows = [tuple(row.values()) for row in state.to_pylist()]
    assert len(rows) == len(set(rows)) and set(rows) == expected and len(expected) > 20
    panes = ["slice"] if descriptor.windowed else []
    assert state.column_names == [*(name for name, _ in key), *panes, *(a.name for a in aggregates.ALL)]


def test_keys_that_are_forgotten_are_not_there_any_more(where: Location, tmp_path: Path) -> None:
    aggregate = (Aggregate("n", "count"),)
    descriptor = replace(aggregates.shape_of(aggregates.INT_KEY, GLOBAL, aggregate), ttl_ms=5)
    epochs = [
        (aggregates.partials(descriptor, [(t, t, 0, 0, 0) for t in range(first, first + 10)]), times(i, low, high))
        for i, (first, low, high) in enumerate([(0, WATERMARK_NONE, 5), (10, 5, 15)])
    ]
    publish(where, descriptor, epochs, tmp_path / "state")
    assert sorted(read(where, "op").column("k").to_pylist()) == [*range(11, 20)]


@pytest.mark.parametrize("key", [joins.INT_KEY, joins.PAIR_KEY])
def test_a_join_has_the_rows_of_both_sides(where: Location, tmp_path: Path, key: Any) -> None:
    descriptor = joins.shape_of(key)
    chance = np.random.default_rng(0)
    batches = [
        [
            (int(chance.integers(2)), int(chance.integers(10 * i, 10 * i + 20)), int(chance.integers(9)), n)
            for n in range(50)
        ]
        for i in range(3)
    ]
    marks = [WATERMARK_NONE, WATERMARK_NONE, 10, 20]
    epochs = [(joins.fragments(descriptor, batch), times(i, marks[i], marks[i + 1])) for i, batch in enumerate(batches)]
    publish(where, descriptor, epochs, tmp_path / "state")
    expected: Counter[tuple] = Counter()
    for batch in batches:
        for side, t, k, n in batch:
            if t // 10 * 10 + 10 > 20:
                found = {"text": f"é{k % 3}", "k": k}
                of_side = (None, None, n, n / 2) if side else (k, None if n == 0 else str(n), None, None)
                expected[(*(found[name] for name, _ in key), t // 10 * 10, ("left", "right")[side], *of_side)] += 1
    state = read(where, "j")
    assert Counter(tuple(row.values()) for row in state.to_pylist()) == expected and expected.total() > 20
    assert state.column_names[-5:] == ["side", "left_who", "left_a", "right_b", "right_f"]


@pytest.mark.parametrize("key", [processes.INT_KEY, processes.TEXT_KEY])
def test_a_process_has_its_tables_and_timers(where: Location, tmp_path: Path, key: Any) -> None:
    descriptor = processes.descriptor_of(key)
    texts = ["a", "b", None, "x" * 250, "x" * 251]
    records = [(k % 5, 100 + k, k, texts[k % 5 if k % 2 else 3]) for k in range(60)]
    records += [(9, 0, 1, "gone")]
    epochs = [
        (processes.fragments(descriptor, processes.table_of(part, begin)), times(i, low, high))
        for i, (part, begin, low, high) in enumerate(
            [
                (records[:20] + records[-1:], 0, WATERMARK_NONE, 5),
                (records[20:40], 30, 5, 20),
                (records[40:60], 60, 20, 50),
            ]
        )
    ]
    publish(where, descriptor, epochs, tmp_path / "state")

    def key_of(k: int) -> tuple:
        return tuple(k if kind == "int" else f"{k % 2}" * (300 if k == 3 else 1) for _, kind in key)

    kept = [r for r in records if r[0] != 9]
    groups: dict[tuple, list[Any]] = {}
    for record in kept:
        groups.setdefault(key_of(record[0]), []).append(record)
    rows = read(where, "p", table="count").to_pylist()
    counts = {tuple(row[name] for name, _ in key): (row["n"], row["last"]) for row in rows}
    assert counts == {k: (len(found), max(r[1] for r in found)) for k, found in groups.items()} and len(rows) == len(
        counts
    )
    rows = read(where, "p", table="texts").to_pylist()
    last = {(k, r[3] or "none"): (r[2], r[3]) for k, found in groups.items() for r in found}
    assert {((*(row[name] for name, _ in key),), row["entry"]): (row["n"], row["text"]) for row in rows} == last
    assert len(rows) == len(last)
    rows = read(where, "p", table="times").to_pylist()
    assert Counter((*(row[name] for name, _ in key), row["entry"], row["n"], row["text"]) for row in rows) == Counter(
        (*k, r[1], r[2], r[3]) for k, found in groups.items() for r in found
    )
    timers = read(where, "p", table="timers")
    assert set(timers.column("clock").to_pylist()) == {"event"} and timers.schema.field("time").type == pa.int64()
    event = {(*(row[name] for name, _ in key), row["time"]) for row in timers.to_pylist()}
    assert {(*k, max(r[1] for r in found) + 10) for k, found in groups.items()} <= event


def test_what_is_not_there_is_named(where: Location, tmp_path: Path) -> None:
    process = processes.descriptor_of()
    epochs = [(processes.fragments(process, processes.table_of([(1, 1, 1, "a")])), times(0, WATERMARK_NONE, 5))]
    publish(where, process, epochs, tmp_path / "state", number=4)
    with pytest.raises(ferry.SpecRefused, match="checkpoint 4 has no operator 'q': there are 'p'"):
        read(where, "q")
    for table in (None, "other"):
        with pytest.raises(ferry.SpecRefused, match="choose with table=: 'count', 'texts', 'times', 'timers'"):
            read(where, "p", table=table)
    with pytest.raises(Refusal, match=r"no checkpoint '7' at \S+: there are 4 \(epoch 0\)"):
        read(where, "p", table="count", checkpoint="7")
    aggregate = aggregates.shape_of(aggregates.INT_KEY, GLOBAL)
    epochs = [(aggregates.partials(aggregate, [(1, 1, 1, 1, 1)]), times(0, WATERMARK_NONE, 5))]
    made = publish(where, aggregate, epochs, tmp_path / "other", number=5)
    with pytest.raises(ferry.SpecRefused, match="'op' is not a process and has no tables"):
        read(where, "op", table="count")
    assert ferry.read_state(where.text, "op").num_rows == 1, "without a job the location ends in its name"
    assert ferry.read_state("nowhere", "op", checkpoint=CheckpointCatalog(where).url(made)).num_rows == 1
    where.remove(made.files[0].name)
    with pytest.raises(Corrupt, match=r"is missing; `restoreFrom: 4`"):
        read(where, "op")
    assert where.names("pins") == []


def test_what_is_read_is_pinned(where: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor: OperatorDescriptor = aggregates.shape_of(aggregates.INT_KEY, GLOBAL)
    epochs = [(aggregates.partials(descriptor, [(1, 1, 1, 1, 1)]), times(0, WATERMARK_NONE, 5))]
    publish(where, descriptor, epochs, tmp_path / "state")
    pinned: list[int] = []
    check = CheckpointCatalog.check
    monkeypatch.setattr(
        CheckpointCatalog, "check", lambda *given: (pinned.append(len(where.names("pins"))), check(*given))
    )
    assert read(where, "op").num_rows == 1 and pinned == [1] and where.names("pins") == []


def test_an_altered_operator_has_the_id_that_the_program_of_the_checkpoint_names() -> None:
    def operators(*names: str) -> tuple[OperatorDescriptor, ...]:
        shape = aggregates.shape_of(aggregates.INT_KEY, GLOBAL)
        return tuple(replace(shape, name=name, index=number) for number, name in enumerate(names))

    def index(name: str, *now: int) -> int:
        programs = (ProgramVersion(3, 20, now), ProgramVersion(4, 30, (0,)))
        manifest: Any = SimpleNamespace(operators=operators("a", "b", "a", "a"), programs=programs, void=())
        return operator_of(manifest, name).index

    assert [index("a", 2, 1), index("a", 3), index("a", 0), index("b", 3)] == [2, 3, 0, 1]
    assert index("a", 1) == 3, "of a removed operator the newest"
