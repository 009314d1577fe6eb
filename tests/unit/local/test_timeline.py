"""Numbers of a timeline, and its picture."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from ferry.contract import limits
from ferry.contract import timeline as records
from ferry.contract.latency import LatencyHistogram, bucket_of
from ferry.contract.plans import Boundary
from ferry.contract.status import Status
from ferry_operator.local.timeline import plot, show, timeline
from tests.unit.control.test_decide import ALIVE, GROUPS
from tests.unit.statuses import status_of

T = 1_800_000_000.0


def epoch(number: int, begin: float, end: float, **more: Any) -> timeline.Record:
    values = {"rows": 100, "fired": 2, "late": 1, "malformed": 0, "stages": {}, "watermark": 0}
    return {
        "kind": "epoch",
        "t": T + end,
        "epoch": number,
        "generation": 1,
        "begin": T + begin,
        "end": T + end,
        **values,
        **more,
    }


def groups(t: float, *changes: tuple[int, str, str]) -> timeline.Record:
    return {"kind": "groups", "t": T + t, "changes": [list(c) for c in changes]}


def action(t: float, text: str) -> timeline.Record:
    return {"kind": "action", "t": T + t, "text": text}


STEADY = [epoch(n, n, n + 0.9) for n in range(10)]


def test_totals() -> None:
    found = timeline.summarize(STEADY)
    assert (found.epochs, found.rows, found.late, found.malformed, found.fired) == (10, 1000, 10, 0, 20)
    assert found.seconds == pytest.approx(9.9)
    assert found.rows_per_second == pytest.approx(1000 / 9.9)
    assert found.epoch_median == pytest.approx(0.9)
    assert found.gap_median == pytest.approx(1.0)
    assert found.moves == () and found.recoveries == ()
    json.dumps(found.to_wire())


def test_of_a_few_epochs_the_first_is_told_apart() -> None:
    compiled = [epoch(0, 0, 9), epoch(1, 9, 9.1), epoch(2, 9.1, 9.2)]
    assert show.epoch_text(timeline.summarize(compiled)) == "9.00 s the first, which loads the kernels; median 100 ms"
    assert show.epoch_text(timeline.summarize(compiled[:1])) == "9.00 s the first, which loads the kernels"
    assert show.epoch_text(timeline.summarize(STEADY)) == "median 900 ms, p90 900 ms, p99 900 ms, longest 900 ms"


def latency(t: float, counts: dict[float, int]) -> timeline.Record:
    made = LatencyHistogram()
    for seconds, count in counts.items():
        made.add({bucket_of(seconds): count}, 0.0)
    found = made.quantiles()
    assert found is not None
    return {"t": t, "kind": "latency", **found.to_wire(), "counts": sorted(made.counts.items())}


def test_quantiles_of_a_run_are_of_all_its_records_and_not_of_its_lines() -> None:
    assert timeline.summarize(STEADY).latency is None
    found = timeline.summarize([*STEADY, latency(1, {0.01: 980}), latency(2, {5.0: 20})]).latency
    assert found is not None and found.records == 1000
    assert [round(value, 2) for value in (found.p50, found.p90)] == [0.01, 0.01]
    assert all(abs(value - 5.0) < 0.1 for value in (found.p99, found.p999, found.max))
    assert show.latency_text(found).startswith("p50 10 ms, p90 10 ms, p99 5.03 s, p999"), show.latency_text(found)


def test_of_nothing() -> None:
    found = timeline.summarize([])
    assert (found.epochs, found.rows, found.rows_per_second, found.epoch_max) == (0, 0, 0.0, 0.0)


def test_an_epoch_that_was_run_again_counts_once() -> None:
    found = timeline.summarize([epoch(0, 0, 1), epoch(1, 1, 2, rows=7), epoch(1, 5, 6, rows=100, generation=2)])
    assert (found.epochs, found.rows) == (2, 200)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.9, 9), (0.91, 10), (0.99, 10), (1.0, 10)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert timeline.percentile(list(range(10, 0, -1)), share) == value


def test_a_move_runs_from_the_first_that_joined_to_the_last_that_was_cleaned() -> None:
    records = [
        *STEADY,
        groups(2.95, (0, "joined", "2.0"), (1, "joined", "2.0")),
        groups(4.95, (0, "in-sync", "2.0"), (1, "in-sync", "2.0"), (0, "switched", "2.0"), (1, "switched", "2.0")),
        groups(5.95, (0, "cleaned", "0.0"), (1, "cleaned", "1.0")),
    ]
    (move,) = timeline.moves_of(records)
    assert (move.begin, move.end) == (T + 2.95, T + 5.95)
    assert (move.vnodes, move.joined, move.switchovers, move.aborted) == ([0, 1], 2, 2, 0)


def test_the_pause_of_a_move_is_the_longest_gap_that_touches_it() -> None:
    ends = [1.0, 2.0, 3.0, 4.5, 5.5, 9.5, 10.5]
    records = [epoch(n, begin, end) for n, (begin, end) in enumerate(pairwise([0.5, *ends]))]
    records += [groups(3.2, (0, "joined", "1.0")), groups(4.6, (0, "in-sync", "1.0"), (0, "switched", "1.0"))]
    (move,) = timeline.moves_of(records)
    assert move.pause == pytest.approx(1.5), "the gap of 4 s came after it"


@pytest.mark.parametrize(("begins", "pause"), [(29.5, 0.8), (10.4, 0.8), (10.0, 0.5)])
def test_a_pause_is_no_time_without_records(begins: float, pause: float) -> None:
    """The first epoch ends at 1 s, the move is from 10 to 10.3 s, and the next epoch takes half a second."""
    records = [epoch(0, 0.0, 1.0), epoch(1, begins, begins + 0.5)]
    records += [groups(10.0, (0, "joined", "1.0")), groups(10.3, (0, "in-sync", "1.0"), (0, "switched", "1.0"))]
    (move,) = timeline.moves_of(records)
    assert move.pause == pytest.approx(pause)


def test_batches_are_one_move_and_later_moves_another() -> None:
    records = [
        groups(1, (0, "joined", "1.0")),
        groups(2, (0, "in-sync", "1.0"), (0, "switched", "1.0"), (1, "joined", "1.0")),
        groups(3, (1, "in-sync", "1.0"), (1, "switched", "1.0"), (0, "cleaned", "0.0")),
        groups(50, (0, "joined", "2.0")),
        groups(51, (0, "aborted", "2.0")),
        groups(90, (0, "switched", "0.0")),
    ]
    first, second, third = timeline.moves_of(records)
    assert (first.begin, first.end, first.switchovers, first.vnodes) == (T + 1, T + 3, 2, [0, 1])
    assert (second.begin, second.end, second.aborted) == (T + 50, T + 51, 1)
    assert (third.begin, third.switchovers) == (T + 90, 1), "a switchover to a replica needs no warming"


def test_a_lost_learner_does_not_keep_its_move_open() -> None:
    records = [groups(1, (0, "joined", "1.0")), groups(2, (0, "removed", "1.0")), groups(60, (0, "joined", "2.0"))]
    assert [m.begin - T for m in timeline.moves_of(records)] == [1, 60]


def test_a_promotion_is_no_move() -> None:
    assert timeline.moves_of([groups(1, (0, "removed", "0.0"), (0, "promoted", "1.0"))]) == []


def test_a_recovery_ends_with_the_next_finished_epoch() -> None:
    records = [
        *STEADY,
        action(3.5, "kill-worker=1"),
        action(3.6, "restart worker 1"),
        action(5.0, "workers=4"),
        action(6.0, "kill-worker=9 refused: it is not there"),
        action(30.0, "kill-driver"),
    ]
    first, second = timeline.recoveries_of(records)
    assert first.text == "kill-worker=1" and first.seconds == pytest.approx(0.4)
    assert second.seconds is None


def test_a_clock_that_is_set_makes_no_recovery_longer() -> None:
    (before, after), kill = STEADY[:2], action(1, "kill-driver")
    records = [{**before, "up": 9.0}, {**kill, "up": 10.0}, {**after, "up": 12.5, "t": T + 900, "end": T + 900}]
    assert [one.seconds for one in timeline.recoveries_of(records)] == [2.5]
    records[2] |= {"t": T - 900, "end": T - 900}
    assert [one.seconds for one in timeline.recoveries_of(records)] == [2.5]


def test_a_tail_reads_only_whole_new_lines(tmp_path: Path) -> None:
    file = tmp_path / "timeline.jsonl"
    tail = timeline.TimelineTail(file)
    assert tail.read() == []
    file.write_text('{"kind":"action","t":1}\nnonsense\n{"kind":"ep')
    assert tail.read() == [{"kind": "action", "t": 1}]
    with file.open("a") as out:
        out.write('och","t":2}\n')
    assert tail.read() == [{"kind": "epoch", "t": 2}]
    assert tail.read() == []
    assert timeline.TimelineTail(file, from_end=True).read() == []


def test_a_timeline_has_a_bound_and_its_readers_miss_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMELINE_BYTES_MAX", 1000)
    file = tmp_path / records.TIMELINE
    follows, late = timeline.TimelineTail(file), timeline.TimelineTail(file)
    seen: list[int] = []
    for n in range(200):
        records.append_record(tmp_path, {"kind": "epoch", "epoch": n})
        if n % 7 == 0:
            seen += [r["epoch"] for r in follows.read()]
        if n == 99:
            ends = timeline.TimelineTail(file, from_end=True)
    assert [*seen, *(r["epoch"] for r in follows.read())] == list(range(200))
    assert {p.name for p in tmp_path.iterdir()} <= {records.TIMELINE, records.TIMELINE_BEFORE}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 2200
    kept = [r["epoch"] for r in late.read()]
    assert kept == [r["epoch"] for r in timeline.read(file)] == list(range(kept[0], 200))
    assert [r["epoch"] for r in ends.read()] == kept, "two parts later it reads what is there"


def test_two_processes_end_a_part_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMELINE_BYTES_MAX", 2000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: records.append_record(tmp_path, {"kind": "epoch", "epoch": n}), range(110)))
    assert {r["epoch"] for r in timeline.read(tmp_path / records.TIMELINE)} == set(range(110))


def test_a_part_that_another_process_has_ended_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TIMELINE_BYTES_MAX", 100)
    file = tmp_path / records.TIMELINE
    numbers = iter(range(100, 200))

    def others_first(descriptor: int, operation: int) -> None:
        file.rename(tmp_path / records.TIMELINE_BEFORE)
        file.write_text(json.dumps({"kind": "epoch", "epoch": next(numbers)}) + "\n")

    monkeypatch.setattr(records.fcntl, "flock", others_first)
    written = 0
    while not (tmp_path / records.TIMELINE_BEFORE).exists():
        records.append_record(tmp_path, {"kind": "epoch", "epoch": written})
        written += 1
    assert [r["epoch"] for r in timeline.read(file)] == [*range(written), 100]


@pytest.mark.parametrize(("name", "magic"), [("a.png", b"\x89PNG"), ("b.svg", b"<?xml"), ("without", b"\x89PNG")])
def test_a_picture_is_drawn(tmp_path: Path, name: str, magic: bytes) -> None:
    moves = [groups(2.5, (0, "joined", "1.0")), groups(3.5, (0, "in-sync", "1.0"), (0, "switched", "1.0"))]
    plot.draw([*STEADY, *moves, action(5.1, "kill-worker=1"), action(6, "workers=4")], tmp_path / name, "counts")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_a_picture_has_latencies_when_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    quantiles, dressed = plot._quantiles, plot._by_powers

    def noted(axis: Any, latencies: Any, begin: float) -> None:
        quantiles(axis, latencies, begin)
        drawn.append(len(axis.lines))

    def bounded(axis: Any, latencies: Any) -> None:
        dressed(axis, latencies)
        low, high = axis.get_ylim()
        assert axis.get_yscale() == "log" and 1e-5 < low < 1e-4 and 1 < high < 10, "the curves fill the panel"

    monkeypatch.setattr(plot, "_quantiles", noted)
    monkeypatch.setattr(plot, "_by_powers", bounded)
    plot.draw(STEADY, tmp_path / "none.png", "counts")
    plot.draw([*STEADY, latency(2, {0.0: 1}), latency(3, {1.0: 5})], tmp_path / "some.png", "counts")
    assert drawn == [4]


def test_the_panel_of_epoch_times_shows_the_median_of_the_title() -> None:
    axes = Figure().subplots(3, 1)
    plot._panels(axes, timeline.epochs_of(STEADY), T)
    (panel,) = (axis for axis in axes if axis.get_ylabel() == "epoch time (s)")
    assert "median epoch 0.9 s" in plot._title("counts", timeline.summarize(STEADY))
    assert panel.patches[0].get_data().values == pytest.approx([0.9] * 10)


def test_a_picture_of_one_epoch_is_drawn(tmp_path: Path) -> None:
    plot.draw([epoch(0, 0, 0)], tmp_path / "one.png", "counts")
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_what_waits_for_windows_is_told_in_a_line() -> None:
    noon = 1_784_030_460_000
    waits = [Boundary(5, "0.0", "2.1", noon), Boundary(7, "0.0", "2.1", noon)]
    told = status_of(GROUPS, ALIVE, boundaries=(*waits, Boundary(1, "0.0", "1.0", None)))
    assert show.boundary_texts(Status.from_wire(json.loads(json.dumps(told.to_wire())))) == [
        "5 7: 0.0 until 2026-07-14 12:01:00.000, 2.1 from then",
        "1: 0.0 until its windows end, 1.0 from then",
    ]
    assert show.boundary_texts(status_of(GROUPS, ALIVE)) == []


def test_a_summary_has_not_a_line_for_each_of_many_moves() -> None:
    """As a plan has that moves one virtual node a step."""
    many = tuple(timeline.Move(float(n), n + 0.5, [n], pause=n / 100) for n in range(64))
    console = Console(file=io.StringIO(), width=120)
    console.print(show.summary_table(replace(timeline.summarize([]), moves=many), "job"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("1 vnodes") == show.MOVES_SHOWN and "and 54 more, the longest pause 630 ms; --json" in text


def test_a_warning_is_shown_when_it_comes_and_at_the_end() -> None:
    warning = {"t": 1.0, "kind": "warning", "text": "no record was read: source 'clicks' (in) holds no file"}
    assert show.event_text(warning) == f"warning: {warning['text']}"
    summary = timeline.summarize([warning])
    assert summary.warnings == (warning["text"],)
    console = Console(width=200, file=io.StringIO())
    console.print(show.summary_table(summary, "job"))
    assert "no record was read" in console.file.getvalue()  # type: ignore[attr-defined]


def test_programs_are_in_the_timeline_and_in_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(t: float, kind: str, text: str) -> timeline.Record:
        return {"t": t, "kind": kind, "text": text}

    found = [
        note(T + 1, "deployed", "program 2 is in force from epoch 20 on"),
        note(T + 2, "deploy-refused", "program 3: no pipeline"),
        note(T + 3, "shadow", "program 4: 0 of 2 rows of 2 epochs differ; program 5 goes on alone"),
    ]
    assert [show.event_text(record) for record in found] == [
        "deployed: program 2 is in force from epoch 20 on",
        "deploy refused: program 3: no pipeline",
        "shadow: program 4: 0 of 2 rows of 2 epochs differ; program 5 goes on alone",
    ]
    labels = list[str]()
    monkeypatch.setattr(plot, "_labels", lambda axis, marks, last: labels.extend(text for _, text, _ in marks))
    plot.draw([*STEADY, *found], tmp_path / "a.png", "job")
    assert labels == ["program 2"]
