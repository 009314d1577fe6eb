"""The pure parts of `bench/reprogram.py`: the silence around an act, and how records are counted."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import reprogram
from bench.parts.reprogram import exact, flink_case, programs, report, spark_case
from bench.parts.reprogram.case import (
    NBQ5,
    PROGRAMS,
    SMQ,
    Act,
    Refused,
    Reprogrammed,
    acted,
    is_kept,
    keys_of,
    quantile,
    share,
    silence,
)
from bench.shared import bigstate
from bench.shared.ferry_job import RunFailed
from bench.shared.results import Results
from ferry.contract.latency import LatencyHistogram, bucket_of
from ferry.spark.compile import build

ASKED = 1_800_000_000.0


def seen(gap: float, system: str = "Ferry") -> Reprogrammed:
    """An output each 20 ms for 20 s, and one act in the middle with such a gap."""
    times = [ASKED + n / 50 for n in range(-500, 500)]
    outputs = [t for t in times if not ASKED + 0.5 < t < ASKED + 0.5 + gap]
    steps = [(t, LatencyHistogram({bucket_of(0.5 if ASKED < t < ASKED + 2 else 0.02): 10})) for t in outputs]
    return Reprogrammed(
        system, SMQ, "introduce", ASKED - 10, ASKED + 10, [Act(ASKED, ASKED + 1)], outputs, steps, "each once"
    )


def test_a_silence_is_the_longest_gap_with_a_part_in_the_act() -> None:
    outputs = [0.0, 1.0, 4.0, 5.0, 5.5, 9.0, 20.0]
    assert silence(outputs, Act(5.2, 5.4)) == 3.5, "a gap that begins within a second of the end is the act's"
    assert silence(outputs, Act(4.5, 4.6)) == 3.5, "so is one that begins a second after it"
    assert silence(outputs, Act(3.0, 3.5)) == 3.0 and silence(outputs, Act(1.5, 2.0)) == 3.0
    assert silence(outputs, Act(30.0, 31.0)) == math.inf, "no output: silence without an end"


def test_extra_silence_is_what_is_above_the_usual_gaps() -> None:
    one = seen(0.4)
    assert math.isclose(one.epoch(), 0.02, abs_tol=1e-5) and len(one.usual()) == 499
    assert one.extra() == pytest.approx([0.4], abs=0.021)
    assert one.undisturbed() == pytest.approx(0.02, abs=1e-5), "the gap of the act is no usual one"
    assert seen(0.0).extra() == pytest.approx([0.0], abs=1e-5)
    assert math.isnan(dataclasses.replace(one, outputs=[]).undisturbed())
    assert math.isnan(dataclasses.replace(one, outputs=[]).epoch()), "a slow system may have no output before"
    parts = one.parts()
    assert parts["before"].quantile(1.0) < 0.03 and parts["during"].quantile(0.5) > 0.4
    assert parts["after"].records == 4000 - 10


def test_the_bound_is_an_epoch_and_50_ms_and_never_a_second() -> None:
    assert is_kept([0.0, 0.06], 0.02) and not is_kept([0.0, 0.08], 0.02)
    assert is_kept([0.0] * 199 + [0.9], 0.02), "one of two hundred may be longer"
    assert not is_kept([0.0] * 199 + [1.1], 0.02)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0 and math.isnan(quantile([], 0.5))


def test_acts_follow_each_other_after_a_pause() -> None:
    waited = list[float]()
    bench: Any = SimpleNamespace(a=SimpleNamespace(warm=0.0, before=0.01, between=0.0, acts=3))
    begin, acts, end = acted(bench, waited.append, lambda n: Act(float(n), 0.0))
    assert [act.asked for act in acts] == [0.0, 1.0, 2.0] and len(waited) == 4
    assert waited[0] == pytest.approx(begin + 0.01) and end >= begin


@pytest.mark.parametrize("program", sorted({name for pair in PROGRAMS.values() for name in pair}))
def test_ferry_takes_each_program(program: str, tmp_path: Path) -> None:
    query = program.partition("_")[0]
    args = programs.arguments(query, 1000, keys_of(query, "2MB"))
    file = tmp_path / f"{program}.py"
    file.write_text(programs.text(program))
    made: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), made)
    compiled: Any = build(cast(Any, None), cast(Any, SimpleNamespace(**made)), args)
    (operator,) = compiled.operators
    assert operator.descriptor.name == programs.OPERATOR[query]
    columns = ["num", *(["total"] if "columns" in program else [])]
    assert query != NBQ5 or [one.name for one in operator.descriptor.aggregates] == columns


def test_filters_pass_one_of_so_many() -> None:
    batch = pa.RecordBatch.from_pydict({"seq": list(range(20))})
    assert programs.one_of(5)(batch).column("seq").to_pylist() == [0, 5, 10, 15]
    assert [share(name) for name in ("smq", "smq_fifth", "smq_tenth", "nbq5_columns")] == [1, 5, 10, 1]


def epochs(*rows: int) -> list[dict[str, Any]]:
    return [{"kind": "epoch", "epoch": n + 1, "rows": count} for n, count in enumerate(rows)]


def test_arrivals_belong_to_the_program_of_their_epoch() -> None:
    changes = [exact.Change(3, "b"), exact.Change(4, "a")]
    assert exact.spans(epochs(10, 5, 7, 8), "a", changes) == [
        exact.Span("a", 0, 15),
        exact.Span("b", 15, 22),
        exact.Span("a", 22, 30),
    ]


SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("side", pa.string()),
        ("left_name", pa.string()),
        ("right_auction", pa.int64()),
        ("right_created", pa.int64()),
    ]
)


def rows_of(folder: Path, epoch: int, numbers: list[int], counters: Counter[int]) -> None:
    made = []
    for n in numbers:
        counters[n % 3] += 1
        made.append({"seq": n, "instance": n % 3, "num": counters[n % 3]})
    (folder / f"epoch={epoch}").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(made), folder / f"epoch={epoch}" / "0.parquet")


def test_a_missing_row_or_a_counter_that_began_again_is_found(tmp_path: Path) -> None:
    wanted = [exact.Span("smq", 0, 12), exact.Span("smq_fifth", 12, 31)]
    counters = Counter[int]()
    rows_of(tmp_path / "good", 1, list(range(12)), counters)
    rows_of(tmp_path / "good", 2, [15, 20, 25, 30], counters)
    assert exact.numbers([tmp_path / "good"], wanted) == "16 rows, each once"
    rows_of(tmp_path / "lost", 1, [n for n in range(12) if n != 7], Counter())
    rows_of(tmp_path / "lost", 2, [15, 20, 25, 30], Counter())
    with pytest.raises(RunFailed, match="numbers in the output: 15 in place of 16"):
        exact.numbers([tmp_path / "lost"], wanted)
    rows_of(tmp_path / "anew", 1, list(range(12)), Counter())
    rows_of(tmp_path / "anew", 2, [15, 20, 25, 30], Counter())
    with pytest.raises(RunFailed, match="counters of the instances"):
        exact.numbers([tmp_path / "anew"], wanted)


def test_the_state_has_each_record_once_and_the_new_column_those_since(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, wanted = 50, [exact.Span("nbq5", 0, 200), exact.Span("nbq5_columns", 200, 260)]
    source = bigstate.Keys(keys)
    num = np.bincount(source.numbers(0, 260).astype(np.int64), minlength=keys)
    since = np.bincount(source.numbers(200, 260).astype(np.int64), minlength=keys)
    total = [None if not count else int(count) * bigstate.BASE_MS for count in since]
    state = pa.table({"key": bigstate.texts(np.arange(keys)), "num": num, "total": pa.array(total, pa.int64())})
    monkeypatch.setattr(exact.ferry, "read_state", lambda *_, **__: state)
    assert exact.counts(Path(), "job", keys, wanted).startswith("50 keys, 260 records, 60 in the new column")
    with pytest.raises(RunFailed, match="sums of the new column"):
        exact.counts(Path(), "job", keys, [exact.Span("nbq5", 0, 210), exact.Span("nbq5_columns", 210, 260)])
    late = [exact.Span("nbq5", 0, 190), exact.Span("nbq5_columns", 190, 250)]
    assert "260 records, 60 in the new column" in exact.counts(Path(), "job", keys, late, killed=True)
    with pytest.raises(RunFailed, match="260 in sum in place of 259"):
        exact.counts(Path(), "job", keys, [exact.Span("nbq5", 0, 259)])


def test_a_join_has_each_person_and_auction_once_and_the_new_column_those_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, wanted = 50, [exact.Span("nbq8", 0, 200), exact.Span("nbq8_columns", 200, 260)]

    def joined(auctions: list[int], since: int) -> pa.Table:
        people = [
            {"key": n, "side": "left", "left_name": bigstate.texts(np.array([n]))[0].as_py()} for n in range(keys)
        ]
        created = [{"key": n % keys, "side": "right", "right_auction": n, "right_created": n} for n in auctions]
        old = [{**one, "right_created": None} if one["right_auction"] < since else one for one in created]
        return pa.Table.from_pylist([*people[::-1], *old[::-1]], SCHEMA)

    def read(state: pa.Table) -> None:
        monkeypatch.setattr(exact.ferry, "read_state", lambda *_, **__: state)

    read(joined([*range(50, 260)], 200))
    told = "50 people, 210 auctions, 60 with the new column, each once"
    assert exact.pairs(Path(), "job", keys, wanted) == told == exact.pairs(Path(), "job", keys, wanted[:1], killed=True)
    with pytest.raises(RunFailed, match="auctions: 210 in place of 211"):
        exact.pairs(Path(), "job", keys, [wanted[0], exact.Span("nbq8_columns", 200, 261)])
    with pytest.raises(RunFailed, match="auctions with the new column"):
        exact.pairs(Path(), "job", keys, [exact.Span("nbq8", 0, 199), exact.Span("nbq8_columns", 199, 260)])
    read(joined([*range(50, 100), *range(99, 259)], 200))
    with pytest.raises(RunFailed, match=r"auctions: .* the first wrong one is at 50"):
        exact.pairs(Path(), "job", keys, wanted, killed=True)
    read(joined([*range(50, 260)], 200).slice(1))
    with pytest.raises(RunFailed, match="people: 49 in place of 50"):
        exact.pairs(Path(), "job", keys, wanted)


def test_each_millisecond_of_flink_has_the_records_of_its_program() -> None:
    clock = int(ASKED * 1000) - 5000
    plan = exact.Plan(10_000, clock, ASKED + 5)
    acts = [Act(ASKED, ASKED + 1)]
    before, behind = plan.passed(1), plan.passed(5)
    assert before.sum() == 100_000 and behind.sum() == 20_000 and set(before) == {9, 10, 11}
    counts = {clock + ms: int((before if ms < 5300 else behind)[ms]) for ms in range(10_000)}
    assert "of each millisecond as many as it should" in exact.created(counts, ("smq", "smq_fifth"), plan, acts)
    for ms, wrong in ((100, 8), (100, 20), (5500, 1), (9000, 10)):
        with pytest.raises(RunFailed, match="1 of 10,000 milliseconds"):
            exact.created({**counts, clock + ms: wrong}, ("smq", "smq_fifth"), plan, acts)


def test_what_flink_commits_again_counts_once(tmp_path: Path) -> None:
    (tmp_path / "1-0-committed.txt").write_text("1000 77 3:5 4:1\n1500 78 2:7\n1600 79 1:1")
    (tmp_path / "2-0-committed.txt").write_text("9000 77 8003:5 8004:1\n")
    assert flink_case.committed(tmp_path) == {997: 5, 996: 1, 1498: 7}


def test_records_of_spark_are_as_old_as_their_numbers_say(tmp_path: Path) -> None:
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    for batch, read in ((0, 60), (1, 100), (2, 300)):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"read": {read}, "since": {int(ASKED * 1e6)}}}')
        commit = tmp_path / "commits" / str(batch)
        commit.touch()
        os.utime(commit, (ASKED + 2 + batch, ASKED + 2 + batch))
    steps = [*spark_case.steps_of(tmp_path, NBQ5, 100, 100)]
    assert [(t, one.records) for t, one in steps] == [(ASKED + 4, 200)], "loaded keys do not count"
    assert steps[0][1].quantile(1.0) == pytest.approx(4.0, rel=0.02)


def test_cases_are_told_and_drawn(tmp_path: Path) -> None:
    results = Results("reprogram", "method")
    one, two = seen(0.05), seen(5.0, "Flink, tuned")
    for each in (one, two):
        report.add(results, each, rate=1000)
    assert results.values(system="Ferry", metric="in force") == [1.0]
    assert results.values(system="Flink, tuned", metric="extra silence") == pytest.approx([5.0], abs=0.03)
    assert "each once" in report.line(one)
    (file,) = report.pictures(tmp_path / "r.json", [one, two])
    assert file.name == "r.png" and file.read_bytes().startswith(b"\x89PNG")


def test_a_lost_row_ends_the_command_with_an_error_and_a_refusal_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def case(error: Exception | None) -> Any:
        def measure(*_: object) -> Reprogrammed:
            if error is not None:
                raise error
            return seen(0.1)

        return measure

    file = tmp_path / "r.json"
    monkeypatch.setattr(sys, "argv", ["x", "--queries", "smq", "--kinds", "introduce", "--json", str(file)])
    monkeypatch.setattr(reprogram, "CASES", {"ferry": case(None), "spark": case(Refused("another schema"))})
    assert reprogram.main() == 0 and "cannot do it: another schema" in capsys.readouterr().out
    monkeypatch.setattr(reprogram, "CASES", {"ferry": case(None), "spark": case(RunFailed("a row is lost"))})
    assert reprogram.main() == 1 and "a row is lost" in capsys.readouterr().out
    assert '"failed"' in file.read_text() and "extra silence" in file.read_text()
