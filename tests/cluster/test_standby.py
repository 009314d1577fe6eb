"""A second driver that is ready: it goes on where the first one was killed, and another one is made ready."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.mark.turns
def test_standbys_take_over_and_those_that_die_are_replaced(tmp_path: Path) -> None:
    args = {"seed": 43, "group": 100}

    def log(running: runner.Running) -> str:
        assert running.directory is not None
        return (running.directory / "logs" / "driver.log").read_text()

    def begun(running: runner.Running) -> list[str]:
        return [r["text"] for r in running.records() if r["kind"] == "ready"]

    def disturb(running: runner.Running) -> None:
        running.await_epoch(1)
        # One is killed while it waits; the one after it takes over from the driver, and yet another one from that.
        for lives, role in ((1, "driver-1"), (2, "driver"), (3, "driver-1")):
            running.await_that(lambda n=lives: log(running).count("ready to take over") == n, "a standby", 60)
            running.signal(role, signal.SIGKILL)
            if lives > 1:
                running.await_that(lambda n=lives: len(begun(running)) == n, "the next driver", 20)

    # Two minutes: on a slow machine four drivers need that long to start, and the job must be there for all of them.
    sets = [*runner.sets_of(args), "driver.standby=true", "epoch.maxRows=5000", "epoch.interval=400ms"]
    result = runner.run("nbq5", tmp_path, 1_500_000, sets, meanwhile=disturb)
    assert result.code == 0 and not result.left, result.story()
    assert runner.difference("nbq5", 1_500_000, args, result.output, tmp_path) == ([], []), result.story()
    assert [r["text"].split(",")[0] for r in result.kinds("ready")] == [f"generation {n}" for n in (1, 2, 3)]
