"""Latencies reach the timeline four times a second at most, Prometheus by its bounds, and the status for a while."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import prometheus_client as prom

from ferry.contract.latency import bucket_of
from ferry.contract.timeline import TIMELINE
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.coordinator.record_latency import BOUNDS, RECENT_SECONDS, RecordLatency


def lines(directory: Path) -> list[dict[str, Any]]:
    file = directory / TIMELINE
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [record for record in found if record["kind"] == "latency"]


def test_short_epochs_share_a_line_and_none_is_lost(tmp_path: Path) -> None:
    latency = RecordLatency(str(tmp_path))
    for n in range(100):
        latency.add({bucket_of(0.01): 7}, 1000 + n * 0.02, 0.01)
    found = lines(tmp_path)
    assert len(found) == 8 and all(later["t"] - line["t"] >= 0.25 for line, later in pairwise(found))
    latency.flush()
    latency.flush()
    found = lines(tmp_path)
    assert sum(line["records"] for line in found) == sum(n for line in found for _, n in line["counts"]) == 700
    assert all(math.isclose(line[name], 0.02, rel_tol=0.02) for line in found for name in ("p50", "p99", "max"))


def test_prometheus_has_a_histogram_of_all_records(tmp_path: Path) -> None:
    latency, registry = RecordLatency(str(tmp_path)), prom.CollectorRegistry()
    registry.register(latency)
    assert registry.get_sample_value("ferry_record_latency_seconds_count") is None
    latency.add({bucket_of(0.004): 10, bucket_of(0.9): 30}, 100.0, 0.0)
    latency.add({bucket_of(0.004): 1}, 100.1, 500.0)

    def below(bound: str) -> float | None:
        return registry.get_sample_value("ferry_record_latency_seconds_bucket", {"le": bound})

    assert [below(bound) for bound in ("0.002", "0.005", "0.75", "1.0", "100.0", "+Inf")] == [0, 10, 10, 40, 40, 41]
    assert registry.get_sample_value("ferry_record_latency_seconds_count") == 41
    total = registry.get_sample_value("ferry_record_latency_seconds_sum")
    assert total is not None and math.isclose(total, 0.04 + 27 + 500, rel_tol=0.02)
    assert list(BOUNDS) == sorted(set(BOUNDS)) and BOUNDS[0] == 0.001 and BOUNDS[-1] == 100


def test_the_status_speaks_of_the_last_seconds(tmp_path: Path) -> None:
    latency = RecordLatency(str(tmp_path))
    assert latency.recent(0.0) is None
    latency.add({bucket_of(5.0): 3}, 100.0, 0.0)
    latency.add({bucket_of(0.01): 1}, 101.0, 0.0)
    first, later = latency.recent(101.0), latency.recent(100.5 + RECENT_SECONDS)
    assert first is not None and first.records == 4 and later is not None and later.records == 1


def test_an_epoch_without_creation_times_says_nothing(tmp_path: Path) -> None:
    metrics = DriverMetrics("job", str(tmp_path))
    metrics.finish_epoch(EpochRecord(0, 10.0, 11.0, 5, 0, 0, 0), 1, 0)
    assert lines(tmp_path) == []
    metrics.finish_epoch(EpochRecord(1, 11.0, 12.5, 5, 0, 0, 0, planned=11.0, ages={bucket_of(0.5): 5}), 1, 0)
    (line,) = lines(tmp_path)
    assert line["records"] == 5 and math.isclose(line["p50"], 2.0, rel_tol=0.01)
