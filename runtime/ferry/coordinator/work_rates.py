"""How fast records come and how long they keep tasks and instances busy: what a decision about size is made from (DS2).

The *useful time* of DS2 (Kalavri et al., OSDI 2018, section 3): of a task from when it is dealt records to its receipt, of
an instance all but the waiting for messages; of both without what an epoch costs before its first record, which is the
greater part of a short one, and says nothing of the load. Thread-safe. Must never influence the protocol.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ferry.contract import messages as m
from ferry.contract.documents import WORK_SECONDS, WorkReport
from ferry.contract.names import InstanceId

SAMPLE_SECONDS = 0.5
"""Epochs may be shorter: samples are so far apart at least."""

EPOCHS_MIN = 8
"""So many epochs are spoken of at least, however long they are: what one has brought is known at its end."""

FRESH = 0.1
"""Weight of the newest sample in what epochs of a size cost."""

APART = 2
"""Epochs whose numbers of records differ by less than this power of two do not tell what the records cost."""


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

    A line through the averages of the smallest and the largest epochs, by powers of two. As long as all have been alike, it
    is not known, and all counts as the records'.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[float, float]] = {}
        """(records, seconds) of one that takes part"""

    def add(self, parts: int, rows: int, busy: float) -> None:
        """What so many have taken part in took, all together."""
        if parts <= 0:
            return
        mine = rows / parts, busy / parts
        size = int(math.log2(1 + mine[0]))
        old = self._by_size.get(size, mine)
        self._by_size[size] = FRESH * mine[0] + (1 - FRESH) * old[0], FRESH * mine[1] + (1 - FRESH) * old[1]

    def fixed(self) -> float:
        """Seconds before the first record; 0.0 as long as it is not known."""
        if not self._by_size or max(self._by_size) - min(self._by_size) < APART:
            return 0.0
        (few, short), (many, long) = self._by_size[min(self._by_size)], self._by_size[max(self._by_size)]
        each = max(long - short, 0.0) / (many - few)
        return max(min(short - each * few, long), 0.0)


class WorkRates(Collector):
    """Of one driver. `clock`: seconds, never going back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = _Sample(clock())
        self._samples: deque[_Sample] = deque()
        self._heard: dict[InstanceId, tuple[str, int]] = {}
        """life and busy milliseconds, as last reported"""
        self._of_tasks = EpochCost()
        self._of_instances = EpochCost()

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
            if self._samples and now - self._samples[-1].at < SAMPLE_SECONDS:
                return
            self._samples.append(self._now)
            while len(self._samples) > EPOCHS_MIN and self._samples[1].at <= now - WORK_SECONDS:
                self._samples.popleft()
            first = self._samples[0]
            if now - first.at >= WORK_SECONDS:
                rows = self._now.rows - first.rows
                self._of_tasks.add(self._now.receipts - first.receipts, rows, self._now.tasks - first.tasks)
                self._of_instances.add(self._now.parts - first.parts, rows, self._now.instances - first.instances)

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

    def recent(self) -> WorkReport | None:
        """Over the last WORK_SECONDS, or the last epochs where these are long; None: nothing was measured yet."""
        with self._lock:
            if not self._samples or (now := self._clock()) <= self._samples[0].at:
                return None
            first, last, seconds = self._samples[0], self._now, now - self._samples[0].at
            for_tasks = self._of_tasks.fixed() * (last.receipts - first.receipts)
            for_instances = self._of_instances.fixed() * (last.parts - first.parts)
        done, tasks, instances = (getattr(last, n) - getattr(first, n) for n in ("rows", "tasks", "instances"))
        known = first.lag is not None and last.lag is not None and last.at > first.at
        grown = ((last.lag or 0) - (first.lag or 0)) / (last.at - first.at) if known else 0.0
        return WorkReport(
            seconds=seconds,
            records_per_second=done / seconds,
            arriving_per_second=max(done / seconds + grown, 0.0),
            backlog=last.lag,
            tasks=max(tasks - for_tasks, 0.0) / seconds,
            instances=max(instances - for_instances, 0.0) / seconds,
            epochs=(min(for_tasks, tasks) + min(for_instances, instances)) / seconds,
        )

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
