"""The parent answers for its instances with what they last wrote."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import prometheus_client as prom
import pytest

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.status import Links
from ferry.sidecar.metrics import (
    LABELS,
    InstanceLife,
    InstanceMetrics,
    InstancesCollector,
    LinkCount,
    LoadCounter,
    MetricsFile,
)


def test_what_instances_count_is_shown_with_how_they_fare(tmp_path: Path) -> None:
    lives = {0: InstanceLife(up=True, restarts=0), 1: InstanceLife(up=False, restarts=2)}
    registry = prom.CollectorRegistry()
    registry.register(InstancesCollector(3, tmp_path, lambda: lives))
    (tmp_path / "0").mkdir()
    fast, slow = ("rdma", "mlx5_0", "10.1.2.3", "4096", "imm", ""), ("tcp", "", "", "", "", "the peer has no RDMA")
    InstanceMetrics(1000, 20, 30, (LinkCount(fast, 0), LinkCount(slow, 2)), 40, 4096).write(tmp_path / "0")

    def value(name: str, instance: str) -> float | None:
        return registry.get_sample_value(f"ferry_{name}", {"instance": instance})

    assert [value("instance_up", i) for i in ("3.0", "3.1")] == [1, 0]
    assert [value("instance_restarts_total", i) for i in ("3.0", "3.1")] == [0, 2]
    assert [value("instance_state_bytes", i) for i in ("3.0", "3.1")] == [1000, 0], "one has not counted yet"
    assert value("snapshot_sent_bytes_total", "3.0") == 20
    assert value("snapshot_received_bytes_total", "3.0") == 30
    assert [value("transport_lent_bytes_total", i) for i in ("3.0", "3.1")] == [40, 0]
    assert [value("transport_huge_bytes", i) for i in ("3.0", "3.1")] == [4096, 0]
    for labels, links in ((fast, 0), (slow, 2)):
        told = dict(zip(LABELS, labels, strict=True))
        assert registry.get_sample_value("ferry_transport_info", {"instance": "3.0", **told}) == links


def test_nobody_waits_for_a_busy_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, write = threading.Event(), InstanceMetrics.write
    monkeypatch.setattr(InstanceMetrics, "write", lambda metrics, to: (busy.wait(), write(metrics, to)))
    counted = MetricsFile(tmp_path)
    for size in (1, 2):
        counted.replace(InstanceMetrics(size))
    assert InstanceMetrics.read(tmp_path).state_bytes == 0
    busy.set()
    counted._writing.result()
    assert InstanceMetrics.read(tmp_path).state_bytes == 1, "the second one was left out"
    counted.replace(InstanceMetrics(3))
    counted._writing.result()
    assert InstanceMetrics.read(tmp_path).state_bytes == 3


def test_metrics_that_cannot_be_written_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counted = MetricsFile(tmp_path / "gone")
    for _ in range(3):
        counted.replace(InstanceMetrics(1))
        counted._writing.exception()
    assert caplog.text.count("metrics could not be written") == 1


def test_what_is_held_or_was_computed_is_reported() -> None:
    tally = LoadCounter(4)
    tally.computed(np.array([0, 2, 2, 5, 5]))
    tally.computed(np.array([0, 1, 1, 1, 1]))
    tally.received(np.array([3, 0, 0, 0]))
    tally.received(np.array([1, 0, 0, 0]))
    report = tally.report(InstanceId("3.0"), "life", np.array([100, 0, 0, 7]), Links(1, 2, "why"))
    assert (report.vnodes, report.state_bytes, report.computed) == ((0, 2, 3), (100, 0, 7), (3, 3, 0))
    assert report.received == (4, 0, 0)
    assert (report.rdma, report.tcp, report.reason) == (1, 2, "why")
    assert m.decode(m.CODES[m.Report], m.encode(report)) == report
