"""Latencies from records' creation to the sinks: for the timeline, the status, and Prometheus.

Thread-safe: the epoch function adds, others read. It counts by bucket, never by record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ferry.contract.latency import Counts, LatencyHistogram, LatencyQuantiles, seconds_of
from ferry.contract.timeline import append_record

LINE_SECONDS = 0.25
"""Shortest interval between two lines in the timeline; epochs may be shorter."""

RECENT_SECONDS = 10.0
"""Period of the quantiles in the status."""

BOUNDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5,
    10.0, 20.0, 50.0, 100.0,
)  # fmt: skip
"""Buckets of the Prometheus histogram, in seconds."""


class RecordLatency(Collector):
    """Latencies of one driver's records."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._all = LatencyHistogram()
        self._line = LatencyHistogram()
        """counts that are not in the timeline yet"""
        self._written = 0.0
        self._ended = 0.0
        self._recent: deque[tuple[float, LatencyHistogram]] = deque()

    def add(self, ages: Counts, end: float, since: float) -> None:
        """Add the records of an epoch whose rows reached the sinks at `end`; ages are as of `since` seconds before."""
        if not ages:
            return
        with self._lock:
            self._line.add(ages, since)
            self._ended = end
        if end - self._written >= LINE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write pending latencies to the timeline, with their counts, so that lines can be summed."""
        with self._lock:
            line, self._line = self._line, LatencyHistogram()
            self._all.merge(line.counts)
            self._recent.append((self._ended, line))
            while self._recent[0][0] < self._ended - RECENT_SECONDS:
                self._recent.popleft()
        if (found := line.quantiles()) is None:
            return
        self._written = self._ended
        record = {"t": self._ended, "kind": "latency", **found.to_wire(), "counts": sorted(line.counts.items())}
        append_record(self._directory, record)

    def recent(self, now: float) -> LatencyQuantiles | None:
        """Quantiles of the records of the last seconds."""
        with self._lock:
            found = LatencyHistogram(dict(self._line.counts))
            for end, one in self._recent:
                if end >= now - RECENT_SECONDS:
                    found.merge(one.counts)
        return found.quantiles()

    def collect(self) -> Iterator[Metric]:
        """One histogram; none until a source has reported when its records were created."""
        with self._lock:
            total_counts = LatencyHistogram(dict(self._all.counts))
            total_counts.merge(self._line.counts)
        family = HistogramMetricFamily("ferry_record_latency_seconds", "From a record's creation to the sinks")
        if total_counts.counts:
            below = [(str(bound), float(total_counts.below(bound))) for bound in BOUNDS]
            total = sum(seconds_of(bucket) * count for bucket, count in total_counts.counts.items())
            family.add_metric([], [*below, ("+Inf", float(total_counts.records))], total)
        yield family
