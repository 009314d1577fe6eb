"""Aggregates without a window under faults and handovers: all keys at the end, and after each epoch what changed in it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.cluster import runner
from tests.cluster.test_workloads import DISORDER, right

EVENTS = 300_000

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]


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
    args = {"seed": 41, "domain": 20_000, **DISORDER}
    result = survived("running", tmp_path, args)
    counts: Counter[int] = Counter()
    for epoch, records in epochs(result, args, tmp_path):
        mine = [key for _, key in records]
        counts.update(mine)
        found = written(result, "running", epoch)
        assert Counter((r["key"], r["num"]) for r in found) == Counter((k, counts[k]) for k in set(mine)), epoch


def test_keys_that_are_forgotten_begin_anew_whoever_leads_then(tmp_path: Path) -> None:
    ttl, delay = 300, 50
    args = {"seed": 43, "domain": 20_000, "rate": 100_000.0, **DISORDER}
    result = survived("recent", tmp_path, {**args, "gap_ms": ttl, "delay_ms": delay})
    kept: dict[int, tuple[int, int]] = {}
    forgotten, greatest, low = 0, -(2**62), -(2**62)
    for epoch, records in epochs(result, args, tmp_path):
        low, before = max(low, greatest - delay), len(kept)
        kept = {key: row for key, row in kept.items() if row[1] + ttl > low}
        forgotten += before - len(kept)
        for time, key in records:
            num, newest = kept.get(key, (0, time))
            kept[key], greatest = (num + 1, max(newest, time)), max(greatest, time)
        changed = Counter((key, kept[key][0]) for key in {key for _, key in records})
        assert Counter((r["key"], r["num"]) for r in written(result, "recent", epoch)) == changed, epoch
    assert forgotten > len(kept), "some came again and again"
    left = Counter((key, *row) for key, row in kept.items() if row[1] + ttl > low)
    assert Counter((r["key"], r["num"], r["last"]) for r in written(result, "left", epoch)) == left


def survived(name: str, base: Path, args: dict[str, Any]) -> runner.Result:
    """A run of one of the pipelines that is scaled, and loses instances and drivers, and ends well all the same."""
    job = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name},
        "spec": {
            "workers": 2, "state": {"virtualNodes": 64, "replicas": 1},
            "epoch": {"maxRows": 20_000, "interval": "400ms"},
            "pipeline": {"file": str(Path(__file__).parent / "pipelines" / f"{name}.py"), "args": args},
        },
    }  # fmt: skip
    (base / "job.yaml").write_text(yaml.safe_dump(job))
    at = [
        "epoch=2:begin workers=4", "epoch=4:emit kill-instance=1.0", "epoch=6:emit kill-driver", "epoch=7:begin workers=2",
        "epoch=9:commit kill-instance=0.0", "epoch=11:sink kill-driver",
    ]  # fmt: skip
    result = runner.run(base / "job.yaml", base, EVENTS, (), at)
    assert result.code == 0 and not result.left, result.story()
    assert result.changes("switched") and result.changes("promoted") and len(result.kinds("ready")) == 3, result.story()
    return result


def epochs(result: runner.Result, args: dict[str, Any], base: Path) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Times and keys of the records of each epoch, as the reference generator makes them."""
    sys.path.insert(0, str(runner.ROOT / "tests" / "oracle"))
    from oracle.gen import Config, generate

    generate(Config(workload="keys", events=EVENTS, **args), str(base / "in"))
    arrived = pq.read_table(base / "in" / "keys.parquet").sort_by("seq")
    records = list(zip(*(arrived.column(name).to_pylist() for name in ("ts", "key")), strict=True))
    begin = 0
    for epoch, rows in sorted({r["epoch"]: r["rows"] for r in result.kinds("epoch")}.items()):
        yield epoch, records[begin : begin + rows]
        begin += rows
    assert begin == EVENTS


def written(result: runner.Result, sink: str, epoch: int) -> list[dict[str, Any]]:
    """The rows of one epoch."""
    files = sorted((result.output / sink / f"epoch={epoch}").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]
