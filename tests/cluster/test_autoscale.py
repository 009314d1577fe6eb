"""A job that is scaled by its load: out and in again by itself, and its results are those of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(400)]

PIPELINE = Path(__file__).parent / "pipelines" / "rising.py"
BUSY, CALM, SECONDS = 8000, 500, 24
EVENTS = BUSY * SECONDS + CALM * 34


def test_a_job_follows_its_load_out_and_in_again(tmp_path: Path) -> None:
    """What is fast keeps one instance busy for most of the time, what is slow for some hundredths; the bound lies between."""
    args = {"seed": 43, "rate": 1000}
    file = tmp_path / "rising.json"
    spec = {
        "pipeline": {
            "file": str(PIPELINE),
            "args": {**args, "busy": BUSY, "calm": CALM, "seconds": SECONDS, "each": 1e-4},
        },
        "workers": 1,
        "state": {"virtualNodes": 16},
        "epoch": {"interval": "100ms"},
        "autoscale": {"min": 1, "max": 2, "utilisation": "30%", "cooldown": "3s", "mode": "auto"},
        "balance": {"mode": "auto", "gain": "5%", "horizon": "10s"},
    }
    kind = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "rising"}}
    file.write_text(json.dumps({**kind, "spec": spec}))
    jobs = []

    def watch(running: runner.Running) -> None:
        def scaled(number: int) -> bool:
            return (
                sum(r["kind"] == "action" and r["text"].startswith("autoscale: ") for r in running.records()) >= number
            )

        running.await_that(lambda: scaled(1), "second worker", 90)
        jobs.append(runner.ask(running, "GET", "/job"))
        running.await_that(lambda: scaled(2), "way back", 90)

    result = runner.run(file, tmp_path, EVENTS, meanwhile=watch)
    assert result.code == 0 and not result.left, result.story()
    said = [r["text"] for r in result.kinds("action")]
    decisions = [text.partition(": ")[2].partition(":")[0] for text in said if text.startswith("autoscale: ")]
    assert decisions == ["1 x 1 -> 2 x 1", "2 x 1 -> 1 x 1"], "\n".join(said)
    assert [text for text in said if text.startswith("workers=")] == ["workers=2", "workers=1"]
    assert "release worker 1" in said
    (seen,) = jobs
    assert seen["autoscale"]["mode"] == "auto" and seen["status"]["load"]["work"]["backlog"] is not None
    assert result.changes("switched") >= 2, "state has moved there and back"
    assert runner.difference("nbq5", EVENTS, args, result.output, tmp_path) == ([], []), result.story()
