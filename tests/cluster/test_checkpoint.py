"""Spark's checkpoint is lost, in part or as a whole, between two lives of the driver: the state knows where it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cluster import queries, runner
from tests.cluster.test_workloads import right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

HERE = Path(__file__).parent


def kill(running: runner.Running, then: Callable[[Path], None]) -> None:
    """End the driver with its JVM, and do something to the checkpoint before the next one looks."""
    assert running.directory is not None
    pids = running.pids("driver")
    running.signal("driver", signal.SIGKILL)
    running.await_that(lambda: not set(pids) & set(running.pids("driver")), "end of the driver", 10)
    then(running.directory / "checkpoint")


def lose_newest(checkpoint: Path) -> None:
    max((p for p in (checkpoint / "offsets").iterdir() if p.name.isdigit()), key=lambda p: int(p.name)).unlink()


def test_the_driver_is_killed_five_times_and_the_newest_offsets_are_lost_each_time(tmp_path: Path) -> None:
    args = {"seed": 53, "group": 100}

    def meanwhile(running: runner.Running) -> None:
        for _ in range(5):
            running.await_epoch(
                max((r["epoch"] for r in running.records() if r["kind"] == "epoch"), default=0) + 2, 300
            )
            kill(running, lose_newest)

    sets = [*runner.sets_of(args), "workers=4", "state.replicas=1", "epoch.maxRows=10000", "epoch.interval=300ms"]
    result = runner.run("nbq5", tmp_path, 300_000, sets, meanwhile=meanwhile)
    right(result, "nbq5", 300_000, args, tmp_path)
    assert len(result.kinds("ready")) == 6, result.story()


def test_the_whole_checkpoint_is_lost_while_the_job_runs_between_two_runs_and_after_its_end(tmp_path: Path) -> None:
    args = {"seed": 59, "window_ms": 30_000, "proportions": "10,30,10"}
    sets = [
        *runner.sets_of(args),
        f"state.directory={tmp_path / 'state'}",
        "epoch.maxRows=20000",
        "epoch.interval=300ms",
    ]

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(2, 300)
        kill(running, shutil.rmtree)
        running.await_epoch(5, 300)
        running.process.send_signal(signal.SIGINT)

    first = runner.run("nbq8", tmp_path, 240_000, sets, meanwhile=meanwhile)
    assert first.summary["outcome"] == "stopped" and not first.left, first.story()
    for _ in range(2):
        shutil.rmtree(tmp_path / "state" / "checkpoint")
        later = runner.run("nbq8", tmp_path, 240_000, sets)
        right(later, "nbq8", 240_000, args, tmp_path)
    assert len(later.kinds("finished")) == 2


def test_without_the_log_of_a_source_of_sparks_own_the_job_stops_and_says_what_to_do(tmp_path: Path) -> None:
    bids = tmp_path / "bids"
    bids.mkdir()
    queries.generate_input("nexmark", 20_000, {"seed": 11, "rate": 500}, tmp_path / "oracle")
    table = pq.read_table(tmp_path / "oracle" / "bid.parquet")
    for i in range(4):
        pq.write_table(table.slice(i * 4000, 4000), bids / f"{i}.parquet")
        os.utime(bids / f"{i}.parquet", (1_700_000_000 + i, 1_700_000_000 + i))
    job = tmp_path / "job.yaml"
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "frames"},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / "frames.py"), "args": {"bids": str(bids)}},
            "workers": 2, "state": {"virtualNodes": 16},
        },
    }  # fmt: skip
    job.write_text(json.dumps(spec))

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(1, 300)
        kill(running, shutil.rmtree)

    result = runner.run(job, tmp_path, meanwhile=meanwhile)
    assert result.code == 1 and not result.left, result.story()
    reason = result.summary["reason"]
    assert "Spark's own source" in reason and "Bring back the checkpoint" in reason, reason
