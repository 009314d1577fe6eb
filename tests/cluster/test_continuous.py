"""Continuous epochs: tasks of Spark that hold their place. What micro-batches show holds for them, too."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(400)]

CONTINUOUS = "epoch.mode=continuous"

PLANNED = """
import ferry
from ferry_workloads.jobs import q5

sources = q5.sources

def pipeline(streams, args):
    bids = streams["bid"].transform(lambda frame: frame.where("price > 0")).event_time("ts", delay="1m")
    counts = bids.key_by("auction").window(ferry.tumbling("10s")).aggregate("counts", num=ferry.count())
    return counts.sink(ferry.parquet("counts"))
"""


def right(result: runner.Result, query: str, events: int, args: dict[str, Any], tmp_path: Path) -> None:
    assert result.code == 0, result.errors[-3000:]
    assert {r["text"] for r in result.kinds("mode")} == {"continuous"}, result.story()
    assert runner.difference(query, events, args, result.output, tmp_path) == ([], []), result.story()


def kill_tasks(running: runner.Running) -> None:
    """All Python processes of Spark that run tasks."""
    daemons = [p for p in runner.processes_of(running.home) if "ferry.spark.daemon" in p.cmdline()]
    tasks = [task for daemon in daemons for task in daemon.children()]
    assert tasks, "there are none"
    for task in tasks:
        task.kill()
    psutil.wait_procs(tasks, 5)


def test_loops_workers_and_the_driver_are_killed_while_the_job_is_scaled(tmp_path: Path) -> None:
    args = {"seed": 29, "group": 100}

    def disturb(running: runner.Running) -> None:
        running.await_epoch(10)
        kill_tasks(running)
        running.await_epoch(18)
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: len(modes(running)) > 1, "another driver", 60)
        running.await_epoch(30)
        kill_tasks(running)

    sets = [*runner.sets_of(args), CONTINUOUS, "epoch.maxRows=10000", "epoch.interval=100ms"]
    at = ["epoch=3:ingest kill-worker=1", "epoch=8:begin workers=3", "epoch=14:commit kill-instance=0.0"]
    at += ["epoch=24:prepare kill-instance=1.0", "epoch=27:begin workers=2", "epoch=33:emit kill-instance=0.0"]
    result = runner.run("nbq5", tmp_path, 600_000, sets, at, disturb)
    right(result, "nbq5", 600_000, args, tmp_path)
    assert len(result.kinds("mode")) == 2 and result.changes("promoted"), result.story()


def modes(running: runner.Running) -> list[dict[str, Any]]:
    return [r for r in running.records() if r["kind"] == "mode"]


def test_spark_has_slots_for_its_own_jobs_beside_the_loops(tmp_path: Path) -> None:
    """What is behind an operator is Spark's, and an instance is lost while it runs."""
    args = {"seed": 37, "group": 100}
    at = ["epoch=4:emit kill-instance=1.0"]
    sets = [*runner.sets_of(args), CONTINUOUS, "epoch.maxRows=20000"]
    result = runner.run("q5", tmp_path, 200_000, sets, at)
    right(result, "q5", 200_000, args, tmp_path)


def test_it_begins_with_micro_batches_and_goes_on_continuously(tmp_path: Path) -> None:
    """Whichever way the driver before ran epochs, the next one finds its offsets."""
    args = {"seed": 31, "group": 100}

    def change(running: runner.Running, mode: str, epoch: int, drivers: int) -> None:
        running.await_epoch(epoch)
        assert running.directory is not None
        file = running.directory / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "epoch_mode": mode}))
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: len(modes(running)) == drivers, "another driver", 60)

    def there_and_back(running: runner.Running) -> None:
        change(running, "continuous", 4, 2)
        change(running, "micro-batch", 10, 3)

    sets = [*runner.sets_of(args), "epoch.mode=micro-batch", "epoch.maxRows=20000", "epoch.interval=200ms"]
    result = runner.run("nbq5", tmp_path, 400_000, sets, meanwhile=there_and_back)
    assert result.code == 0, result.errors[-3000:]
    assert [r["text"] for r in result.kinds("mode")] == ["micro-batch", "continuous", "micro-batch"], result.story()
    assert runner.difference("nbq5", 400_000, args, result.output, tmp_path) == ([], []), result.story()


@pytest.mark.parametrize("mode", ["continuous", "auto"])
def test_what_spark_has_to_plan_is_refused_or_said(mode: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(PLANNED)
    spec = {"pipeline": {"file": "pipeline.py", "args": {"seed": 1, "group": 100}}, "epoch": {"mode": mode}}
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "planned"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    result = runner.run(tmp_path / "job.yaml", tmp_path, 20_000)
    if mode == "continuous":
        assert result.code == 2, result.errors[-2000:]
        assert "epoch.mode: continuous is impossible: operator 'counts' has .transform before it" in result.errors
    else:
        assert result.code == 0, result.errors[-2000:]
        assert [r["text"] for r in result.kinds("mode")] == ["micro-batch: operator 'counts' has .transform before it"]
