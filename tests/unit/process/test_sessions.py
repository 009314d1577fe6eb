"""Sessions against loops over records, and against the oracle."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.joins import HOW
from ferry.process.sessions import SessionAggregate, SessionJoin
from tests.unit.process.queries import fed, generated, rows_of, schema_of

GAP = 10
RECORDS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("f", pa.float64()), ("ts", pa.int64()), ("n", pa.int64())])
ALL = {
    "n": ferry.count(), "values": ferry.count("v"), "total": ferry.sum("v"), "mean": ferry.mean("v"),
    "least": ferry.min("v"), "most": ferry.max("f"), "first": ferry.min("k"),
}  # fmt: skip

epochs = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", None]), st.integers(0, 60), st.none() | st.integers(-5, 5), st.booleans()
            ),
            max_size=8,
        ),
        st.integers(0, 15),
    ),
    max_size=8,
)


class Model:
    """Sessions of one key after another, record by record."""

    def __init__(self) -> None:
        self.open: dict[str, list[tuple[int, int, list[Any]]]] = defaultdict(list)
        self.late = 0

    def add(self, key: str, ts: int, record: Any, low: int) -> None:
        if ts + GAP <= low:
            self.late += 1
            return
        start, last, records = ts, ts, [record]
        rest = []
        for s in self.open[key]:
            if s[0] - GAP <= last and start <= s[1] + GAP:
                start, last, records = min(start, s[0]), max(last, s[1]), s[2] + records
            else:
                rest.append(s)
        self.open[key] = [*rest, (start, last, records)]

    def fire(self, watermark: int) -> list[tuple[str, int, int, list[Any]]]:
        out = []
        for key, sessions in self.open.items():
            out += [(key, s, e + GAP, r) for s, e, r in sessions if e + GAP <= watermark]
            self.open[key] = [s for s in sessions if s[1] + GAP > watermark]
        return out


def joined(left: list[Any], right: list[Any], how: str, apart: bool) -> list[tuple[Any, Any]]:
    """Pairs of all, or who is alone: all, where the key is null."""
    pairs = [(a, b) for a in left for b in right if not apart]
    pairs += [(a, None) for a in left if (not right or apart) and how in ("left", "full")]
    return pairs + [(None, b) for b in right if (not left or apart) and how in ("right", "full")]


def steps(given_: Any) -> Any:
    """Epochs of records, each with the watermarks before and after it; at last the end."""
    low = WATERMARK_NONE
    number = 0
    for records, ahead in given_:
        made = []
        for k, ts, v, side in records:
            made.append({"k": k, "v": v, "f": None if v is None else v / 2, "ts": ts, "n": number, "side": side})
            number += 1
        high = ahead if low == WATERMARK_NONE else low + ahead
        yield made, low, high
        low = high
    yield [], low, WATERMARK_END


@settings(max_examples=60, deadline=None)
@given(epochs)
def test_sessions_are_those_of_a_loop_over_records(given_: Any) -> None:
    rig, model = ProcessHarness(SessionAggregate(GAP, Functions(ALL)), RECORDS, "k"), Model()
    for records, low, high in steps(given_):
        for r in records:
            model.add(r["k"], r["ts"], r, low)
        found = rig.epoch([{c: r[c] for c in RECORDS.names} for r in records], watermark=high)
        want = Counter()
        for key, start, end, members in model.fire(high):
            values = [r["v"] for r in members if r["v"] is not None]
            total, mean = (sum(values), sum(values) / len(values)) if values else (None, None)
            least, most = (min(values), max(values) / 2) if values else (None, None)
            want[key, start, end, len(members), len(values), total, mean, least, most, key] += 1
        assert rows_of([found]) == want
        assert rig.late == model.late
        assert {(k[0], e) for k, e in rig.rows("sessions")} == {(k, s[0]) for k, of in model.open.items() for s in of}
    assert not rig.timers()


@settings(max_examples=60, deadline=None)
@given(epochs, st.sampled_from(HOW))
def test_joined_sessions_are_those_of_a_loop_over_records(given_: Any, how: str) -> None:
    process = SessionJoin(GAP, {"left_key": "k", "left": "n"}, {"right": "n"}, how)
    rig, model = ProcessHarness(process, RECORDS, "k", RECORDS, "k"), Model()
    for records, low, high in steps(given_):
        sides: list[list[Any]] = [[], []]
        for r in records:
            model.add(r["k"], r["ts"], r, low)
            sides[r["side"]].append({c: r[c] for c in RECORDS.names})
        want = Counter[Any]()
        for key, start, end, members in model.fire(high):
            halves = [[r["n"] for r in members if r["side"] == side] for side in (False, True)]
            want += Counter(
                (start, end, None if a is None else key, a, b) for a, b in joined(*halves, how, apart=key is None)
            )
        assert rows_of([rig.epoch(*sides, watermark=high)]) == want
        assert rig.late == model.late
        assert len(rig.rows("left")) + len(rig.rows("right")) == sum(
            len(s[2]) for of in model.open.values() for s in of
        )
    assert not rig.timers() and not rig.rows("sessions")


INPUTS: list[dict[str, Any]] = [
    {"rate": 20},
    {"rate": 2000, "group": 100, "delay_prob": 0.1, "delay_ms": 3000, "seed": 11},
    {"rate": 2, "keys": "uniform", "domain": 200, "proportions": "1,4,4", "seed": 3},
    {"rate": 10, "tick": 5000, "group": 64},
]


@pytest.mark.parametrize("options", INPUTS, ids=str)
def test_session_queries_are_the_oracles(tmp_path: Path, options: dict[str, Any]) -> None:
    case = generated(tmp_path, "nexmark", 4000, **options)
    bid, person, auction = (schema_of(case, name) for name in ("bid", "person", "auction"))
    gap = 10_000
    q11 = ProcessHarness(SessionAggregate(gap, Functions({"num": ferry.count()})), bid, "bidder")
    assert rows_of(fed(q11, case, ("bid",), 1)) == case.expected("q11") and not q11.late
    join = SessionJoin(gap, {"person": "id", "person_seq": "seq"}, {"bid_seq": "seq"})
    nb11 = ProcessHarness(join, person, "id", bid, "bidder")
    assert rows_of(fed(nb11, case, ("person", "bid"), 2)) == case.expected("nb11") and not nb11.late
    expected, parts = case.expected("nbqx", scale=4), Counter[Any]()
    for minutes in (30, 60, 90, 120):
        join = SessionJoin(minutes * 15_000, {"key": "id", "left_seq": "seq"}, {"right_seq": "seq"})
        rig = ProcessHarness(join, auction, "id", bid, "auction")
        found = rows_of(fed(rig, case, ("auction", "bid"), minutes))
        parts += Counter({(f"session_{minutes}m", *row): n for row, n in found.items()})
    assert parts == Counter({row: n for row, n in expected.items() if row[0] != "tumbling_4h"})


def test_what_a_session_cannot_do_is_refused() -> None:
    with pytest.raises(SpecRefused, match="first needs column 'x'; there are k, v"):
        ProcessHarness(SessionAggregate(GAP, Functions({"first": ferry.min("x")})), RECORDS, "k")
    with pytest.raises(SpecRefused, match="s: column 'k' is string, and sum takes"):
        ProcessHarness(SessionAggregate(GAP, Functions({"s": ferry.sum("k")})), RECORDS, "k")
    with pytest.raises(SpecRefused, match="s: column 'k' is string, and variance takes"):
        ProcessHarness(SessionAggregate(GAP, Functions({"s": ferry.variance("k")})), RECORDS, "k")
    with pytest.raises(SpecRefused, match=r"columns \['v', 'window_end'\] would appear twice"):
        ProcessHarness(SessionJoin(GAP, {"v": "v"}, {"v": "v", "window_end": "ts"}), RECORDS, "k", RECORDS, "k")
    with pytest.raises(SpecRefused, match="no column 'x'"):
        ProcessHarness(SessionJoin(GAP, {"v": "v"}, {"w": "x"}), RECORDS, "k", RECORDS, "k")
    with pytest.raises(SpecRefused, match="how='outer': a join is one of inner, left, right, full"):
        ProcessHarness(SessionJoin(GAP, {"v": "v"}, {"w": "v"}, "outer"), RECORDS, "k", RECORDS, "k")
    rig = ProcessHarness(SessionAggregate(GAP, Functions({"s": ferry.sum("v")})), RECORDS, "k")
    great = [{"k": "a", "v": 2**62, "ts": 0, "f": None, "n": 0}] * 2
    with pytest.raises(SpecRefused, match="too large: a sum is beyond 64-bit integers"):
        rig.epoch(great, watermark=0)
    assert rig.epoch([great[0] | {"f": np.nan}], watermark=GAP).column("s").to_pylist() == [2**62]
