"""Virtual nodes that go to another leader at the boundary of a window, of real jobs: no state is sent, and the rows are right.

UniMiCo, section 4 (figures 4 to 6): the output of Q1, Q2 and Q3 is that without a migration.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import runner
from tests.cluster.test_workloads import DISORDER, right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

SLIDING = {"window_ms": 60_000, "slide_ms": 20_000}
UNIMICO = ("uq1", "uq2", "uq3")


def sent_bytes(directory: Path | None, since: float = 0.0) -> int:
    """Bytes of snapshots that instances have sent, each in its last life; as counted after `since`, a time of files."""
    found = list(directory.glob("**/metrics.json")) if directory is not None else []
    assert len(found) >= 2, "of instances that have counted"
    deadline = time.monotonic() + 60
    while any(path.stat().st_mtime <= since for path in found):
        assert time.monotonic() < deadline, "instances count"
        time.sleep(0.1)
    return sum(int(json.loads(path.read_text())["snapshot_sent_bytes"]) for path in found)


def moments(result: runner.Result, what: str) -> dict[int, list[float]]:
    """When this happened to which virtual nodes."""
    found: dict[int, list[float]] = {}
    for record in result.kinds("groups"):
        for vnode, kind, _ in record["changes"]:
            if kind == what:
                found.setdefault(vnode, []).append(record["t"])
    return found


def watermark_at(result: runner.Result, moment: float) -> int:
    """Of the last epoch that had ended by then."""
    return max(int(r["watermark"]) for r in result.kinds("epoch") if r["end"] <= moment)


def test_windows_are_handed_over_without_state_and_the_origin_ends_its_own(tmp_path: Path) -> None:
    args: dict[str, Any] = {"seed": 31, **DISORDER, "keys": "zipf", "domain": 5_000, **SLIDING}
    begins: dict[int, int] = {}
    sent: list[int] = []

    def meanwhile(running: runner.Running) -> None:
        def told() -> bool:
            status = runner.ask(running, "GET", "/job")["status"] if running.directory is not None else None
            begins.update(
                {one["vnode"]: one["begins"] for one in (status or {"moves": {}})["moves"].get("boundaries", ())}
            )
            return len(begins) == 3

        running.await_that(told, "three boundaries", 120)
        running.await_epoch(30)
        sent.append(sent_bytes(running.directory))

    at = [f"epoch=6:begin move={vnode}:1.0@window" for vnode in (0, 2, 4)] + ["epoch=33:begin move=6:1.0"]
    sets = [
        *runner.sets_of(args), "workers=2", "state.replicas=0", "state.virtualNodes=8", "epoch.maxRows=10000",
        "epoch.interval=500ms",
    ]  # fmt: skip
    result = runner.run("nbq5", tmp_path, 500_000, sets, at, meanwhile)
    right(result, "nbq5", 500_000, args, tmp_path)
    joined, switched = moments(result, "joined"), moments(result, "switched")
    assert {0, 2, 4, 6} <= joined.keys() & switched.keys(), result.story()
    for vnode, starts in begins.items():
        last_end = starts - SLIDING["slide_ms"] + SLIDING["window_ms"]
        assert watermark_at(result, joined[vnode][0]) < starts, "windows of the target are yet to come"
        assert watermark_at(result, switched[vnode][0]) >= last_end, "the origin has ended its last one"
    assert sent == [0], "while three virtual nodes were handed over"
    assert sent_bytes(result.directory) > 0, "what was copied counts"


def test_the_planner_waits_for_windows_where_a_copy_would_take_longer(tmp_path: Path) -> None:
    args: dict[str, Any] = {
        "seed": 47,
        **DISORDER,
        "rate": 40_000,
        "keys": "uniform",
        "domain": 400_000,
        "window_ms": 20_000,
        "slide_ms": 2_000,
    }
    sent: list[int] = []

    def meanwhile(running: runner.Running) -> None:
        def back_at_rest(leaders: set[str]) -> bool:
            status = runner.ask(running, "GET", "/job")["status"] if running.directory is not None else None
            return bool(status and status["settled"]) and {g[0] for g, _ in status["groups"]} == leaders

        running.await_epoch(60)
        runner.ask(running, "PATCH", "/spec", {"handover": {"bandwidth": "256Ki"}})
        running.await_that(lambda: back_at_rest({"1.0"}), "all that was copied", 120)
        sent.append(sent_bytes(running.directory, time.time()))
        # On a slow machine event time passes slowly, too: a copy has to take longer than any wait for windows.
        runner.ask(running, "PATCH", "/spec", {"handover": {"bandwidth": "64Ki", "atWindow": "auto"}})
        runner.ask(running, "POST", "/move", {"vnodes": [0, 1, 2, 3], "instance": "0.0"})
        running.await_that(lambda: back_at_rest({"0.0", "1.0"}), "what has waited for windows", 120)
        sent.append(sent_bytes(running.directory, time.time()))

    at = [f"epoch=50:begin move={vnode}:1.0" for vnode in (0, 2, 4, 6)]
    sets = [
        *runner.sets_of(args), "workers=2", "state.replicas=0", "state.virtualNodes=8", "epoch.maxRows=20000",
        "epoch.interval=100ms", "handover.bandwidth=64Ki", "handover.atWindow=never",
    ]  # fmt: skip
    result = runner.run("nbq5", tmp_path, 5_000_000, sets, at, meanwhile)
    right(result, "nbq5", 5_000_000, args, tmp_path)
    assert sent[0] > 2**20, "faster than it began, and so what a byte takes is known"
    assert sent[1] == sent[0], "and the move after it copied nothing"
    switched = moments(result, "switched")
    assert len(switched[0]) == len(switched[2]) == 2 and len(switched[1]) == 1, result.story()


def test_it_survives_kills_of_the_origin_the_target_and_the_driver(tmp_path: Path) -> None:
    args: dict[str, Any] = {"seed": 37, **DISORDER, "keys": "zipf", "domain": 5_000, **SLIDING}
    moves = [f"epoch=4:begin move={vnode}:2.0@window" for vnode in (0, 3, 6)]
    kills = [
        "epoch=6:prepare kill-worker=2", "epoch=12:emit kill-driver", "epoch=17:commit kill-instance=0.0",
        "epoch=34:prepare kill-worker=2", "epoch=44:commit kill-worker=0",
    ]  # fmt: skip
    sets = [
        *runner.sets_of(args), "workers=3", "state.virtualNodes=8", "epoch.maxRows=10000", "epoch.interval=500ms"
    ]  # fmt: skip
    result = runner.run("nbq5", tmp_path, 600_000, sets, [*moves, *kills])
    right(result, "nbq5", 600_000, args, tmp_path)
    first = min(moments(result, "in-sync").get(0, [0]))
    killed = [r["t"] for r in result.kinds("action") if "kill" in r["text"]]
    assert killed[2] < first < killed[3], f"three died before it was handed over: {result.story()}"
    assert len(moments(result, "joined")[0]) >= 4, "it began again after each"
    assert {0, 6} <= moments(result, "switched").keys(), result.story()


def test_joined_windows_are_handed_over_while_workers_die(tmp_path: Path) -> None:
    args: dict[str, Any] = {"seed": 41, **DISORDER, "window_ms": 40_000, "proportions": "10,30,10"}
    at = [f"epoch=3:begin move={vnode}:2.0@window" for vnode in (0, 1, 3)] + ["epoch=5:commit kill-worker=0"]
    sets = [
        *runner.sets_of(args), "workers=3", "state.virtualNodes=8", "epoch.maxRows=10000", "epoch.interval=500ms"
    ]  # fmt: skip
    result = runner.run("nbq8", tmp_path, 400_000, sets, at)
    right(result, "nbq8", 400_000, args, tmp_path)
    assert {0, 1, 3} <= moments(result, "switched").keys() | moments(result, "promoted").keys(), result.story()


def test_the_queries_of_unimico_go_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    args = {"seed": 43}
    spec = {
        "pipeline": {
            "file": str(Path(__file__).parent / "pipelines" / "side_by_side.py"),
            "args": {"queries": json.dumps(dict.fromkeys(UNIMICO, args))},
        },
        "workers": 2,
        "state": {"virtualNodes": 4, "replicas": 0},
        "epoch": {"maxRows": 10 * len(UNIMICO), "interval": "300ms"},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "unimico"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    at = [f"epoch=10:begin move={vnode}:{1 - vnode % 2}.0@window" for vnode in range(4)]
    result = runner.run(tmp_path / "job.yaml", tmp_path, 600, at=at)
    assert result.code == 0 and not result.left, result.story()
    assert sorted(moments(result, "switched")) == [0, 1, 2, 3], result.story()
    assert sent_bytes(result.directory) == 0
    for query in UNIMICO:
        missing, extra = runner.difference(query, 600, args, result.output, tmp_path / query)
        assert not missing and not extra, f"{query}: missing {missing[:3]}, unexpected {extra[:3]}"


def test_what_is_kept_for_ever_cannot_be_handed_over_so(tmp_path: Path) -> None:
    sets = ["workers=2", "state.virtualNodes=4", "epoch.maxRows=5000"]
    result = runner.run("count_updates", tmp_path, 20_000, sets, ["epoch=2:begin move=0:1.0@window"])
    assert result.code == 0, result.story()
    refused = [r["text"] for r in result.kinds("action") if "refused" in r["text"]]
    assert refused and "keeps state that no window ends" in refused[0], result.story()
