"""Metrics of the operator for Prometheus: its own counters, and the last status of each job. It never observes jobs itself.

Only the leader exports series of jobs. They include jobs whose own processes, and so their own metrics, are down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import prometheus_client as prom
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ferry_operator.job.models_autoscale import AutoscaleReport
from ferry_operator.job.status import JobStatus, Phase
from ferry_operator.kube.api.names import JobKey

SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class JobSample:
    """The last observation of one job."""

    status: JobStatus
    in_force: bool
    """the newest spec is in force, not the last good one"""
    pods: int
    """worker pods"""
    given_up: int
    """moves of state that were given up, and are not done yet"""


class Jobs(Collector):
    """A few series of every job. Thread-safe."""

    def __init__(self) -> None:
        self._samples: dict[JobKey, JobSample] = {}
        self._handovers: dict[JobKey, float] = {}
        self._lock = threading.Lock()

    def seen(self, key: JobKey, sample: JobSample, handover_seconds: float | None) -> None:
        """Record a job after its reconcile, and the length of a handover that ended with this reconcile."""
        with self._lock:
            self._samples[key] = sample
            if handover_seconds is not None:
                self._handovers[key] = handover_seconds

    def forget(self, key: JobKey) -> None:
        """Remove the series of a deleted job."""
        with self._lock:
            self._samples.pop(key, None)
            self._handovers.pop(key, None)

    def count(self) -> int:
        """Number of the jobs."""
        with self._lock:
            return len(self._samples)

    def clear(self) -> None:
        """Remove the series of all jobs: another operator leads."""
        with self._lock:
            self._samples.clear()
            self._handovers.clear()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """All series."""
        with self._lock:
            samples, handovers = dict(self._samples), dict(self._handovers)
        yield _family(
            "ferry_streamjob_condition",
            "1 for the present status of a condition of the job",
            ("namespace", "streamjob", "type", "status"),
            {
                (*key, condition.type, truth): float(condition.status == truth)
                for key, sample in samples.items()
                for condition in sample.status.conditions
                for truth in ("True", "False", "Unknown")
            },
        )
        yield _family(
            "ferry_streamjob_phase",
            "1 for the present phase of the job",
            ("namespace", "streamjob", "phase"),
            {(*key, phase): float(s.status.phase == phase) for key, s in samples.items() for phase in get_args(Phase)},
        )
        for series, text, read in _NUMBERS:
            values: dict[tuple[str, ...], float] = {key: read(sample) for key, sample in samples.items()}
            yield _family(series, text, ("namespace", "streamjob"), values)
        for series, text, read_one in _DECIDED:
            decided = {
                key: read_one(s.status.autoscale) for key, s in samples.items() if s.status.autoscale is not None
            }
            yield _family(
                series,
                text,
                ("namespace", "streamjob"),
                {key: value for key, value in decided.items() if value is not None},
            )
        text = "Length of the last handover of the job"
        seconds: dict[tuple[str, ...], float] = {(*key,): value for key, value in handovers.items()}
        yield _family("ferry_streamjob_last_handover_seconds", text, ("namespace", "streamjob"), seconds)


class WatchAges(Collector):
    """The age of each watch of the leader."""

    def __init__(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        """`read`: ages by namespace and kind in the plural."""
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The series of the present watches."""
        text = (
            "Time for which a watch has owed a change; with the Lease: since the last renewal came back to the leader"
        )
        values: dict[tuple[str, ...], float] = {(*key,): age for key, age in self._read().items()}
        yield _family("ferry_operator_watch_age_seconds", text, ("watched", "resource"), values)


_NUMBERS: tuple[tuple[str, str, Callable[[JobSample], float]], ...] = (
    (
        "ferry_streamjob_spec_in_force",
        "1 while the newest spec of the job is in force",
        lambda sample: float(sample.in_force),
    ),
    ("ferry_streamjob_worker_pods", "Pods of workers", lambda sample: sample.pods),
    (
        "ferry_streamjob_moves_given_up",
        "Moves of state that were given up, and are not done yet",
        lambda sample: sample.given_up,
    ),
)


_DECIDED: tuple[tuple[str, str, Callable[[AutoscaleReport], float | None]], ...] = (
    ("ferry_streamjob_autoscale_workers", "Workers that the autoscaler wants", lambda report: report.workers),
    ("ferry_streamjob_autoscale_used", "Share of the workers' time that the load needs", lambda report: report.used),
    (
        "ferry_streamjob_autoscale_target",
        "Share of the workers' time at which the autoscaler aims",
        lambda report: report.target,
    ),
    (
        "ferry_streamjob_autoscale_arriving_per_second",
        "Records per second that arrive, by the estimate of the autoscaler",
        lambda report: report.arriving_per_second,
    ),
    (
        "ferry_streamjob_autoscale_true_rate",
        "Records per second that a worker can process at most",
        lambda report: report.true_rate,
    ),
)


def _family(name: str, text: str, labels: tuple[str, ...], values: dict[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


class Metrics:
    """Counters of one process, and gauges that every scrape reads anew."""

    def __init__(self) -> None:
        self.registry = prom.CollectorRegistry()
        self.jobs = Jobs()
        self.registry.register(self.jobs)
        self._calls = prom.Counter(
            "ferry_operator_api_requests",
            "Requests to the API server",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._reconciles = prom.Histogram(
            "ferry_operator_reconcile_seconds",
            "Length of one reconcile of a job",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._errors = prom.Counter(
            "ferry_operator_reconcile_errors", "Reconciles that failed", ("reason",), registry=self.registry
        )
        self._handovers = prom.Histogram(
            "ferry_operator_handover_seconds",
            "Length of a handover, from the first moving virtual node to the last one in place",
            buckets=(0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
            registry=self.registry,
        )

    def count_call(self, verb: str, resource: str, code: str) -> None:
        """Count one request to the API server."""
        self._calls.labels(verb, resource, code).inc()

    def count_reconcile(self, seconds: float) -> None:
        """Count one reconcile of a job."""
        self._reconciles.observe(seconds)

    def count_error(self, reason: str) -> None:
        """Count one reconcile that failed."""
        self._errors.labels(reason).inc()

    def count_handover(self, seconds: float) -> None:
        """Count one handover that ended."""
        self._handovers.observe(seconds)

    def watches(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        """Register the ages of the watches."""
        self.registry.register(WatchAges(read))

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register a number that every scrape reads."""
        prom.Gauge(f"ferry_operator_{name}", text, registry=self.registry).set_function(read)
