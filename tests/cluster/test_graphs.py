"""Operators in graphs that are no chains, and pipelines without operators, under moves and kills, against DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.cluster import graph, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


def test_a_graph_with_sinks_at_every_stage_under_faults(tmp_path: Path) -> None:
    events, args = 120_000, {"seed": 17, "rate": 500, "group": 100}
    at = [
        "epoch=1:prepare workers=3", "epoch=2:emit kill-driver", "epoch=3:commit kill-instance=0.0",
        "epoch=4:ingest kill-worker=1", "epoch=5:begin move=5:2.0", "epoch=6:sink kill-driver", "epoch=7:begin workers=2",
    ]  # fmt: skip
    result = runner.run(graph.job(tmp_path, args), tmp_path, events, ["epoch.maxRows=10000"], at)
    assert result.code == 0 and not result.left, result.story()
    for name in graph.NAMES:
        rows = duckdb.sql(f"FROM read_parquet('{result.output}/{name}/*/*.parquet', hive_partitioning = false)")
        assert rows.limit(1).fetchall(), f"{name} has no row"
    missing, extra = graph.difference(events, args, result.output, tmp_path)
    assert not missing and not extra, f"missing {missing[:3]}, unexpected {extra[:3]}"
    assert result.summary["rows"] == events, "each record is counted once"
