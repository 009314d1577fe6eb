"""A paced job says how long its records took: each of them once, whatever dies meanwhile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

EVENTS, RATE = 160_000, 20_000


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_every_record_is_counted_once_and_a_loss_shows_in_its_latency(mode: str, tmp_path: Path) -> None:
    args = {"seed": 41, "rate": RATE}
    sets = [*runner.sets_of(args), f"pipeline.args.pace={RATE}", f"epoch.mode={mode}", "epoch.interval=20ms"]
    at = ["epoch=10:ingest kill-worker=1", "epoch=20:commit kill-instance=0.0", "epoch=28:begin workers=3"]
    result = runner.run("nbq5", tmp_path, EVENTS, sets, at)
    assert result.code == 0, result.errors[-3000:]
    assert runner.difference("nbq5", EVENTS, args, result.output, tmp_path) == ([], []), result.story()
    lines = result.kinds("latency")
    bids = sum(r["rows"] for r in result.kinds("epoch"))
    assert bids == EVENTS * 46 // 50
    assert sum(line["records"] for line in lines) == sum(n for line in lines for _, n in line["counts"]) == bids
    assert all(later["t"] - line["t"] >= 0.25 for line, later in pairwise(lines[:-1]))
    assert result.summary["latency"]["records"] == bids
    # The input alone takes as long, and what has waited for a recovery is not left out.
    seconds = max(r["end"] for r in result.kinds("epoch")) - min(r["begin"] for r in result.kinds("epoch"))
    assert seconds > 0.9 * EVENTS / RATE
    longest = max(r["end"] - r["begin"] for r in result.kinds("epoch"))
    assert result.summary["latency"]["max"] >= 0.9 * longest
