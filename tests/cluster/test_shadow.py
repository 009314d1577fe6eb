"""A program beside another one: compared with it as a shadow, or kept up to date for a rollback that changes nothing."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from ferry_operator.local.deploys import LocalDeploys
from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


def test_a_shadow_goes_on_alone_if_no_row_differs_and_else_leaves_no_trace(tmp_path: Path) -> None:
    """While a worker and the driver die, and virtual nodes move."""
    same, other = (deploys.program(tmp_path, name, step, deploys.WINDOWS) for name, step in (("same", 1), ("other", 2)))
    told = list[tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        told.append(deploys.ferry(running, "deploy", "numbers", same, "--shadow", 15))
        running.signal("worker-1", signal.SIGKILL)
        told.append(deploys.ferry(running, "deploy", "numbers", other, "--shadow", 15))
        runner.ask(running, "POST", "/move", {"vnodes": [0], "instance": "1.0"})
        told.append(deploys.ferry(running, "versions", "numbers"))
        running.signal("driver", signal.SIGKILL)
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 60)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=deploys.WINDOWS), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    (equal, first), (differs, second), (_, versions) = told
    assert equal == 0 and "no row differs: program 3 goes on, which is program 2 alone" in first, first
    assert differs == 2 and "the shadow is over, and program 5 goes on" in second, second
    assert re.search(r"^  - parquet\('seen'\): seq=\d+, k=\d+, n=\d+$", second, re.MULTILINE), second
    assert re.search(r"rows of \d+ epochs: [1-9][\d,]* are missing", second), second
    assert re.search(r"^3 +over", versions, re.MULTILINE) and re.search(r"^5 +in force", versions, re.MULTILINE)
    assert deploys.wrong(result.output, {0: 1}) == [], result.story()
    windows = [
        (r["k"], r["window_start"], r["n"])
        for t in deploys.read(result.output / "windows").values()
        for r in t.to_pylist()
    ]
    assert len({window[:2] for window in windows}) == len(windows), "a window fired twice"


def test_a_rollback_to_a_kept_program_equals_never_having_deployed(tmp_path: Path) -> None:
    other = deploys.program(tmp_path, "other", 2)
    epochs = list[int]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        epochs.append(deploys.deploy(running, other, "--keep", "10m"))
        code, text = deploys.ferry(running, "deploy", "numbers", other)
        assert code != 0 and "program 2 runs beside program 1" in text, text
        running.signal("worker-1", signal.SIGKILL)
        running.await_epoch(epochs[0] + 10)
        code, text = deploys.ferry(running, "rollback", "numbers")
        assert code == 0, text
        epochs.append(int(re.findall(r"from epoch (\d+) on", text)[0]))
        running.await_epoch(epochs[1] + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    assert deploys.wrong(result.output, {0: 1, epochs[0]: 2, epochs[1]: 1})
    for epoch, table in deploys.read(result.output / "seen").items():
        for row in table.to_pylist():
            if epoch < epochs[0] or epoch >= epochs[1]:
                assert row["n"] == row["seq"] // deploys.KEYS + 1, (epoch, row)
            else:
                assert row["seq"] % 2 == 0, (epoch, row)


def test_a_checkpoint_with_two_programs_is_restored_with_the_written_program(tmp_path: Path) -> None:
    """Windows are open at the checkpoint, and belong to the operator that goes on."""
    same, job = deploys.program(tmp_path, "same", 1, deploys.WINDOWS), deploys.job(tmp_path, more=deploys.WINDOWS)
    stored = [f"state.checkpoint.location={tmp_path / 'store'}", "state.checkpoint.every=1s"]
    began = list[int]()

    def suspended(running: runner.Running) -> None:
        running.await_epoch(5)
        url = LocalDeploys(running.directory or tmp_path)
        _, request = url.compared(same, lambda arguments: arguments, 60.0)
        number = url.deploy({**request, "shadow": 100_000})
        running.await_that(
            lambda: any(p["number"] == number and p["state"] == "shadow" for p in url.programs()), "shadow", 60
        )
        began.extend(p["since"] for p in url.programs() if p["number"] == number)
        running.await_epoch(began[0] + 10)
        code, text = deploys.ferry(running, "suspend", "numbers")
        assert code == 0, text

    def goes_on(running: runner.Running) -> None:
        running.await_epoch(began[0] + 80)
        runner.stop(running)

    first = runner.run(job, tmp_path, sets=stored, meanwhile=suspended)
    assert first.code == 0, first.story()
    second = runner.run(job, tmp_path, sets=[*stored, "restoreFrom=latest"], meanwhile=goes_on)
    assert second.code == 0 and deploys.wrong(second.output, {0: 1}) == [], second.story()
    windows = [
        (r["k"], r["window_start"]) for t in deploys.read(second.output / "windows").values() for r in t.to_pylist()
    ]
    assert len(set(windows)) == len(windows) > 0, "a window fired twice"
