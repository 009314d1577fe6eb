"""The papers' jobs under faults and handovers, against the oracle. Few runs with much in each: starting Spark is slow."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.turns, pytest.mark.timeout(600)]

DISORDER = {"group": 1000, "delay_prob": 0.05}


def right(result: runner.Result, query: str, events: int, args: dict[str, Any], base: Path) -> None:
    """The run ended well, left nothing behind, and wrote what the oracle says."""
    assert result.code == 0, result.story()
    assert not result.left, result.story()
    missing, extra = runner.difference(query, events, args, result.output, base)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"
    assert not [r for r in result.records if r["kind"] == "action" and "refused" in r["text"]]


def test_bids_in_sliding_windows_while_workers_come_go_and_die(tmp_path: Path) -> None:
    args = {"seed": 3, **DISORDER, "keys": "zipf", "domain": 20_000}
    at = [
        "epoch=2:ingest workers=4", "epoch=5:commit kill-instance=1.0", "epoch=7:begin kill-worker=0",
        "epoch=8:prepare move=5:1.0", "epoch=10:begin workers=2",
    ]  # fmt: skip
    sets = [*runner.sets_of(args), "epoch.maxRows=40000", "epoch.interval=700ms", "state.memory=16Mi"]
    result = runner.run("nbq5", tmp_path, 600_000, sets, at)
    right(result, "nbq5", 600_000, args, tmp_path)
    assert result.changes("switched") and result.changes("promoted") and result.changes("in-sync"), result.story()
    assert result.summary["rows"] == 600_000 * 46 // 50


def test_hottest_auctions_with_two_replicas_and_an_instance_lost_at_every_stage(tmp_path: Path) -> None:
    # So many rows fire that Spark's tasks read them: a task that is tried again must find them, or an error.
    args = {"seed": 5, "keys": "uniform", "domain": 2000, "group": 100}
    stages = ("ingest", "prepare", "commit", "emit", "sink")
    at = [f"epoch={1 + 2 * n}:{stage} kill-instance={n % 3}.0" for n, stage in enumerate(stages)]
    sets = [*runner.sets_of(args), "workers=3", "state.replicas=2", "epoch.maxRows=12000", "state.virtualNodes=16"]
    result = runner.run("q5", tmp_path, 132_000, sets, [*at, "epoch=8:commit kill-driver"])
    right(result, "q5", 132_000, args, tmp_path)
    assert len(result.kinds("ready")) == 2
    assert result.summary["rows"] == 132_000 * 46 // 50


def test_without_replicas_everything_comes_back_to_its_own_files(tmp_path: Path) -> None:
    args = {"seed": 11, "keys": "pareto", "domain": 50_000, **DISORDER}
    at = [
        "epoch=1:prepare kill-instance=0.0", "epoch=2:commit kill-worker=1", "epoch=4:sink kill-instance=1.0",
        "epoch=5:ingest kill-worker=0", "epoch=6:emit kill-driver", "epoch=7:begin drain=1",
    ]  # fmt: skip
    sets = [*runner.sets_of(args), "state.replicas=0", "epoch.maxRows=40000", "epoch.interval=300ms"]
    result = runner.run("nb7", tmp_path, 480_000, sets, at)
    right(result, "nb7", 480_000, args, tmp_path)


def test_joined_rows_move_while_drivers_die(tmp_path: Path) -> None:
    args = {"seed": 13, **DISORDER, "window_ms": 40_000, "proportions": "10,30,10"}
    at = [
        "epoch=2:begin workers=4", "epoch=4:emit kill-driver", "epoch=5:begin instances=2", "epoch=6:prepare kill-driver",
        "epoch=7:begin workers=2", "epoch=9:commit kill-instance=0.0", "epoch=10:begin instances=1", "epoch=11:sink kill-driver",
    ]  # fmt: skip
    sets = [*runner.sets_of(args), "epoch.maxRows=20000", "handover.strategy=batched", "epoch.interval=300ms"]
    result = runner.run("nbq8", tmp_path, 280_000, sets, at)
    right(result, "nbq8", 280_000, args, tmp_path)
    assert len(result.kinds("ready")) == 4
    led = {i for r in result.kinds("groups") for _, what, i in r["changes"] if what == "switched"}
    assert led & {"0.1", "1.1"}, "the second instances of the workers have led something"
    assert result.summary["rows"] == 280_000 * 40 // 50


def test_while_redis_is_away_epochs_go_on_and_group_changes_wait(tmp_path: Path) -> None:
    args = {"seed": 17, **DISORDER}
    away: list[float] = []

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(3)
        running.signal("redis", signal.SIGSTOP)
        away.append(time.time())
        time.sleep(30)
        away.append(time.time())
        for pid in running.pids("redis"):
            os.kill(pid, signal.SIGKILL)

    sets = [*runner.sets_of(args), "instancesPerWorker=2", "epoch.interval=1s", "epoch.maxRows=20000"]
    result = runner.run("ysb", tmp_path, 1_000_000, sets, ["epoch=6 workers=3"], meanwhile)
    right(result, "ysb", 1_000_000, args, tmp_path)
    assert result.summary["rows"] == 1_000_000, "records are counted as they are read, before the views are picked"
    during = [r for r in result.kinds("epoch") if away[0] + 1 < r["end"] < away[1]]
    assert len(during) >= 4, result.story()
    assert not [r for r in result.kinds("groups") if away[0] < r["t"] < away[1]], result.story()
    assert result.changes("switched"), result.story()
    assert not result.kinds("lost"), result.story()
