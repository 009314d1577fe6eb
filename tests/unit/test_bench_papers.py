"""The papers' table: every row can be measured by its command, and is what its records say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import papers
from bench.parts.papers import bartnik, slash
from bench.parts.papers.rows import throughputs
from bench.shared.ferry_job import ROOT
from bench.shared.results import Results

COMMANDS = sorted({row.command[0] for row in papers.ROWS})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_rows_know_their_options(command: str) -> None:
    line = [sys.executable, "-m", f"bench.{command}", "--help"]
    text = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for row in papers.ROWS:
        if row.command[0] == command:
            assert all(word in text for word in row.command if word.startswith("--")), row.key


def test_keys_are_unique_and_all_are_on_the_page() -> None:
    keys = [row.key for row in papers.ROWS]
    assert len(set(keys)) == len(keys)
    assert all(f"| `{key}` |" in papers.PAGE.read_text() for key in keys)
    kept = json.loads(papers.KEPT.read_text())
    assert papers.page(kept) == papers.PAGE.read_text(), "bench/papers.py writes it"


def test_an_answer_is_kept_and_one_that_was_not_measured_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(papers, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(papers, "PAGE", tmp_path / "page.md")
    one = {"benchmark": "handover", "case": "move to 4", "metric": "pause"}
    values = {
        ("Ferry", "10MB"): (0.1,),
        ("Ferry", "1GB"): (0.1, 0.3),
        ("Flink", "10MB"): (2.0,),
        ("Flink", "1GB"): (8.0,),
    }
    records = [
        {**one, "system": system, "size": size, "value": value}
        for (system, size), many in values.items()
        for value in many
    ]
    (tmp_path / "r.json").write_text(json.dumps(records[:1]))
    monkeypatch.setattr(sys, "argv", ["x", "rhino-1", "--from", str(tmp_path / "r.json")])
    assert papers.main() == 1 and not (tmp_path / "kept.json").exists()
    (tmp_path / "r.json").write_text(json.dumps(records))
    assert papers.main() == 0
    kept = json.loads((tmp_path / "kept.json").read_text())["rhino-1"]
    assert kept["ratio"] == pytest.approx(40) and kept["runs"] == 2
    assert "Ferry 0.10 -> 0.20 (0.10 to 0.30) s, 2.0 times as long; Flink 2.00 -> 8.00 s, 4.0 times" in kept["ours"]
    assert "| there 50 (Flink, 1 TB); here 40 | 2 |" in (tmp_path / "page.md").read_text()


def test_a_ratio_stands_where_the_paper_has_the_same_one_and_only_there() -> None:
    kept = json.loads(papers.KEPT.read_text())
    assert kept.keys() == {row.key for row in papers.ROWS}
    assert [row.key for row in papers.ROWS if bool(row.ratio) != (kept[row.key]["ratio"] is not None)] == []
    assert all(row.unlike and kept[row.key]["runs"] >= 1 for row in papers.ROWS)


def test_what_processes_use_is_put_beside_the_records_of_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "RESULTS", tmp_path)
    console = Console(quiet=True)
    assert papers.measured("some", ("papers", "--help"), console) == tmp_path / "paper-some.json"
    assert papers.measured("none", ("papers", "--unknown"), console) is None
    for key in ("some", "none"):
        found = json.loads((tmp_path / f"paper-{key}-resources.json").read_text())
        assert found["about"]["what"] == key and len(found["groups"]["the bench"]["rss"]) == len(found["t"]) > 0
        assert (tmp_path / f"paper-{key}-resources.png").exists()


def test_an_act_is_answered_with_the_longest_wait_of_each_query() -> None:
    results, found = (
        Results("reconfigure", ""),
        {"Ferry": 0.05, "Flink, tuned, at least once": 2.0, "Flink, at least once": 4.0},
    )
    row = next(row for row in papers.ROWS if row.key == "rhino-4g")
    for system, seconds in found.items():
        for query, times in (("nbq8", 1.0), ("nbq5", 2.0)):
            results.add(system, query, "max during", seconds * times, "s")
            results.add(system, query, "max before", 0.04, "s")
    answer = row.answer(results)
    words = answer.words
    assert answer.ratio is None, "the state is small: the paper's ratio is of another thing"
    assert words.startswith("NBQ8: at most 40 ms before, 50 ms around it; Flink, tuned 2.00 s")
    assert "NBQ5: at most 40 ms before, 100 ms around it; Flink, tuned 4.00 s, as it comes 8.00 s" in words
    results.records = [r for r in results.records if r["system"] != "Flink, at least once"]
    with pytest.raises(LookupError, match="not measured"):
        row.answer(results)


def test_a_query_that_no_rival_has_is_answered_alone() -> None:
    results = Results("reconfigure", "")
    for metric, seconds in (("max before", 0.06), ("max during", 0.08), ("p99 before", 0.03), ("p99 during", 0.04)):
        results.add("Ferry", "nbqx", metric, seconds, "s")
    row = next(row for row in papers.ROWS if row.key == "rhino-4i")
    assert row.answer(results).words == "NBQX: p99 30 ms before, 40 ms around it, at most 60 and 80 ms"


def rates(query: str, case: str, **values: float) -> list[dict[str, object]]:
    one = {"case": f"{query}, {case}", "metric": "throughput", "batch": 1_000_000}
    return [{**one, "system": name.replace("_", " "), "value": value * 1e6} for name, value in values.items()]


def results_of(*records: dict[str, object]) -> Results:
    results = Results("throughput", "")
    results.records += records
    return results


def test_throughputs_of_other_programs_have_no_ratio() -> None:
    measured = results_of(*rates("ysb", "files", Ferry=6.0, UpPar=2.0, Spark=1.0), *rates("ysb", "files", Ferry=8.0))
    answer = throughputs("ysb", "Ferry", "UpPar", "Spark")(measured)
    assert answer.words == "Ferry 7.00 (6.00 to 8.00) M; UpPar 2.00 M; Spark 1.00 M" and answer.ratio is None


def test_skew_is_told_for_both() -> None:
    found = []
    for query, even, steep in (
        ("ro", {"Ferry": 3.0, "UpPar": 2.0}, {"Ferry": 4.5, "UpPar": 1.0}),
        ("ysb", {"Ferry": 3.0, "UpPar": 2.0}, {"Ferry": 3.0, "UpPar": 2.0}),
    ):
        for skew, values in ((0.2, even), (2.0, steep)):
            found += [{**one, "skew": skew} for one in rates(query, "zipf", **values)]
    assert slash.skewed(results_of(*found)).words.startswith(
        "RO, exponent 0.2 -> 2.0: 3.00 -> 4.50 M records/s; UpPar 2.00 -> 1.00 M."
    )
    with pytest.raises(LookupError):
        slash.skewed(results_of(*found[:-1]))


def test_cost_is_reached_or_not() -> None:
    about = {"case": "about", "metric": "cores", "value": 2}
    both = [*rates("ysb", "files", Ferry=3.0, One_thread=6.0), *rates("cm", "files", Ferry=8.0, One_thread=4.0)]
    ysb, cm = slash.cost(results_of(about, *both)).words.split("; ")
    assert ysb == "YSB: 3.00 M records/s with 2 cores, one thread 6.00 M: not reached on this machine"
    assert cm == "CM: 8.00 M records/s with 2 cores, one thread 4.00 M"


def test_copies_are_compared_with_none() -> None:
    case = {"system": "Ferry", "case": "replicas", "metric": "throughput"}
    found = [{**case, "replicas": number, "value": value} for number, value in enumerate((2.0e6, 1.9e6, 1.8e6))]
    row = next(row for row in papers.ROWS if row.key == "rhino-5.1")
    answer = row.answer(results_of(*found))
    assert answer.words == "2.00, 1.90, 1.80 M records/s with 0, 1, 2 replicas" and answer.ratio == pytest.approx(0.9)


def test_a_changed_program_is_answered_with_the_longest_silence_of_each_system() -> None:
    results = Results("reprogram", "")
    for system, silence, seconds in (
        ("Ferry", 0.05, 4.0), ("Ferry, restart", 20.0, 20.0), ("Flink, tuned", 2.0, 8.0), ("Spark", 30.0, 40.0),
    ):  # fmt: skip
        for times in (0.5, 1.0):
            about = {"query": "nbq8", "act": "migrate"}
            results.add(system, "nbq8, migrate", "extra silence", silence * times, "s", **about)
            results.add(system, "nbq8, migrate", "in force", seconds, "s", **about)
    rows = {row.key: row for row in bartnik.ROWS}
    answer = rows["bartnik-5"].answer(results)
    assert answer.ratio == 2.0 and "Ferry 50 ms and 4.0 s; Ferry, restart 20,000 ms and 20.0 s;" in answer.words
    with pytest.raises(LookupError, match="not measured"):
        rows["bartnik-3"].answer(results)
