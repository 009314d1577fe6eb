"""Rates of records, and busy time of tasks and instances: the input of decisions about the size of a job (DS2).

The *useful time* of DS2 (Kalavri et al., OSDI 2018, section 3): of a task from assignment of its records to receipt,
of an instance all time but waiting for messages. The fixed cost of an epoch, before its first record, is left out: it
is most of a short epoch and independent of the load. Thread-safe. Must never influence the protocol.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.work import WORK_SECONDS, WorkReport

SAMPLE_SECONDS = 0.5
"""Shortest interval between samples; epochs may be shorter."""

EPOCHS_MIN = 8
"""Smallest number of epochs in a report, however long they take: the records of an epoch are known at its end."""

FRESH = 0.1
"""Weight of the newest sample in the average cost of epochs of a size."""

APART = 2
"""Epochs whose numbers of records differ by less than this power of two do not show the cost of a record."""

FORGET_SECONDS = 180.0
"""The cost of a size of epochs is forgotten after this long without such an epoch: nodes and pipelines warm up."""

FIXED_MAX = 0.5
"""Largest share of the cost of the largest epochs that counts as fixed: errors must not hide a great load."""

STANDS_SECONDS, STANDS_TIMES = 10.0, 4
"""An epoch under way that is older, and older than this many usual ones, stands still: there is no report then."""


class _Sample(NamedTuple):
    """Totals, as of the end of an epoch."""

    at: float
    rows: int = 0
    receipts: int = 0
    """number of participating tasks, summed over epochs"""
    parts: int = 0
    """the same of instances"""
    tasks: float = 0.0
    instances: float = 0.0
    lag: int | None = None


class EpochCost:
    """Cost of an epoch per participant: a fixed part before its first record, and a part per record.

    A line through the averages of the smallest and the largest recent epochs, by powers of two. If all were alike, or
    the line does not rise, the fixed part is unknown, and all cost counts as the records'.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[float, float, float]] = {}
        """By size: (records, seconds) per participant, and when an epoch of this size ended last"""

    def add(self, parts: int, rows: int, busy: float, now: float = 0.0) -> None:
        """Add the busy seconds of this many participants, all together."""
        if parts <= 0:
            return
        records, seconds = rows / parts, busy / parts
        size = int(math.log2(1 + records))
        many, long, _ = self._by_size.get(size, (records, seconds, now))
        self._by_size[size] = FRESH * records + (1 - FRESH) * many, FRESH * seconds + (1 - FRESH) * long, now
        self._by_size = {one: cost for one, cost in self._by_size.items() if now - cost[2] < FORGET_SECONDS}

    def fixed(self) -> float:
        """Seconds before the first record; 0.0 if unknown."""
        if not self._by_size or max(self._by_size) - min(self._by_size) < APART:
            return 0.0
        (few, short, _), (many, long, _) = self._by_size[min(self._by_size)], self._by_size[max(self._by_size)]
        if long <= short:
            return 0.0
        return min(max(short - (long - short) / (many - few) * few, 0.0), long * FIXED_MAX)


class WorkRates(Collector):
    """Rates of one driver. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = self._ended = _Sample(clock())
        self._samples: deque[_Sample] = deque()
        self._began: float | None = None
        """when the epoch under way began"""
        self._lasted: deque[float] = deque(maxlen=EPOCHS_MIN)
        self._heard: dict[InstanceId, tuple[str, int]] = {}
        """life and busy milliseconds, as last reported"""
        self._of_tasks = EpochCost()
        self._of_instances = EpochCost()

    def begins(self) -> None:
        """An epoch begins."""
        with self._lock:
            self._began = self._clock()

    def epoch(self, rows: int, receipts: int, busy: float, lag: int | None) -> None:
        """An epoch has ended: its records, its tasks, their busy seconds; `lag`: records that wait in sources, if
        known."""
        with self._lock:
            before, now = self._now, self._clock()
            self._now = before._replace(
                at=now,
                rows=before.rows + rows,
                receipts=before.receipts + receipts,
                parts=before.parts + len(self._heard),
                tasks=before.tasks + busy,
                lag=lag,
            )
            self._ended = self._now
            if self._began is not None:
                self._lasted.append(now - self._began)
                self._began = None
            if self._samples and now - self._samples[-1].at < SAMPLE_SECONDS:
                return
            self._samples.append(self._now)
            while len(self._samples) > EPOCHS_MIN and self._samples[1].at <= now - WORK_SECONDS:
                self._samples.popleft()
            first = self._samples[0]
            if now - first.at >= WORK_SECONDS:
                rows = self._now.rows - first.rows
                self._of_tasks.add(self._now.receipts - first.receipts, rows, self._now.tasks - first.tasks, now)
                self._of_instances.add(self._now.parts - first.parts, rows, self._now.instances - first.instances, now)

    def report(self, report: m.Report) -> None:
        """Take an instance's busy time in this life."""
        with self._lock:
            life, before = self._heard.get(report.instance, ("", 0))
            if life == report.life:
                busy = max(report.busy_ms - before, 0) / 1000
                self._now = self._now._replace(instances=self._now.instances + busy)
            self._heard[report.instance] = report.life, report.busy_ms

    def lost(self, instance: InstanceId) -> None:
        """An instance is lost."""
        with self._lock:
            self._heard.pop(instance, None)
            self._samples.clear()

    def begin_again(self) -> None:
        """Groups have changed: earlier measurements do not predict the load any more."""
        with self._lock:
            self._samples.clear()

    def recent(self, lag: int | None = None) -> WorkReport | None:
        """Over the last WORK_SECONDS, or the last epochs if they are longer; None: unknown.

        `lag`: records that wait in sources now. It counts while no epoch is under way, and so does the time. The time
        of an epoch counts at its end, with its records: an epoch that stands still must not look like a quiet source.
        """
        with self._lock:
            now, began = self._clock(), self._began
            until, last = (now, self._now) if began is None else (began, self._ended)
            if not self._samples or until <= (first := self._samples[0]).at:
                return None
            if began is None:
                last = last._replace(lag=last.lag if lag is None else lag)
            elif last.at <= first.at or now - began > max(STANDS_SECONDS, STANDS_TIMES * self._usual()):
                return None
            seconds = until - first.at
            for_tasks = self._of_tasks.fixed() * (last.receipts - first.receipts)
            for_instances = self._of_instances.fixed() * (last.parts - first.parts)
        done, tasks, instances = (getattr(last, n) - getattr(first, n) for n in ("rows", "tasks", "instances"))
        grown = 0 if first.lag is None or last.lag is None else last.lag - first.lag
        for_tasks, for_instances = min(for_tasks, tasks), min(for_instances, instances)
        return WorkReport(
            seconds=seconds,
            records_per_second=done / seconds,
            arriving_per_second=max(done + grown, 0.0) / seconds,
            backlog=last.lag,
            tasks=(tasks - for_tasks) / seconds,
            instances=(instances - for_instances) / seconds,
            epochs=(for_tasks + for_instances) / seconds,
            instance_epochs=for_instances / seconds,
        )

    def _usual(self) -> float:
        """Seconds of a usual recent epoch."""
        return statistics.median(self._lasted) if self._lasted else 0.0

    def collect(self) -> Iterator[Metric]:
        """Busy seconds, by tasks and instances."""
        family = CounterMetricFamily(
            "ferry_busy_seconds", "Seconds in which tasks or instances worked instead of waiting", labels=["part"]
        )
        with self._lock:
            now = self._now
        family.add_metric(["tasks"], now.tasks)
        family.add_metric(["instances"], now.instances)
        yield family
