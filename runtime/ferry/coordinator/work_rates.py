"""How fast records come and how long they keep tasks and instances busy: what a decision about size is made from (DS2).

The *useful time* of DS2 (Kalavri et al., OSDI 2018, section 3): of a task from when it is dealt records to its receipt, of
an instance all but the waiting for messages; of both without what an epoch costs before its first record, which is the
greater part of a short one, and says nothing of the load. Thread-safe. Must never influence the protocol.
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
"""Epochs may be shorter: samples are so far apart at least."""

EPOCHS_MIN = 8
"""So many epochs are spoken of at least, however long they are: what one has brought is known at its end."""

FRESH = 0.1
"""Weight of the newest sample in what epochs of a size cost."""

APART = 2
"""Epochs whose numbers of records differ by less than this power of two do not tell what the records cost."""

FORGET_SECONDS = 180.0
"""What epochs of a size cost is not known any more when there were none for so long: nodes and pipelines warm up."""

FIXED_MAX = 0.5
"""Of what the largest epochs cost, the most that may be theirs and not the records': errors hide no great load."""

STANDS_SECONDS, STANDS_TIMES = 10.0, 4
"""An epoch under way that is older, and than so many usual ones, stands still: nothing is said of the load meanwhile."""


class _Sample(NamedTuple):
    """Totals, as of the end of an epoch."""

    at: float
    rows: int = 0
    receipts: int = 0
    """tasks that took part, once for each epoch"""
    parts: int = 0
    """the same of instances"""
    tasks: float = 0.0
    instances: float = 0.0
    lag: int | None = None


class EpochCost:
    """What an epoch costs one that takes part in it: so much before its first record, and so much for each.

    A line through the averages of the smallest and the largest epochs of late, by powers of two. As long as all have been
    alike, or the line does not rise, it is not known, and all counts as the records'.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[float, float, float]] = {}
        """(records, seconds) of one that takes part, and when there was such an epoch last"""

    def add(self, parts: int, rows: int, busy: float, now: float = 0.0) -> None:
        """What so many have taken part in took, all together."""
        if parts <= 0:
            return
        records, seconds = rows / parts, busy / parts
        size = int(math.log2(1 + records))
        many, long, _ = self._by_size.get(size, (records, seconds, now))
        self._by_size[size] = FRESH * records + (1 - FRESH) * many, FRESH * seconds + (1 - FRESH) * long, now
        self._by_size = {one: cost for one, cost in self._by_size.items() if now - cost[2] < FORGET_SECONDS}

    def fixed(self) -> float:
        """Seconds before the first record; 0.0 as long as it is not known."""
        if not self._by_size or max(self._by_size) - min(self._by_size) < APART:
            return 0.0
        (few, short, _), (many, long, _) = self._by_size[min(self._by_size)], self._by_size[max(self._by_size)]
        if long <= short:
            return 0.0
        return min(max(short - (long - short) / (many - few) * few, 0.0), long * FIXED_MAX)


class WorkRates(Collector):
    """Of one driver. `clock`: seconds, never going back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = self._ended = _Sample(clock())
        self._samples: deque[_Sample] = deque()
        self._began: float | None = None
        """when the epoch that is under way has begun"""
        self._lasted: deque[float] = deque(maxlen=EPOCHS_MIN)
        self._heard: dict[InstanceId, tuple[str, int]] = {}
        """life and busy milliseconds, as last reported"""
        self._of_tasks = EpochCost()
        self._of_instances = EpochCost()

    def begins(self) -> None:
        """An epoch is under way from now on."""
        with self._lock:
            self._began = self._clock()

    def epoch(self, rows: int, receipts: int, busy: float, lag: int | None) -> None:
        """An epoch has ended: its records, its tasks, how long they were busy; `lag`: what waits in sources, if known."""
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
        """An instance says how long it was busy in this life."""
        with self._lock:
            life, before = self._heard.get(report.instance, ("", 0))
            if life == report.life:
                busy = max(report.busy_ms - before, 0) / 1000
                self._now = self._now._replace(instances=self._now.instances + busy)
            self._heard[report.instance] = report.life, report.busy_ms

    def lost(self, instance: InstanceId) -> None:
        """An instance is gone."""
        with self._lock:
            self._heard.pop(instance, None)
            self._samples.clear()

    def begin_again(self) -> None:
        """Groups have changed: what was measured before says nothing of what comes."""
        with self._lock:
            self._samples.clear()

    def recent(self, lag: int | None = None) -> WorkReport | None:
        """Over the last WORK_SECONDS, or the last epochs where these are long; None: nothing can be said.

        `lag`: what waits in sources now. It counts while no epoch is under way, as the time does; an epoch's own time counts
        with its records, at its end: one that stands still is no quiet source.
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
        """Seconds of an epoch of late."""
        return statistics.median(self._lasted) if self._lasted else 0.0

    def collect(self) -> Iterator[Metric]:
        """Busy seconds, by who was busy."""
        family = CounterMetricFamily(
            "ferry_busy_seconds", "Seconds in which tasks or instances worked, and did not wait", labels=["part"]
        )
        with self._lock:
            now = self._now
        family.add_metric(["tasks"], now.tasks)
        family.add_metric(["instances"], now.instances)
        yield family
