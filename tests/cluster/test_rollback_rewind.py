"""A rollback to the state before a deploy, as if the program had never been deployed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


def test_after_a_rollback_with_rewind_the_output_is_as_if_nothing_had_been_deployed(tmp_path: Path) -> None:
    """Rows of the program go, its records are read again, and it is not deployed again; a later deploy works."""
    first, other = deploys.job(tmp_path), deploys.program(tmp_path, "other", 2, deploys.WINDOWS)
    again = deploys.program(tmp_path, "again", 3)
    stored, since = [f"state.checkpoint.location={tmp_path / 'store'}", "state.checkpoint.every=1s"], list[int]()
    stored.append("state.checkpoint.keep=100")  # 30 epochs may take longer than a few checkpoints.

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        code, text = deploys.ferry(running, "rollback", "numbers", "--rewind")
        assert code != 0 and "no checkpoint of this run is older than epoch 0" in text, text
        running.await_that(lambda: bool(runner.manifests(tmp_path / "store")), "checkpoint", 60)
        deployed = deploys.deploy(running, other)
        running.await_epoch(deployed + 30)
        code, text = deploys.ferry(running, "rollback", "numbers", "--rewind")
        assert code == 0 and "program 1 is in force again" in text, text
        running.await_epoch(deployed + 40)
        since.append(deploys.deploy(running, again))
        running.await_epoch(since[0] + 10)
        runner.stop(running)

    result = runner.run(first, tmp_path, sets=stored, meanwhile=changes)
    assert result.code == 0, result.story()
    assert deploys.wrong(result.output, {0: 1, since[0]: 3}) == [], result.story()
    (restore,) = result.kinds("restore")
    assert "program 2 was rolled back with --rewind" in restore["text"]
