"""Aggregates without a window under faults and handovers: all keys at the end, and after each epoch what changed in it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.cluster import runner
from tests.cluster.test_workloads import DISORDER, right

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_counts_of_all_time_while_workers_come_go_and_die(tmp_path: Path) -> None:
    args = {"seed": 31, "keys": "zipf", "domain": 100_000, **DISORDER}
    at = [
        "epoch=1:ingest workers=4", "epoch=3:commit kill-instance=1.0", "epoch=5:begin kill-worker=0",
        "epoch=6:prepare move=5:1.0", "epoch=7:emit kill-driver", "epoch=9:begin workers=2",
    ]  # fmt: skip
    sets = [*runner.sets_of(args), "epoch.maxRows=40000", "epoch.interval=500ms"]
    result = runner.run("ro", tmp_path, 500_000, sets, at)
    right(result, "ro", 500_000, args, tmp_path)
    assert result.changes("switched") and result.changes("promoted") and result.changes("in-sync"), result.story()
    assert result.summary["rows"] == 500_000


def test_a_loaded_domain_moves_whole_and_comes_back_from_files(tmp_path: Path) -> None:
    # A third of the keys never comes again after the epochs that load them.
    args = {"seed": 37, "domain": 300_000}
    at = [
        "epoch=2:commit kill-worker=1", "epoch=4:begin workers=3", "epoch=6:sink kill-driver", "epoch=8:begin drain=0",
        "epoch=10:prepare kill-instance=1.0",
    ]  # fmt: skip
    sets = [*runner.sets_of(args), "state.replicas=0", "epoch.maxRows=50000", "epoch.interval=300ms"]
    result = runner.run("hash_count", tmp_path, 300_000, sets, at)
    right(result, "hash_count", 300_000, args, tmp_path)
    assert result.summary["rows"] == 600_000


def test_after_each_epoch_its_changes_come_once_whoever_leads_then(tmp_path: Path) -> None:
    events, args = 300_000, {"seed": 41, "domain": 20_000, **DISORDER}
    job = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "running"},
        "spec": {
            "workers": 2, "state": {"virtualNodes": 64, "replicas": 1},
            "epoch": {"maxRows": 20_000, "interval": "400ms"},
            "pipeline": {"file": str(Path(__file__).parent / "pipelines" / "running.py"), "args": args},
        },
    }  # fmt: skip
    (tmp_path / "running.yaml").write_text(yaml.safe_dump(job))
    at = [
        "epoch=2:begin workers=4", "epoch=4:emit kill-instance=1.0", "epoch=6:emit kill-driver", "epoch=7:begin workers=2",
        "epoch=9:commit kill-instance=0.0", "epoch=11:sink kill-driver",
    ]  # fmt: skip
    result = runner.run(tmp_path / "running.yaml", tmp_path, events, (), at)
    assert result.code == 0 and not result.left, result.story()
    assert result.changes("switched") and result.changes("promoted") and len(result.kinds("ready")) == 3, result.story()

    sys.path.insert(0, str(runner.ROOT / "tests" / "oracle"))
    from oracle.gen import Config, generate

    generate(Config(workload="keys", events=events, **args), str(tmp_path / "in"))
    arrived = pq.read_table(tmp_path / "in" / "keys.parquet").sort_by("seq").column("key").to_pylist()
    counts: Counter[int] = Counter()
    begin = 0
    for epoch, rows in sorted({r["epoch"]: r["rows"] for r in result.kinds("epoch")}.items()):
        mine, begin = arrived[begin : begin + rows], begin + rows
        counts.update(mine)
        files = sorted((result.output / "running" / f"epoch={epoch}").glob("*.parquet"))
        found = [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
        assert Counter((r["key"], r["num"]) for r in found) == Counter((k, counts[k]) for k in set(mine)), epoch
    assert begin == events
