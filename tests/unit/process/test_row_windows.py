"""Windows of rows and running aggregates, against a loop over records and the oracle."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import SpecRefused
from ferry.process import row_windows
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.interval import IntervalJoin
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from tests.unit.process.queries import Case, fed, generated, rows_of, schema_of
from tests.unit.process.test_aggregator import Joined

RECORDS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("o", pa.int64()), ("ts", pa.int64())])
ALL = {"n": ferry.count(), "s": ferry.sum("v"), "m": ferry.mean("v"), "lo": ferry.min("v"), "hi": ferry.max("v")}

record = st.tuples(st.sampled_from("abc"), st.none() | st.integers(-9, 9), st.integers(0, 9))
epochs = st.lists(st.lists(record, max_size=10), max_size=6)


def results(window: list[dict[str, Any]]) -> tuple[Any, ...]:
    values = [r["v"] for r in window if r["v"] is not None]
    if not values:
        return (len(window), None, None, None, None)
    return (len(window), sum(values), sum(values) / len(values), min(values), max(values))


@settings(max_examples=80, deadline=None)
@given(epochs, st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_windows_of_rows_are_those_of_a_loop(given_: Any, size: int, slide: int, pieces: bool) -> None:
    process = RowWindows(size, Functions(ALL), {"k": "k", "at": "o"}, slide, ["o", "v"], "row")
    running = RunningAggregate(Functions(ALL), {"k": "k", "at": "o"}, ["o", "v"])
    rigs = [ProcessHarness(p, RECORDS, "k") for p in (process, running)]
    had: dict[str, list[dict[str, Any]]] = defaultdict(list)
    row_windows.ROWS_AT_ONCE = 2 if pieces else 1 << 20
    for records in given_:
        rows = [{"k": k, "v": v, "o": o, "ts": 0} for k, v, o in records]
        want: list[list[Any]] = [[], []]
        for r in sorted(rows, key=lambda r: (r["o"], r["v"] is None, r["v"])):
            had[r["k"]].append(r)
            number = len(had[r["k"]])
            want[1].append((r["k"], r["o"], *results(had[r["k"]])))
            if number % slide == 0:
                want[0].append((number, r["k"], r["o"], *results(had[r["k"]][-size:])))
        for rig, wanted in zip(rigs, want, strict=True):
            found = rig.epoch(rows, watermark=0)
            assert sorted(rows_of([found]).elements(), key=repr) == sorted(wanted, key=repr)
        assert len(rigs[0].rows("rows")) == sum(min(size - 1, len(r)) for r in had.values())
        assert len(rigs[1].rows("state")) == len(had)
    row_windows.ROWS_AT_ONCE = 1 << 20


def test_running_results_of_an_aggregator_of_ones_own_are_in_order() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.string()), ("ts", pa.int64())])
    rig = ProcessHarness(RunningAggregate(Joined("t"), {}), schema, "k")
    rig.epoch([{"k": 1, "t": t, "ts": 0} for t in "abcde"])
    found = rig.epoch([{"k": 1, "t": t, "ts": 0} for t in "fgh"])
    assert found.column("text").to_pylist() == ["abcdef", "abcdefg", "abcdefgh"]


INPUTS: list[dict[str, Any]] = [{"rate": 10}, {"rate": 3, "locations": 5, "same_streams": True}]


def alone(table: pa.Table) -> pa.Table:
    """All rows with one key."""
    return table.append_column("all", pa.array(np.zeros(table.num_rows, np.int64)))


@pytest.mark.parametrize("options", INPUTS, ids=str)
def test_windows_of_streams_are_the_oracles(tmp_path: Path, options: dict[str, Any]) -> None:
    case = generated(tmp_path, "unimico", 2500, **options)
    streams = {name: alone(table) for name, table in case.tables.items()}
    columns = {"seq": "seq", "ts": "ts"}
    last5 = RowWindows(5, Functions({"n": ferry.count(), "total": ferry.sum("m")}), columns)
    rig = ProcessHarness(last5, streams["s"].schema, "all", order="seq")
    assert rows_of(fed(rig, Case(case.directory, streams, 0), ("s",), 1)) == case.expected("uq2")
    right = {"t_seq": "seq", "t_ts": "ts"}
    join = IntervalJoin({"s_seq": "seq", "s_ts": "ts", "s_m": "m"}, right, 1 - 10_000, 10_000)
    pairs = fed(ProcessHarness(join, schema_of(case, "s"), "l", schema_of(case, "t"), "l"), case, ("s", "t"), 2)
    columns = {"ts": "ts", "s_seq": "s_seq", "t_seq": "t_seq"}
    of_pairs = Functions({"n": ferry.count(), "total": ferry.sum("s_m")})
    uq3 = RowWindows(5, of_pairs, columns, order=["by_seq", "old_seq"], number="row")
    made = [prepared(table) for table in pairs]
    rig = ProcessHarness(uq3, made[0].schema, "all")
    assert rows_of([rig.epoch(table, watermark=0) for table in made]) == case.expected("uq3")


def prepared(pairs: pa.Table) -> pa.Table:
    """The order of pairs: by the later arrival, then by the earlier one."""
    pc = pa.compute
    seqs, times = (pairs.column("s_seq"), pairs.column("t_seq")), (pairs.column("s_ts"), pairs.column("t_ts"))
    pairs = pairs.append_column("by_seq", pc.max_element_wise(*seqs))
    pairs = pairs.append_column("old_seq", pc.min_element_wise(*seqs))
    return alone(pairs.append_column("ts", pc.max_element_wise(*times)))


def test_counts_of_records_are_the_oracles(tmp_path: Path) -> None:
    case = generated(tmp_path / "keys", "keys", 4000, domain=300, keys="zipf")
    counts = RunningAggregate(Functions({"num": ferry.count()}), {"seq": "seq", "key": "key"})
    rig = ProcessHarness(counts, schema_of(case, "keys"), "key", order="seq")
    found = rows_of(fed(rig, case, ("keys",), 1))
    assert {(seq, key, num + 1): n for (seq, key, num), n in found.items()} == case.expected("count_updates")
    case = generated(tmp_path / "smq", "smq", 4000)
    table = case.tables["smq"]
    instance = pa.compute.subtract(
        table.column("seq"), pa.compute.multiply(pa.compute.divide(table.column("seq"), 7), 7)
    )
    streams = {"smq": table.append_column("instance", instance)}
    counts = RunningAggregate(Functions({"num": ferry.count()}), {n: n for n in ("seq", "ts", "instance")})
    rig = ProcessHarness(counts, streams["smq"].schema, "instance", order="seq")
    found = rows_of(fed(rig, Case(case.directory, streams, 0), ("smq",), 1))
    assert found == case.expected("smq", parallelism=7)


def test_windows_that_cannot_be_are_refused() -> None:
    functions = Functions({"n": ferry.count()})
    with pytest.raises(SpecRefused, match=r"rows\(0, 1\)"):
        ProcessHarness(RowWindows(0, functions, {}), RECORDS, "k")
    with pytest.raises(SpecRefused, match="no column 'x'; there are k, v, o, ts"):
        ProcessHarness(RowWindows(1, functions, {"x": "x"}), RECORDS, "k")
    with pytest.raises(SpecRefused, match="no column 'x'; there are k, v, o, ts"):
        ProcessHarness(RunningAggregate(functions, {}, ["x"]), RECORDS, "k")
