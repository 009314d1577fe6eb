"""Plans in steps, of real jobs: carried on by the next driver, and with epochs held back, against the oracle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import runner
from tests.cluster.runner import ROOT
from tests.cluster.test_workloads import DISORDER, right

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


def switchovers(records: list[dict[str, Any]]) -> list[tuple[float, list[int]]]:
    """(when, virtual nodes) that got another leader at one time."""
    found = [
        (r["t"], [v for v, what, _ in r["changes"] if what == "switched"]) for r in records if r["kind"] == "groups"
    ]
    return [(t, vnodes) for t, vnodes in found if vnodes]


@pytest.mark.parametrize("mode", ["micro-batch", "continuous"])
def test_a_plan_is_prepared_carried_on_by_other_drivers_and_cold(tmp_path: Path, mode: str) -> None:
    args = {"seed": 23, **DISORDER, "keys": "zipf", "domain": 20_000}

    def meanwhile(running: runner.Running) -> None:
        running.await_that(lambda: bool(switchovers(running.records())), "the first step", 120)
        running.signal("driver", signal.SIGKILL)

    at = ["epoch=1:begin workers=4", "epoch=6:ingest kill-driver", "epoch=34:begin workers=2"]
    sets = [
        *runner.sets_of(args), "state.virtualNodes=8", "epoch.maxRows=20000", "epoch.interval=200ms", f"epoch.mode={mode}",
        "handover.strategy=fluid", "handover.gap=1", "handover.warm=false", "handover.atEpoch=9",
    ]  # fmt: skip
    result = runner.run("nbq5", tmp_path, 840_000, sets, at, meanwhile)
    right(result, "nbq5", 840_000, args, tmp_path)
    before = next(r["end"] for r in result.kinds("epoch") if r["epoch"] == 8)
    joined = [r["t"] for r in result.kinds("groups") if any(what == "joined" for _, what, _ in r["changes"])]
    assert joined and before < min(joined), "the plan was given in epoch 2 or soon after, and is due in epoch 9"
    began = [r["t"] for r in result.kinds("ready")]
    assert len(began) == 3, result.story()
    back = next(r["t"] for r in result.kinds("action") if "workers=2" in r["text"])
    switched = switchovers(result.records)
    assert all(len(vnodes) == 1 for _, vnodes in switched), f"one at a time: {switched}"
    out = [vnodes[0] for t, vnodes in switched if t < back]
    assert len(out) == len({*out}) >= 4, f"nothing is taken back, nor moved twice: {switched}"
    assert switched[0][0] < began[2] < switched[3][0], "by both drivers"
    assert switched[-1][0] > back, "and back again"


def ferry(running: runner.Running, *arguments: object, code: int = 0) -> str:
    """What the command prints."""
    environment = {
        **os.environ,
        "FERRY_HOME": str(running.home),
        "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT / 'operator'}",
    }
    command = [sys.executable, "-m", "ferry_operator.cli", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def test_a_plan_is_made_edited_handed_in_and_taken_back(tmp_path: Path) -> None:
    args, file = {"seed": 5, **DISORDER}, tmp_path / "plan.json"
    found: dict[str, Any] = {}

    def job(running: runner.Running) -> Any:
        """With an answer of the driver."""
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(runner.ask(running, "GET", "/job"))
            return answers[-1]["status"] is not None

        running.await_that(answered, "an answer", 60)
        return answers[-1]

    def groups(running: runner.Running) -> list[list[str]]:
        return [in_sync for in_sync, _ in (runner.ask(running, "GET", "/job")["status"] or {"groups": []})["groups"]]

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(2)
        ferry(
            running,
            "plan",
            "nbq5",
            "--set",
            "workers=3",
            "--strategy",
            "batched",
            "--set",
            "handover.batch=2",
            "-o",
            file,
        )
        document = json.loads(file.read_text())
        # Not what the planner would do: the new worker leads all, and the others have the copies in turns.
        document["placements"] = [["2.0", f"{v % 2}.0"] for v in range(8)]
        file.write_text(json.dumps(document))
        due = job(running)["status"]["epoch"] + 40
        ferry(running, "submit", "nbq5", file, "--at-epoch", due)
        found["due"] = due
        running.await_that(lambda: bool(job(running)["status"]["moves"]["prepared"]), "what is prepared", 60)
        running.signal("driver", signal.SIGKILL)
        running.await_that(lambda: groups(running) == document["placements"], "the plan's placements", 90)
        found["plans"] = json.loads(ferry(running, "plans", "nbq5", "--json"))
        ferry(running, "submit", "nbq5", file, code=2)
        ferry(running, "cancel", "nbq5")
        running.await_that(lambda: not [g for g in groups(running) if "2.0" in g], "what has moved goes back", 90)
        ferry(running, "cancel", "nbq5", code=2)

    sets = [*runner.sets_of(args), "state.virtualNodes=8", "epoch.maxRows=20000", "epoch.interval=250ms"]
    result = runner.run("nbq5", tmp_path, 5_400_000, sets, (), meanwhile)
    right(result, "nbq5", 5_400_000, args, tmp_path)
    before = next(r["end"] for r in result.kinds("epoch") if r["epoch"] == found["due"] - 1)
    joined = [r["t"] for r in result.kinds("groups") if any(what == "joined" for _, what, _ in r["changes"])]
    assert joined and before < min(joined), "it was due later"
    assert [row["state"] for row in found["plans"]][-1] == "submitted"
    assert found["plans"][0]["steps"].split("/")[0] == found["plans"][0]["steps"].split("/")[1]
