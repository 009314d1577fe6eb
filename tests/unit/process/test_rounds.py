"""What processes read, leave behind and are called with, against dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.process.declared import opened
from ferry.process.harness import ProcessHarness
from ferry.process.rounds import TIMER_ROUNDS_MAX

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.int64())])
VALUES = pa.schema([("v", pa.int64()), ("t", pa.string())])


@dataclass
class Scripted(ferry.Process):
    """Does what a test says."""

    tables = {
        "one": ferry.StateTable(VALUES),
        "number": ferry.StateTable(VALUES, pa.int64()),
        "text": ferry.StateTable(VALUES, pa.string()),
        "bytes": ferry.StateTable(VALUES, pa.binary()),
    }
    output = pa.schema([("v", pa.int64())])

    def __post_init__(self) -> None:
        self.script: Callable[[ferry.Work], None] = lambda work: None

    def process(self, work: ferry.Work) -> None:
        self.script(work)


def harness(script: Callable[[ferry.Work], None], rig: ProcessHarness | None = None) -> ProcessHarness:
    rig = rig or ProcessHarness(Scripted(), SCHEMA, "k")
    rig._process.script = script  # type: ignore[attr-defined]
    return rig


def rows(*keys: int) -> list[dict[str, int]]:
    return [{"k": k, "v": 10 * k, "ts": 0} for k in keys]


ENTRY: dict[str, st.SearchStrategy[Any]] = {
    "one": st.none(),
    "number": st.integers(-2, 2),
    "text": st.sampled_from(["", "a", "ab", "\u00e9", "\U0001f600"]),
    "bytes": st.sampled_from([b"", b"\x00", b"a", b"\xff"]),
}
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove", "clear"]), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    max_size=5,
)


@pytest.mark.parametrize("table", ENTRY)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_tables_are_dictionaries(table: str, data: st.DataObject) -> None:
    model: dict[tuple[tuple[int], Any], dict[str, Any]] = {}
    rig = harness(lambda work: None)

    def script(work: ferry.Work) -> None:
        names = work.keys.column(0).to_pylist()
        for what, keys in data.draw(CHANGES):
            entries = [data.draw(ENTRY[table]) for _ in keys]
            values = [{"v": data.draw(st.none() | st.integers(0, 9)), "t": str(i)} for i in range(len(keys))]
            given_ = None if table == "one" else pa.array(entries, Scripted.tables[table].entry)
            if what == "put":
                work.put(table, np.array(keys), pa.RecordBatch.from_pylist(values, VALUES), given_)
                model.update({((names[k],), e): v for k, e, v in zip(keys, entries, values, strict=True)})
            elif what == "remove":
                work.remove(table, keys, given_)
                for k, e in zip(keys, entries, strict=True):
                    model.pop(((names[k],), e), None)
            else:
                work.remove(table, keys)
                for at in [at for at in model if at[0][0] in [names[k] for k in keys]]:
                    del model[at]
            found = work.read(table)
            at = zip(found.key, found.entry or [pa.scalar(None)] * found.key.size, strict=True)
            seen = [((names[k],), e.as_py()) for k, e in at]
            assert dict(zip(seen, found.values.to_pylist(), strict=True)) == {
                at: row for at, row in model.items() if at[0][0] in names
            }
            by_bytes = [(k, e[1].encode() if isinstance(e[1], str) else e[1]) for k, e in zip(found.key, seen)]
            assert by_bytes == sorted(by_bytes)
            assert len(found.spans(4)) == 5 and found.spans(4)[-1] == found.key.size
            some = data.draw(st.sets(st.integers(0, 3)))
            assert work.read(table, sorted(some)).values == found.at(np.isin(found.key, [*some])).values
            if table == "one":
                none = {"v": None, "t": None}
                assert work.get("one").to_pylist() == [model.get(((k,), None), none) for k in names]

    for _ in range(3):
        touched = data.draw(st.permutations(range(6)))[:4]
        harness(script, rig).epoch(rows(*touched))
        assert rig.rows(table) == model


def test_timers_that_are_due_at_once_lead_to_rounds_of_their_keys() -> None:
    calls: list[Any] = []

    def script(work: ferry.Work) -> None:
        keys = work.keys.column(0).to_pylist()
        at, times = work.timers()
        calls.append((keys, work.rows().num_rows, [(keys[k], t) for k, t in zip(at, times, strict=True)]))
        if work.rows().num_rows:
            work.put("one", np.arange(work.count), {"v": [0] * work.count, "t": [None] * work.count})
            work.set_timer([1, 1, 0], [5, 7, 30])
            work.set_timer(2, 6)
            work.remove_timer([2], [6])
        elif 7 in times:
            before = work.get("one").column("v")
            work.put("one", np.arange(work.count), {"v": [v.as_py() + 1 for v in before], "t": ["x"] * work.count})
            work.set_timer(np.arange(work.count), 8)
            work.emit(np.arange(work.count), {"v": keys})

    rig = harness(script)
    assert rig.epoch(rows(1, 2, 3), watermark=20).to_pylist() == [{"v": 2}]
    assert calls == [([1, 2, 3], 3, []), ([2], 0, [(2, 5), (2, 7)]), ([2], 0, [(2, 8)])]
    assert rig.timers() == {((1,), 30)}
    assert rig.rows("one")[(2,), None] == {"v": 1, "t": "x"} and rig.rows("one")[(3,), None] == {"v": 0, "t": None}


def test_a_timer_is_removed_before_it_is_due() -> None:
    def script(work: ferry.Work) -> None:
        change = work.set_timer if work.now == 0 else work.remove_timer
        change(work.key_of(), 30)

    rig = harness(script)
    rig.epoch(rows(1, 2))
    assert rig.timers() == {((1,), 30), ((2,), 30)}
    rig.epoch(rows(2, 3), now=1)
    assert rig.timers() == {((1,), 30)}


@pytest.mark.parametrize("flush", [False, True])
def test_a_timer_that_sets_itself_ends_with_the_input(flush: bool) -> None:
    def script(work: ferry.Work) -> None:
        work.set_timer(work.key_of(), work.times() + 1)
        key, time = work.timers()
        work.emit(key, {"v": time})
        work.set_timer(key, time + 10)

    rig = harness(script)
    rig.epoch(rows(1, 2), watermark=0)
    assert rig.timers() == {((1,), 1), ((2,), 1)}
    assert rig.epoch(watermark=25).num_rows == 6 and rig.timers() == {((1,), 31), ((2,), 31)}
    if flush:
        assert sorted(rig.end().column("v").to_pylist()) == [31, 31] and not rig.timers()
    else:
        assert rig.epoch(watermark=31 + 10 * 300).num_rows == 2 * 301, "however far the watermark jumps"
        assert sorted(rig.epoch(rows(3), watermark=WATERMARK_END).column("v").to_pylist()) == [1, 3041, 3041]


def test_timers_that_are_set_for_what_is_over_are_refused() -> None:
    def script(work: ferry.Work) -> None:
        work.set_timer(work.key_of(), work.times() + 1)
        key, time = work.timers()
        work.set_timer(key, time - work.count % 2)

    rig = harness(script)
    rig.epoch(rows(1), watermark=0)
    with pytest.raises(SpecRefused, match=f"{TIMER_ROUNDS_MAX} times in one epoch, last at .*, and never for later"):
        rig.epoch(watermark=5)


def test_processing_timers_follow_the_clock() -> None:
    def script(work: ferry.Work) -> None:
        work.set_processing_timer(work.key_of(), work.now + 10)
        key, time = work.processing_timers()
        work.emit(key, {"v": time})
        work.remove_processing_timer(work.key_of(), 11)

    rig = harness(script)
    rig.epoch(rows(1, 2), now=5)
    assert not rig.epoch(rows(1), now=14).num_rows
    assert rig.processing_timers() == {((1,), 15), ((1,), 24), ((2,), 15)}
    assert rig.epoch(now=15).to_pylist() == [{"v": 15}, {"v": 15}] and rig.processing_timers() == {((1,), 24)}


def test_rows_of_a_key_are_in_the_declared_order() -> None:
    seen: list[Any] = []

    def script(work: ferry.Work) -> None:
        seen.append([work.rows().column("v").to_pylist(), work.key_of().tolist(), work.spans().tolist()])

    records = [{"k": k, "v": v, "ts": t} for k, v, t in [(1, 3, 5), (2, 1, 9), (1, 2, 6), (1, 3, 4), (2, 1, 8)]]
    harness(script).epoch(records)
    harness(script, ProcessHarness(Scripted(), SCHEMA, "k", order="v")).epoch(records)
    assert seen == [[[3, 3, 2, 1, 1], [0, 0, 0, 1, 1], [0, 3, 5]], [[2, 3, 3, 1, 1], [0, 0, 0, 1, 1], [0, 3, 5]]]


ONE = {"v": [1], "t": ["x"]}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (lambda work: work.put("none", 0, ONE), "none"),
        (lambda work: work.put("one", [0, 0], ONE), "2 keys were given for 1 rows"),
        (lambda work: work.put("one", [1], ONE), "1 keys are touched"),
        (lambda work: work.put("one", [-1], ONE), "1 keys are touched"),
        (lambda work: work.put("one", 0, {"v": [1]}), "columns are v; they have to be v, t"),
        (lambda work: work.put("one", 0, {"v": ["x"], "t": ["x"]}), "column 'v' cannot be int64"),
        (lambda work: work.put("one", 0, ONE, [1]), "give no entry"),
        (lambda work: work.put("number", 0, ONE), "needs an entry of type int64"),
        (lambda work: work.put("number", 0, ONE, [1, 2]), "2 entries"),
        (lambda work: work.put("text", 0, ONE, pa.array([None], pa.string())), "1 of them null"),
        (lambda work: work.get("number"), "many rows a key"),
        (lambda work: work.read("none"), "no table 'none'; there are one, number, text, bytes"),
        (lambda work: work.emit([0], {"w": [1]}), "emit: columns are w"),
    ],
)
def test_what_a_process_may_not_do_is_refused(script: Any, message: str) -> None:
    with pytest.raises(SpecRefused, match=message):
        harness(script).epoch(rows(1))


class Undeclared(Scripted):
    tables: dict[str, Any]
    output: Any


@pytest.mark.parametrize(
    ("tables", "output", "message"),
    [
        ({"T": ferry.StateTable(VALUES)}, VALUES, "table 'T': use lower-case"),
        ({"t": VALUES}, VALUES, "ferry.StateTable"),
        ({"t": ferry.StateTable(VALUES, pa.float64())}, VALUES, "entries cannot be double"),
        ({"t": ferry.StateTable({"a": pa.int64()})}, VALUES, "its values are {'a': .*; they have to be"),  # type: ignore[arg-type]
        ({"t": ferry.StateTable(pa.schema([]))}, VALUES, "at least one"),
        ({"t": ferry.StateTable(pa.schema([("a", pa.list_(pa.int64()))]))}, VALUES, "column 'a' cannot be list"),
        ({}, pa.schema([]), "output"),
        ({}, None, "output"),
        ({}, pa.schema([("a", pa.int64()), ("a", pa.int64())]), "columns \\['a'\\] appear twice"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(tables: Any, output: Any, message: str) -> None:
    process = Undeclared()
    process.tables = tables
    process.output = output
    with pytest.raises(SpecRefused, match=message):
        opened(process, SCHEMA, [SCHEMA])
    with pytest.raises(SpecRefused, match="is not a process"):
        opened(VALUES, SCHEMA, [SCHEMA])


def test_a_name_of_no_column_is_refused_by_the_harness() -> None:
    with pytest.raises(SpecRefused, match="key: no column 'kk'; there are k, v, ts"):
        ProcessHarness(Scripted(), SCHEMA, key="kk")
    harness = ProcessHarness(Scripted(), SCHEMA, key="k")
    with pytest.raises(SpecRefused, match="a row has 'kk'; columns are k, v, ts"):
        harness.epoch([{"kk": 1, "ts": 5}])


def test_a_processor_of_sparks_is_tested_with_sparks_harness() -> None:
    class StatefulProcessor:
        """As PySpark's."""

    class Fraud(StatefulProcessor):
        pass

    with pytest.raises(
        SpecRefused, match=r"is not a process.*; a StatefulProcessor is tested with TwsTester of pyspark"
    ):
        ProcessHarness(Fraud(), SCHEMA, key="k")  # type: ignore[arg-type]
