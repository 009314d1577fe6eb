"""The papers' queries side by side in one job that is scaled and loses an instance, each against the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import runner
from tests.cluster.queries import JOBS, rows_of, workload_of

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(600)]

EVENTS = 20_000
GENERATORS: dict[str, dict[str, Any]] = {
    "nexmark": {"seed": 19, "rate": 500, "group": 100, "delay_prob": 0.05},
    "keys": {"seed": 19, "domain": 3000, "group": 100},
    "smq": {},
    "unimico": {"seed": 19},
}
OWN: dict[str, dict[str, Any]] = {
    "nb11": {"gap_ms": 1000},
    "nbqx": {"min_ms": 50},
    "q11": {"gap_ms": 2000},
    "q7": {"window_ms": 5000},
    "q8_within": {"window_ms": 6000},
    "smq": {"parallelism": 7},
    "smq_filter": {"parallelism": 7, "switch_seq": 9000},
}  # fmt: skip
QUERIES = (
    "q1", "q2", "q3", "q4", "q4_updates", "q6", "q6_updates", "q7", "q8_within", "q9", "q11", "nb11", "nbqx",
    "count_updates", "smq", "smq_filter", "uq1", "uq2", "uq3",
)  # fmt: skip
ELSEWHERE = {"cm", "hash_count", "nb7", "nbq5", "nbq8", "q5", "q5_counts", "q8", "ro", "ysb"}
"""Queries that have runs of their own."""


def arguments(query: str) -> dict[str, Any]:
    return {**GENERATORS[workload_of(query)], **OWN.get(query, {})}


def test_each_query_is_run_somewhere() -> None:
    assert {*QUERIES} | ELSEWHERE == JOBS.keys() and not {*QUERIES} & ELSEWHERE


def test_queries_in_one_job_are_the_oracles(tmp_path: Path) -> None:
    spec = {
        "pipeline": {
            "file": str(Path(__file__).parent / "pipelines" / "side_by_side.py"),
            "args": {"queries": json.dumps({query: arguments(query) for query in QUERIES})},
        },
        "workers": 2,
        "state": {"virtualNodes": 8},
        "epoch": {"maxRows": len(GENERATORS) * EVENTS // 10},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "queries"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    at = ["epoch=1:begin workers=3", "epoch=2:commit kill-worker=0", "epoch=3:begin move=5:2.0"]
    result = runner.run(tmp_path / "job.yaml", tmp_path, EVENTS, at=at, timeout=560)
    assert result.code == 0 and not result.left, result.story()
    assert result.changes("switched") and result.changes("promoted"), result.story()
    wrong = {}
    for query in QUERIES:
        missing, extra = runner.difference(query, EVENTS, arguments(query), result.output, tmp_path / query)
        if missing or extra or not rows_of(query, result.output):
            wrong[query] = f"missing {len(missing)} {missing[:3]}, unexpected {len(extra)} {extra[:3]}"
    assert not wrong, wrong
