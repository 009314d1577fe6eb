"""A program beside another one: compared with it as a shadow, or kept up to date for a rollback that changes nothing."""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ferry.contract.errors import Unreachable
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


def fails(file: Path, where: str, flag: Path) -> Path:
    """The program raises in this function, or ends its process there, once the file exists."""
    name, indent = ("passing(numbers)", "    ") if where == "passing" else ("process(self, work)", "        ")
    what = "os._exit(3)" if where == "exit" else "raise ValueError('it fails')"
    text, begin = file.read_text(), f"def {name}:\n"
    assert text.count(begin) == 1
    check = f"{indent}import os\n{indent}if os.path.exists({str(flag)!r}):\n{indent}    {what}\n"
    file.write_text(text.replace(begin, begin + check))
    return file


@pytest.mark.parametrize("where", ["process", "passing", "exit"])
def test_code_that_fails_in_the_program_that_is_not_written_ends_only_that_program(tmp_path: Path, where: str) -> None:
    """As a shadow, while the driver dies, and as a kept program; the failure is long after the first epoch."""
    flags = [tmp_path / "shadow-fails", tmp_path / "kept-fails"]
    job = deploys.job(tmp_path, more=deploys.WINDOWS)
    fails(tmp_path / "programs" / "first" / "job.py", where, flags[1])
    shadow = fails(deploys.program(tmp_path, "shadow", 1, deploys.WINDOWS), where, flags[0])
    other = deploys.program(tmp_path, "other", 2, deploys.WINDOWS)
    since, shown = list[int](), list[str]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        url = LocalDeploys(running.directory or tmp_path)

        def state(number: int) -> str:
            with suppress(Unreachable):  # Until the next driver answers.
                return next((p["state"] for p in url.programs() if p["number"] == number), "")
            return ""

        _, request = url.compared(shadow, lambda arguments: arguments, 60.0)
        number = url.deploy({**request, "shadow": 100_000})
        running.await_that(lambda: state(number) == "shadow", "shadow", 60)
        time.sleep(3)
        flags[0].touch()
        time.sleep(0.5)
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: deploys.ferry(running, "versions", "numbers")[0] == 0, "driver", 60)
        running.await_that(lambda: state(number) == "over", "end of the shadow", 60)
        since.append(deploys.deploy(running, other, "--keep", "10m"))
        running.await_epoch(since[0] + 10)
        flags[1].touch()
        running.await_that(lambda: state(5) == "in force", "end of keep", 60)
        shown.append(deploys.ferry(running, "versions", "numbers")[1])
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 20)
        runner.stop(running)

    result = runner.run(job, tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    assert deploys.wrong(result.output, {0: 1, since[0]: 2}) == [], result.story()
    windows = [
        (r["k"], r["window_start"]) for t in deploys.read(result.output / "windows").values() for r in t.to_pylist()
    ]
    assert len(set(windows)) == len(windows) > 0, "a window fired twice"
    line = "os._exit(3) (job.py:" if where == "exit" else "ValueError: it fails (job.py:"
    told = [r["text"] for r in result.kinds("degraded") if f"user code: {line}" in r["text"]]
    assert any("the shadow ends" in text for text in told), told
    assert any("is not kept any more" in text for text in told), told
    assert shown[0].count(line) == 2, shown[0]
