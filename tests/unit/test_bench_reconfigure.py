"""The pure parts of `bench/reconfigure.py`: how fast records come, and what is said of before, during and after the act."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import reconfigure
from bench.parts.reconfigure import ferry_case, flink_case, job, profile, report
from bench.parts.reconfigure.case import QUERIES, Plan, Reconfigured, counted, refuse_late
from bench.shared.ferry_job import FerryJob, RunFailed
from bench.shared.ferry_paced import last_switched
from bench.shared.flink_paced import first_records, is_behind
from bench.shared.results import Results
from ferry.contract.latency import LatencyHistogram, bucket_of
from ferry.spark.compile import build
from ferry_operator.job import spec
from ferry_workloads.pacing import ArrivalPace

ASKED = 1_800_000_000.0


def histogram(seconds: float, count: int = 100) -> LatencyHistogram:
    return LatencyHistogram({bucket_of(seconds): count})


def seen(latencies: dict[float, float], ended: float | None = 1.0, system: str = "Ferry") -> Reconfigured:
    """10 s before the act and 10 s after it, 20 ms of each 250 ms where nothing else is said."""
    times = [n / 4 for n in range(-40, 40)]
    steps = [(ASKED + t + 0.1, histogram(latencies.get(t, 0.02))) for t in times if latencies.get(t, 0.02)]
    plan = Plan(ASKED - 15, 5.0, 20.0, profile.steps(profile.CONSTANT, 400, 5.0, 20.0))
    return Reconfigured(system, "nbq5", steps, plan, ASKED, None if ended is None else ASKED + ended)


def test_the_rate_goes_up_and_down_as_in_the_paper() -> None:
    made = profile.steps(profile.VARYING, 8000, 15.0, 280.0)
    assert made[0] == (15.0, 1000) and made[1:16] == [(10.0, 1000 + 500 * n) for n in range(15)]
    assert made[16:29] == [(10.0, 7500 - 500 * n) for n in range(13)] and made[29] == (10.0, 1000)
    begin, end = profile.rate_at(made, 15.0), profile.rate_at(made, 15.0 + 279.9)
    assert (begin, profile.rate_at(made, 15.0 + 140), end) == (1000, 8000, 1500), "the act comes at the peak"
    assert profile.rate_at(made, -0.1) == 0 and profile.rate_at(made, 1e9) == 0
    assert sum(seconds for seconds, _ in made) >= 15 + 280 + profile.AFTER_SECONDS
    assert profile.steps(profile.VARYING, 800, 1.0, 9.0, 3.0)[1:4] == [(3.0, 100), (3.0, 150), (3.0, 200)]
    assert profile.steps(profile.CONSTANT, 800, 1.0, 9.0) == [(10.0 + profile.AFTER_SECONDS, 800)]


def test_positions_follow_the_profile() -> None:
    made = profile.steps(profile.VARYING, 800, 2.0, 28.0)
    pace = ArrivalPace.of(None, made)
    assert [pace.due(t) for t in (-1, 2, 3, 4, 4.5)] == [0, 200, 300, 450, 550]
    total = sum(seconds for seconds, _ in made)
    assert math.isclose(profile.mean(made), pace.due(total - 1e-6) / total, rel_tol=1e-4)
    assert profile.of_text(profile.as_text(made)) == made


def test_a_job_begins_at_the_moment_that_was_agreed_on() -> None:
    clock = time.time() + 100
    args = {"query": "nbq8", "clock_us": int(clock * 1e6), "profile": "5.0:1000.0", "rate": 1000.0}
    sources = job.sources(None, args)
    assert sorted(sources) == ["auction", "person"]
    for one in sources.values():
        start = one.start()
        assert start["since"] == int(clock * 1e6) and one.latest(start, 1000) == start, "nothing is due yet"
        late = {**start, "since": start["since"] - 110_000_000}
        assert 10_000 <= one.latest(late, 100_000)["read"] < 20_000


@pytest.mark.parametrize("query", QUERIES)
def test_ferry_takes_the_job_of_each_query(query: str) -> None:
    a: Any = SimpleNamespace(cores=2, vnodes=16, interval="10ms", rate=800)
    plan = Plan(ASKED, 2.0, 28.0, profile.steps(profile.VARYING, 800, 2.0, 28.0))
    args = spec.check(ferry_case.document(a, query, plan)).spec.pipeline.args
    compiled: Any = build(cast(Any, None), job, args)
    assert compiled.sources and {one.pace.due(4.0) for one in compiled.sources.values()} == {450}


def test_latency_is_told_before_during_and_after_the_act() -> None:
    spike = seen({0.5: 1.0, 0.75: 0.5, 1.5: 0.3, 6.0: 0.9}, ended=1.0)
    parts = spike.parts()
    assert spike.back() == 1.75, "the pieces at 1.5 s are high, and what comes at 6 s is not the act's"
    assert [parts[name].records for name in report.PARTS] == [4000, 800, 3200]
    longest = [parts[name].quantile(1.0) for name in report.PARTS]
    assert longest == pytest.approx([0.02, 1.0, 0.9], rel=0.01)
    calm = seen({}, ended=0.3)
    assert calm.back() == 0 and calm.parts()["during"].records == 500, "until a second after its end"


def test_latency_is_not_back_before_the_act_is_over_nor_while_nothing_comes() -> None:
    # It is calm for 4 s, and then state is switched over.
    assert seen({4.0: 0.2}, ended=4.2).back() == 4.25
    # Nothing comes for 5 s; what comes then has waited.
    outage: dict[float, float] = {n / 4: 0.0 for n in range(1, 21)} | {5.25: 5.0}
    assert seen(outage, ended=0.0).back() == 5.5
    never = seen({n / 4: 1.0 for n in range(40)})
    assert never.back() is None and sorted(never.parts()) == ["after", "before", "during"]
    assert never.parts()["after"].records == 0
    # Too short before the end to know.
    assert seen({n / 4: 1.0 for n in range(36)}).back() is None
    # Rows come once a second, as behind checkpoints.
    sparse: dict[float, float] = {n / 4: 0.0 for n in range(-40, 40) if n % 4} | {1.0: 3.0}
    assert seen(sparse).back() == 1.25


def test_without_an_act_there_is_nothing_between() -> None:
    quiet = seen({3.0: 1.0}, ended=None)
    assert quiet.back() == 0 and {name: part.records for name, part in quiet.parts().items()} == {
        "before": 4000,
        "after": 4000,
    }


def test_what_was_created_behind_the_end_does_not_count() -> None:
    plan = seen({}).plan
    steps = [(plan.begin - 0.1, histogram(0.02)), (plan.begin, histogram(0.02)), (plan.end + 3, histogram(3.5))]
    late = (plan.end + 3, histogram(0.1))
    assert counted([*steps, late], plan) == steps[1:]
    assert not is_behind(steps, plan.end) and is_behind([*steps, late], plan.end)


def test_an_act_ends_with_the_last_switch_of_its_own() -> None:
    def groups(t: float, kind: str) -> dict[str, Any]:
        return {"kind": "groups", "t": ASKED + t, "changes": [[3, kind, "1.0"]]}

    records = [groups(-2, "switched"), groups(1, "added"), groups(2, "switched"), groups(4, "switched")]
    records += [{"kind": "epoch", "t": ASKED + 5}, groups(20, "switched"), groups(21, "switched")]
    run: Any = SimpleNamespace(records=records, log_end=lambda: "the log")
    assert last_switched(run, ASKED) == ASKED + 4
    run.records = records[:2]
    with pytest.raises(RunFailed, match="nothing was moved"):
        last_switched(run, ASKED)


def test_half_of_what_a_worker_leads_is_moved() -> None:
    asked: list[Any] = []
    state = {"groups": [[["0.0", "1.0"], []], [["1.0", "0.0"], []], [["0.0"], []], [["0.0"], []], [["0.0"], []]]}
    run: Any = object.__new__(FerryJob)
    run.status, run.ask, run.scale = lambda: state, lambda *a: asked.append(a), asked.append
    ferry_case.act(run, "balance", 3)
    ferry_case.act(run, "scale", 3)
    assert asked == [("POST", "/move", {"vnodes": [0, 2], "instance": "1.0"}), 3]


def test_tasks_of_flink_are_back_when_each_has_told_of_a_record(tmp_path: Path) -> None:
    def write(opened: float, subtask: int, text: str) -> None:
        (tmp_path / f"{int((ASKED + opened) * 1000)}-{subtask}-at-once.txt").write_text(text)

    now = int(ASKED * 1000)
    write(-5, 0, f"{now} 0 3:7\n")
    write(-5, 3, f"{now} 0 3:7\n")
    write(1, 0, f"{now + 1000} 0\n{now + 1500} 0 3:7\n")
    write(1, 1, f"{now + 1200} 4 3:7\n{now + 1500} 0 3:7\n")
    write(1, 2, f"{now + 1000} 0\n{now + 1300} 0 3:7")
    assert first_records(tmp_path, ASKED) == {"0": ASKED + 1.5, "1": ASKED + 1.2}


def test_flink_as_it_comes_has_only_what_checkpoints_need(tmp_path: Path) -> None:
    tuned = flink_case.chosen(flink_case.TUNED, tmp_path, 2, "1s")
    default = flink_case.chosen(flink_case.DEFAULT, tmp_path, 2, "1s")
    assert tuned["jobmanager.scheduler"] == "adaptive" and "jobmanager.scheduler" not in default
    assert default.items() < tuned.items() and default["execution.checkpointing.interval"] == "1s"
    assert "state.backend.type" not in default and "heartbeat.interval" not in default


def test_cases_are_told_and_drawn(tmp_path: Path) -> None:
    results = Results("reconfigure", "method")
    one, two = seen({0.5: 1.0}), seen({n / 4: 1.0 for n in range(40)}, system="Flink, tuned")
    for each in (one, two):
        report.add(results, each, act="balance", rate=400)
    about: dict[str, Any] = {"system": "Ferry", "act": "balance"}
    assert results.values(metric="back", **about) == [0.75] and results.values(metric="act", **about) == [1.0]
    assert math.isclose(results.values(metric="p99 before", **about)[0], 0.02, rel_tol=0.01)
    assert len(results.values(metric="max of 250 ms", **about)) == 80
    (late,) = [r["value"] for r in results.records if r["metric"] == "back" and r["system"] == "Flink, tuned"]
    assert late == "not within the time" and "back after 0.75 s" in report.line(one) and "not back" in report.line(two)
    (file,) = report.pictures(tmp_path / "r.json", "balance", [one, two])
    assert file.name == "r-nbq5.png" and file.read_bytes().startswith(b"\x89PNG")
    median, _, rate = report.panels([seen({1.0: 0.0, 1.25: 0.5})])
    by_tick = dict(zip(median.labels, median.series["Ferry"], strict=True))
    assert by_tick[1.0] == by_tick[1.25] and set(rate.series["created"]) == {400}
    assert [t for t in (0.75, 1.0) if math.isclose(by_tick[t] or 0, 0.5, rel_tol=0.01)] == [1.0], "what came next"


def test_a_system_that_is_up_too_late_is_measured_again_with_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begins: list[float] = []

    def slow(bench: Any, query: str) -> list[Reconfigured]:
        plan = bench.plan(10.0)
        begins.append(round(plan.clock - time.time()))
        refuse_late(Plan(plan.clock - (90 if len(begins) == 1 else 0), plan.warm, plan.seconds, plan.steps))
        return [seen({})]

    monkeypatch.setattr(reconfigure, "CASES", {"ferry": slow})
    monkeypatch.setattr(sys, "argv", ["x", "--json", str(tmp_path / "r.json")])
    assert reconfigure.main() == 0 and begins == [10, 30, 30] and "s too late: again" in capsys.readouterr().out


def test_a_system_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> list[Reconfigured]:
        raise RunFailed("no Flink")

    cases = {"ferry": lambda bench, query: [seen({})], "flink-tuned": failing}
    monkeypatch.setattr(reconfigure, "CASES", cases)
    file = tmp_path / "r.json"
    monkeypatch.setattr(sys, "argv", ["x", "--queries", "nbq5", "--links", "1gbit", "--json", str(file)])
    assert reconfigure.main() == 0 and "no Flink" in capsys.readouterr().out
    text = file.read_text()
    assert '"failed"' in text and "p99 before" in text and "behind a link of 1gbit" in text
