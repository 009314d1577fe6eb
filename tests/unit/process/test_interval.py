"""Interval joins against a loop over pairs of records, and against the oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.harness import ProcessHarness
from ferry.process.interval import MATCHED, IntervalJoin, OuterIntervalJoin
from ferry.process.joins import HOW
from tests.unit.process.queries import Case, fed, generated, rows_of, schema_of

RECORDS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.int64()), ("n", pa.int64())])
LEFT, RIGHT = {"a": "n", "x": "v"}, {"b": "n", "y": "v"}

records = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3), st.integers(0, 60))
epochs = st.lists(
    st.tuples(st.lists(records, max_size=6), st.lists(records, max_size=6), st.integers(0, 15)), max_size=8
)
bounds = st.tuples(st.integers(-20, 20), st.integers(1, 25)).map(lambda b: (b[0], b[0] + b[1]))


def numbered(given_: Any, number: int) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "ts": ts, "n": number + i} for i, (k, v, ts) in enumerate(given_)]


def join_of(how: str, within: tuple[int, int] | None, where: list[list[str]]) -> IntervalJoin:
    columns = LEFT, RIGHT, *(within or (None, None)), where
    return IntervalJoin(*columns) if how == "inner" else OuterIntervalJoin(*columns, how)


@settings(max_examples=160, deadline=None)
@given(epochs, st.none() | bounds, st.booleans(), st.sampled_from(HOW))
def test_rows_are_those_of_a_loop(given_: Any, within: tuple[int, int] | None, conditional: bool, how: str) -> None:
    how = how if within else "inner"
    where = [["x", "<=", "y"]] if conditional else []
    rig = ProcessHarness(join_of(how, within, where), RECORDS, "k", RECORDS, "k")
    preserved = {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}[how]
    kept: list[list[dict[str, Any]]] = [[], []]
    low, number, late = WATERMARK_NONE, 0, 0
    for left, right, ahead in [*given_, ([], [], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        new = [numbered(left, number), numbered(right, number + len(left))]
        number += len(left) + len(right)
        want = Counter[Any]()
        if within is not None:
            # What is open for a row: the times of the other side that it matches, and that may still come or are kept.
            lo, up = within
            timely = [[r for r in new[0] if r["ts"] + up - lo > low], [r for r in new[1] if r["ts"] - lo + up > low]]
            late += sum(len(side) for side in new) - sum(len(side) for side in timely)
        else:
            timely = new
        met = set()
        for sides in ((timely[0], kept[1] + timely[1]), (kept[0], timely[1])):
            for a in sides[0]:
                for b in sides[1]:
                    if (
                        a["k"] is None
                        or a["k"] != b["k"]
                        or (within and not a["ts"] + within[0] <= b["ts"] < a["ts"] + within[1])
                    ):
                        continue
                    if conditional and (a["v"] is None or b["v"] is None or a["v"] > b["v"]):
                        continue
                    want[a["n"], a["v"], b["n"], b["v"]] += 1
                    met |= {a["n"], b["n"]}
        kept = [kept[0] + timely[0], kept[1] + timely[1]]
        for side in (0, 1) if within else ():
            ends = [r["ts"] + within[1] if side == 0 else r["ts"] - within[0] + 1 for r in kept[side]] if within else []
            for r, end in zip(kept[side], ends, strict=True):
                r["met"] = r.get("met", False) or r["n"] in met
                r["over"] = end <= high
                if side in preserved and not r["met"] and (r["over"] or r["k"] is None):
                    want[(r["n"], r["v"], None, None) if side == 0 else (None, None, r["n"], r["v"])] += 1
            kept[side] = [r for r in kept[side] if not r["over"] and r["k"] is not None]
        found = rig.epoch(*([{c: r[c] for c in RECORDS.names} for r in side] for side in new), watermark=high)
        assert rows_of([found]) == want
        assert rig.late == late
        for side, table in enumerate(("left", "right")):
            held = rig.rows(table).values()
            alone = {row["ab"[side]]: row.get(MATCHED) for row in held}
            if side in preserved:
                marks = {r["n"]: r["met"] for r in kept[side]}
                assert {n: mark for n, mark in alone.items() if n in marks} == marks, "the mark is kept with the row"
                assert all(mark for n, mark in alone.items() if n not in marks), "what was emitted is gone"
            else:
                assert {*alone.values()} <= {None}
        low = high
    if within is not None:
        assert not rig.timers() and not rig.rows("left") and not rig.rows("right")
    else:
        held = sum(r["k"] is not None for side in kept for r in side)
        assert len(rig.rows("left")) + len(rig.rows("right")) == held and not rig.timers()


def test_a_row_without_a_partner_comes_once_and_exactly_when_none_can_come_any_more() -> None:
    rig = ProcessHarness(OuterIntervalJoin(LEFT, RIGHT, 0, 80, how="full"), RECORDS, "k", RECORDS, "k")
    nothing: list[Any] = []
    lefts = [{"k": k, "v": 0, "ts": 7, "n": n} for n, k in enumerate(["a", "b", None])]
    assert rig.epoch(lefts, [], watermark=0)["a"].to_pylist() == [2], "a null has no partner, ever"
    pairs = rig.epoch([], [{"k": "b", "v": 5, "ts": 9, "n": 3}], watermark=0)
    assert pairs.to_pylist() == [{"a": 1, "x": 0, "b": 3, "y": 5}]
    assert rig.epoch([], [], watermark=86).to_pylist() == nothing
    assert rig.epoch([], [], watermark=87).to_pylist() == [{"a": 0, "x": 0, "b": None, "y": None}]
    assert rig.epoch([], [{"k": "a", "v": 0, "ts": 87, "n": 4}], watermark=87).to_pylist() == nothing
    assert rig.epoch([], [], watermark=88).to_pylist() == [{"a": None, "x": None, "b": 4, "y": 0}]
    assert rig.end().to_pylist() == nothing and not rig.rows("left") and not rig.rows("right")


def test_a_pair_that_a_condition_keeps_apart_is_none() -> None:
    join = OuterIntervalJoin(LEFT, RIGHT, 0, 80, [["x", "<", "y"]], "left")
    rig = ProcessHarness(join, RECORDS, "k", RECORDS, "k")
    rig.epoch([{"k": "a", "v": v, "ts": 1, "n": v} for v in (1, 2)], [{"k": "a", "v": 2, "ts": 1, "n": 3}], watermark=0)
    assert rig.end().to_pylist() == [{"a": 2, "x": 2, "b": None, "y": None}]


def test_columns_may_be_null_on_the_side_that_has_no_partner() -> None:
    """Also those that never are in the input."""
    whole = pa.schema([field.with_nullable(False) for field in RECORDS])
    for how, join in ((how, OuterIntervalJoin(LEFT, RIGHT, 0, 5, how=how)) for how in HOW[1:]):
        rig = ProcessHarness(join, whole, "k", whole, "k")
        row = {"k": "a", "v": 0, "ts": 1, "n": 1}
        rig.epoch([row] if how != "right" else [], [row] if how == "right" else [], watermark=0)
        assert rig.end().num_rows == 1 and all(field.nullable for field in join.output)


def test_rows_that_nothing_can_match_any_more_are_removed() -> None:
    rig = ProcessHarness(IntervalJoin(LEFT, RIGHT, 0, 80), RECORDS, "k", RECORDS, "k")
    rows = [{"k": "a", "v": 0, "ts": ts, "n": ts} for ts in range(0, 200, 5)]
    rig.epoch(rows, [], watermark=0)
    assert len(rig.timers()) < len(rows), "rows of about one time have one timer"
    for watermark in range(10, 300, 10):
        rig.epoch([], [], watermark=watermark)
        held = [row["_time"] for row in rig.rows("left").values()]
        assert {ts for ts in range(0, 200, 5) if ts + 80 > watermark} <= {*held}
        assert all(ts + 80 + 10 > watermark for ts in held)


def test_a_row_that_is_over_but_not_removed_yet_matches_nothing() -> None:
    rig = ProcessHarness(IntervalJoin(LEFT, RIGHT, 0, 80), RECORDS, "k", RECORDS, "k")
    rig.epoch([{"k": "a", "v": 0, "ts": 1, "n": 1}, {"k": "a", "v": 0, "ts": 45, "n": 2}], [], watermark=0)
    rig.epoch([], [], watermark=85)
    assert len(rig.rows("left")) == 2, "an eighth of the interval has not passed since 81"
    found = rig.epoch([], [{"k": "a", "v": 0, "ts": 50, "n": 3}], watermark=85)
    assert [row["a"] for row in found.to_pylist()] == [2] and not rig.late


INPUTS: list[dict[str, Any]] = [
    {"rate": 20},
    {"rate": 2000, "group": 100, "delay_prob": 0.1, "delay_ms": 3000, "seed": 11},
    {"rate": 10, "tick": 5000, "group": 64},
]


@pytest.mark.parametrize("options", INPUTS, ids=str)
def test_joins_of_people_and_auctions_are_the_oracles(tmp_path: Path, options: dict[str, Any]) -> None:
    case = generated(tmp_path, "nexmark", 6000, **options)
    person, auction = schema_of(case, "person"), schema_of(case, "auction")
    join = IntervalJoin({"person": "id", "person_seq": "seq"}, {"auction": "id", "auction_seq": "seq"}, 0, 3600_000)
    rig = ProcessHarness(join, person, "id", auction, "seller")
    found = rows_of(fed(rig, case, ("person", "auction"), 1), ["person", "auction", "person_seq", "auction_seq"])
    assert found == case.expected("q8_within", scale=12) and not rig.late
    near = case.tables["person"].filter(pc.is_in(case.tables["person"].column("state"), pa.array(["OR", "ID", "CA"])))
    tens = case.tables["auction"].filter(pc.equal(case.tables["auction"].column("category"), 10))
    some = Case(case.directory, {"person": near, "auction": tens}, case.delay)
    join = IntervalJoin({"name": "name", "city": "city", "state": "state"}, {"auction": "id"})
    rig = ProcessHarness(join, person, "id", auction, "seller")
    assert rows_of(fed(rig, some, ("person", "auction"), 2, delay=0)) == case.expected("q3") and not rig.late


@pytest.mark.parametrize("options", [{"rate": 10}, {"rate": 3, "locations": 5, "same_streams": True}, {"rate": 5, "tick": 1000}], ids=str)  # fmt: skip
def test_a_range_join_of_two_streams_is_the_oracles(tmp_path: Path, options: dict[str, Any]) -> None:
    case = generated(tmp_path, "unimico", 3000, **options)
    left = {"l": "l", "s_ts": "ts", "s_seq": "seq", "s_m": "m"}
    right = {"t_ts": "ts", "t_seq": "seq", "t_m": "m"}
    join = IntervalJoin(left, right, 1 - 10_000, 10_000)
    rig = ProcessHarness(join, schema_of(case, "s"), "l", schema_of(case, "t"), "l")
    found = pa.concat_tables(fed(rig, case, ("s", "t"), 3))
    times = found.column("s_ts"), found.column("t_ts")
    found = found.append_column("ts", pc.max_element_wise(*times))
    found = found.append_column("expires_at", pc.add(pc.min_element_wise(*times), 10_000))
    columns = ["ts", "expires_at", "s_seq", "t_seq", "l", "s_m", "t_m"]
    assert rows_of([found], columns) == case.expected("uq1") and not rig.late


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (IntervalJoin(LEFT, RIGHT, 5, 5), "nothing would match"),
        (IntervalJoin(LEFT, RIGHT, 5), "both bounds, or none"),
        (IntervalJoin(LEFT, {"a": "n"}), "appear twice"),
        (IntervalJoin({"a": "none"}, RIGHT), "no column 'none'"),
        (IntervalJoin(LEFT, RIGHT, where=[["a", "=>", "b"]]), "condition a => b"),
        (IntervalJoin(LEFT, RIGHT, where=[["a", "<", "v"]]), "give two of a, x, b, y"),
        (OuterIntervalJoin(LEFT, RIGHT, how="left"), "how='left' needs within="),
        (OuterIntervalJoin(LEFT, RIGHT, 0, 5, how="outer"), "a join is one of inner, left, right, full"),
        (OuterIntervalJoin({MATCHED: "n"}, RIGHT, 0, 5), "a name of Ferry's own"),
    ],
)
def test_what_cannot_be_joined_is_refused(join: IntervalJoin, message: str) -> None:
    with pytest.raises(SpecRefused, match=message):
        ProcessHarness(join, RECORDS, "k", RECORDS, "k")
