"""Durable checkpoints: everything is lost at once, and the job begins again with any of them.

Workers, driver, Redis and all files of a run are gone, the output and the location of the checkpoints stay. Each of them is
restored in turn, into other numbers of workers, instances and copies, and the run goes on to its end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import s3
from tests.cluster import runner
from tests.cluster.test_workloads import right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(900)]

SIZES = (("workers=3", "state.replicas=1"), ("workers=2", "instancesPerWorker=2"), ("workers=1", "state.replicas=0"))
"""Of the runs that begin with a checkpoint."""

QUICK = ("epoch.maxRows=50000", "epoch.interval=0s")


def lost(query: str, base: Path, events: int, sets: list[str], checkpoints: int = 3) -> list[int]:
    """A run that loses everything once there are so many checkpoints; their numbers."""
    location = base / "store"
    every = [f"state.checkpoint.location={location}", "state.checkpoint.every=1s", "state.checkpoint.keep=3"]
    running = runner.start(runner.ROOT / "examples" / f"{query}.yaml", base, events, [*sets, *every])
    try:
        running.await_that(lambda: len(runner.manifests(location)) >= checkpoints, f"{checkpoints} checkpoints", 120)
        assert running.process.poll() is None, (base / "stderr").read_text()[-3000:]
    finally:
        runner.lose_everything(running)
    return runner.manifests(location)


@pytest.mark.parametrize(("query", "sizes"), [("nbq5", SIZES[:2]), ("nbq8", SIZES[2:]), ("q4", SIZES[1:2])])
def test_checkpoints_are_restored_after_all_is_lost(
    query: str, sizes: Sequence[tuple[str, ...]], tmp_path: Path
) -> None:
    """Each in turn, the newest first."""
    args: dict[str, Any] = {"seed": 71, "group": 100}
    events = 400_000
    sets = [*runner.sets_of(args), "epoch.maxRows=10000", "epoch.interval=300ms"]
    found = lost(query, tmp_path, events, sets)
    assert found
    for number, size in zip(reversed(found), sizes, strict=False):
        again = [
            f"state.checkpoint.location={tmp_path / 'store'}",
            f"restoreFrom={number}",
            "state.checkpoint.keep=100",
        ]
        result = runner.run(query, tmp_path, events, [*sets, *QUICK, *again, *size])
        right(result, query, events, args, tmp_path)
        shutil.rmtree(tmp_path / "home")


def test_a_job_is_suspended_resumed_and_another_begins_from_its_checkpoint(tmp_path: Path) -> None:
    args = {"seed": 83, "group": 100}
    events = 400_000
    sets = [*runner.sets_of(args), f"state.checkpoint.location={tmp_path / 'store'}", "state.checkpoint.every=1h"]
    job = runner.ROOT / "examples" / "nbq5.yaml"
    running = runner.start(job, tmp_path, events, [*sets, "epoch.maxRows=10000", "epoch.interval=300ms"])
    running.await_epoch(5)
    command = [sys.executable, "-m", "ferry_operator.cli"]
    environment = {**os.environ, "FERRY_HOME": str(running.home)}
    subprocess.run([*command, "suspend", "nbq5"], env=environment, check=True, timeout=120)
    assert runner.finish(running).code == 0
    ended = shutil.copytree(tmp_path / "out", tmp_path / "until-then")
    # The sink is away when it is to be put back: a job that waits for it.
    (tmp_path / "out").rename(tmp_path / "aside")
    (tmp_path / "out").write_text("in the way")
    waits = runner.start(job, tmp_path, events, [*sets, *QUICK, "restoreFrom=latest", "workers=3"])
    waits.await_that(lambda: any(r["kind"] == "degraded" for r in waits.records()), "no sink", 60)
    (tmp_path / "out").unlink()
    (tmp_path / "aside").rename(tmp_path / "out")
    resumed = runner.finish(waits)
    assert "cannot be rolled back to epoch" in str(resumed.kinds("degraded"))
    right(resumed, "nbq5", events, args, tmp_path)
    # A clone, in a place of its own, which goes on with the output as it was.
    shutil.rmtree(tmp_path / "out")
    ended.rename(tmp_path / "out")
    (manifest,) = (tmp_path / "store" / "nbq5" / "manifests").glob("0000000001-*")
    mine = [*runner.sets_of(args), f"state.checkpoint.location={tmp_path / 'other'}", f"restoreFrom={manifest}"]
    clone = runner.run(job, tmp_path, events, [*mine, *QUICK, "workers=1"])
    right(clone, "nbq5", events, args, tmp_path)


def test_a_job_whose_copies_are_all_lost_begins_again_by_itself(tmp_path: Path) -> None:
    """Both workers and their files are gone at once: the driver finds nobody who has the state, and goes on with its Spark."""
    args = {"seed": 73, "group": 100}
    location = tmp_path / "store"

    def lose_workers(running: runner.Running) -> None:
        running.await_that(lambda: len(runner.manifests(location)) >= 2, "two checkpoints", 120)
        assert running.directory is not None
        for worker in ("worker-0", "worker-1"):
            running.signal(worker, signal.SIGKILL)
        for folder in running.directory.glob("workers/*/*"):
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    sets = [*runner.sets_of(args), "epoch.maxRows=10000", "epoch.interval=300ms", "state.virtualNodes=16"]
    sets += [f"state.checkpoint.location={location}", "state.checkpoint.every=1s"]
    result = runner.run("nbq5", tmp_path, 600_000, sets, meanwhile=lose_workers)
    right(result, "nbq5", 600_000, args, tmp_path)
    assert len(result.kinds("restore")) == 1, result.story()
    assert result.directory is not None
    assert [r for r in result.kinds("warning") if "goes on from checkpoint" in r["text"]], result.story()
    assert "BeganAgain" in [r["text"] for r in result.kinds("mended")], "there is another checkpoint"
    said = (result.directory / "logs" / "driver.log").read_text()
    assert said.count("begins again with checkpoint") == 1 and said.count("incubator modules") == 1, (
        "one JVM, two drivers"
    )


@runner.needs_root
def test_whoever_has_the_only_copy_has_a_full_disk_for_good(tmp_path: Path) -> None:
    """The job is not ended by that, nor waits for it: it begins again with its checkpoint, elsewhere."""
    args = {"seed": 97, "keys": "uniform", "domain": 10_000_000}
    location, state = tmp_path / "store", tmp_path / "state"
    disk = state / "workers" / "1"

    def fill(running: runner.Running) -> None:
        running.await_that(lambda: len(runner.manifests(location)) >= 2, "two checkpoints", 120)
        runner.fill(disk)

    with runner.disk(disk, "1g"):
        sets = [*runner.sets_of(args), f"state.directory={state}", "state.replicas=0", "failure.returnDeadline=5s"]
        sets += ["epoch.maxRows=60000", "epoch.interval=1s", f"state.checkpoint.location={location}"]
        sets += ["state.checkpoint.every=1s"]
        result = runner.run("nbq5", tmp_path, 900_000, sets, meanwhile=fill)
        right(result, "nbq5", 900_000, args, tmp_path)
    assert len(result.kinds("restore")) == 1, result.story()
    assert [r for r in result.kinds("warning") if "goes on from checkpoint" in r["text"]], result.story()


def test_an_s3_that_is_away_delays_checkpoints_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed for thirty epochs; then everything but it is lost, and the job begins again from there."""
    args = {"seed": 79, "group": 100}
    events = 900_000
    server = s3.S3Server(tmp_path / "s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    sets = [*runner.sets_of(args), f"state.checkpoint.location={server.url}", "state.checkpoint.every=1s"]
    slowly = [*sets, "epoch.maxRows=5000", "epoch.interval=400ms", "state.checkpoint.keep=2"]
    store = server.objects / "jobs"

    def delayed(running: runner.Running) -> bool:
        return any(r["kind"] == "warning" and str(server.port) in r["text"] for r in running.records())

    running = runner.start(runner.ROOT / "examples" / "nbq5.yaml", tmp_path, events, slowly)
    try:
        running.await_that(lambda: len(runner.manifests(store)) >= 2, "two checkpoints", 120)
        before, epoch = max(runner.manifests(store)), max(r["epoch"] for r in running.records() if r["kind"] == "epoch")
        server.kill()
        running.await_that(lambda: delayed(running), "word of the store", 90)
        running.await_epoch(epoch + 30)
        server.start()
        running.await_that(lambda: max(runner.manifests(store)) > before, "another checkpoint", 90)
        assert running.process.poll() is None, (tmp_path / "stderr").read_text()[-3000:]
    finally:
        runner.lose_everything(running)
    result = runner.run("nbq5", tmp_path, events, [*sets, "restoreFrom=latest", "workers=3", "epoch.maxRows=100000"])
    right(result, "nbq5", events, args, tmp_path)
    server.kill()
