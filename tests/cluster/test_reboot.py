"""The machine is started anew between two runs: a job that was stopped goes on where it was, one that was killed does not."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ferry.store.commit_record import CommitRecord
from tests.cluster import runner
from tests.cluster.test_workloads import right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

SETS = ["workers=2", "instancesPerWorker=2", "state.replicas=1", "state.virtualNodes=16", "epoch.interval=300ms"]


def interrupted(
    query: str, base: Path, events: int, sets: list[str], end: Callable[[runner.Running], None]
) -> runner.Result:
    """A run that ends after some epochs, and a reboot: what instances have written is of another boot of the machine."""

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(4, 300)
        end(running)

    result = runner.run(query, base, events, sets, meanwhile=meanwhile)
    found = sorted((base / "state" / "workers").glob("*/*/commit-record"))
    assert len(found) == 4 and not result.left, result.story()
    for path in found:
        record = CommitRecord(path)
        document = record.read()
        assert document is not None
        record.write({**document, "boot": "another " + document["boot"].partition(" ")[2]})
    return result


def test_a_job_that_was_stopped_goes_on_after_a_reboot(tmp_path: Path) -> None:
    query, args = "nbq8", {"seed": 61, "window_ms": 30_000, "proportions": "10,30,10"}
    sets = [*runner.sets_of(args), *SETS, f"state.directory={tmp_path / 'state'}", "epoch.maxRows=20000"]
    first = interrupted(query, tmp_path, 240_000, sets, runner.stop)
    assert first.summary["outcome"] == "stopped", first.story()
    assert len(list((tmp_path / "state" / "workers").glob("*/*/sealed"))) == 4
    result = runner.run(query, tmp_path, 240_000, sets)
    right(result, query, 240_000, args, tmp_path)
    assert "not used" not in "".join(p.read_text() for p in (tmp_path / "state" / "logs").glob("worker-*.log"))


def test_a_job_that_was_killed_says_after_a_reboot_that_its_state_is_gone(tmp_path: Path) -> None:
    args = {"seed": 67, "group": 100}
    sets = [*runner.sets_of(args), *SETS, f"state.directory={tmp_path / 'state'}", "epoch.maxRows=20000"]

    def kill(running: runner.Running) -> None:
        running.process.kill()

    first = interrupted("nbq5", tmp_path, 240_000, sets, kill)
    assert first.code == -signal.SIGKILL
    result = runner.run("nbq5", tmp_path, 240_000, sets)
    assert result.code == 1 and not result.left, result.story()
    assert "after a reboot files count only if the job was stopped before" in result.summary["reason"]
    assert "not used" in (tmp_path / "state" / "logs" / "worker-0.log").read_text()
