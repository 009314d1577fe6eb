"""Measurements of moves, recoveries and state, for Prometheus and for the planner.

Input comes from the loop (changed groups, lost instances, reports) and from the epoch function. Thread-safe. Must never
influence the protocol: nothing is decided here.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import prometheus_client as prom
from prometheus_client.core import GaugeMetricFamily, Metric

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.plans import Boundary
from ferry.contract.routing import Table
from ferry.contract.status import Links, ReportedProblem
from ferry.coordinator.work_rates import WorkRates
from ferry.protocol.coordinator.groups import GroupChange

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

DISTANCES = 64
"""Number of intervals between ends of epochs whose median is the usual one."""

SMOOTH_SECONDS = 20.0
"""Time constant of smoothed rates: a plan must not follow a peak of some seconds."""

COPIED_MIN = 4 * 1024 * 1024
"""Copies of fewer bytes do not measure the time per byte."""

Load = tuple[float, float]
"""Of a virtual node: (records per second, bytes)."""


@dataclass(slots=True)
class LastReport:
    """The last report of an instance, and its change since the one before."""

    report: m.Report
    at: float
    sizes: dict[int, int]
    """Bytes by virtual node."""


class MoveMetrics:
    """Measurements of one driver. `clock`: seconds, never going back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = prom.CollectorRegistry()
        self._clock = clock
        self._lock = threading.Lock()
        self._joined: dict[tuple[int, InstanceId], tuple[float, int]] = {}
        self._in_sync: dict[int, float] = {}
        self._switched: dict[int, float] = {}
        self._under_way = False
        self._pause = 0.0
        self._usual = math.inf
        self._distances: deque[float] = deque(maxlen=DISTANCES)
        self._last_end: float | None = None
        self._lost: float | None = None
        self._changed = clock()
        self._copies: set[tuple[int, InstanceId]] = set()
        """Copies under way by snapshots."""
        self._copying: float | None = None
        self._copied = 0
        self._seconds_per_byte: float | None = None
        self._seconds_per_switchover: float | None = None
        self._reports: dict[InstanceId, LastReport] = {}
        self._damaged: dict[InstanceId, ReportedProblem] = {}
        self.work = WorkRates(clock)
        self.registry.register(self.work)
        self._since: float | None = None
        self._counts: dict[int, InstanceId] = {}
        """By virtual node: the instance that last counted its records."""
        self._rates: dict[int, float] = {}
        """Records per second, by virtual node; smoothed."""
        self._epochs = self._histogram("epoch_duration", "From the begin of an epoch to its end in the sink")
        self._pauses = self._histogram(
            "handover_pause",
            "Longest distance between two ends of epochs while a handover was under way, beyond the usual one before it",
        )
        self._warms = self._histogram("handover_warm", "From the begin of a copy to its being in sync")
        self._switchovers = self._histogram("handover_switchover", "From the copy being in sync to its leading")
        self._cleans = self._histogram("handover_clean", "From the switchover to the removal of the old copy")
        self._recoveries = self._histogram("recovery", "From the loss of a leader to the next end of an epoch")
        self._moved = prom.Counter(
            "ferry_handover_vnodes", "Virtual nodes switched to another leader", registry=self.registry
        )

    def _histogram(self, name: str, text: str) -> prom.Histogram:
        return prom.Histogram(f"ferry_{name}_seconds", text, buckets=SECONDS, registry=self.registry)

    # ---- input from the loop
    def report(self, report: m.Report) -> None:
        """Take an instance's report of its state and busy time."""
        self.work.report(report)
        now = self._clock()
        with self._lock:
            before = self._reports.get(report.instance)
            if before is not None and now > before.at and report.life == before.report.life:
                self._measure_rates(before, report, now)
            if not report.damage:
                self._damaged.pop(report.instance, None)
            elif report.instance not in self._damaged:
                text = f"{report.instance}: {report.damage}; it began anew, and its copies are made from others"
                self._damaged[report.instance] = ReportedProblem("StateDamaged", text, time.time())
            sizes = dict(zip(report.vnodes, report.state_bytes, strict=True))
            self._reports[report.instance] = LastReport(report, now, sizes)

    def damages(self) -> tuple[ReportedProblem, ...]:
        """Instances that began anew because of damaged files; from any thread."""
        with self._lock:
            return tuple(self._damaged.values())

    def _measure_rates(self, before: LastReport, report: m.Report, now: float) -> None:
        """Rates belong to virtual nodes: a new leader continues the rate of the old one."""
        seconds = now - before.at
        if self._since is None:
            self._since = before.at
        # A plain average until the reports span SMOOTH_SECONDS: the first seconds are often not typical.
        weight = max(-math.expm1(-seconds / SMOOTH_SECONDS), seconds / (now - self._since))
        was = dict(zip(before.report.vnodes, _counted(before.report), strict=True))
        for vnode, count in zip(report.vnodes, _counted(report), strict=True):
            more = count - was.get(vnode, 0)
            if more > 0 or self._counts.get(vnode) == report.instance:
                self._counts[vnode] = report.instance
                rate = self._rates.get(vnode, 0.0)
                self._rates[vnode] = rate + weight * (more / seconds - rate)

    def next_timer(self) -> int | None:
        """When the first timer of the clock is due, according to living instances."""
        with self._lock:
            timers = [heard.report.timer for heard in self._reports.values()]
        return min((timer for timer in timers if timer is not None), default=None)

    def boundaries(self) -> list[Boundary]:
        """Virtual nodes that are handed over at the boundary of a window, according to their leaders."""
        with self._lock:
            reports = [heard.report for _, heard in sorted(self._reports.items())]
        return [Boundary(v, one.instance, to, begins) for one in reports for v, to, begins in one.boundaries]

    def lost(self, instance: InstanceId, table: Table) -> None:
        """An instance is lost; its virtual nodes have to be recovered."""
        self.work.lost(instance)
        with self._lock:
            self._reports.pop(instance, None)
            if self._lost is None and any(group.leader == instance for group in table.groups):
                self._lost = self._clock()

    def changed(
        self, changes: Sequence[GroupChange], epoch: int, at_window: Container[tuple[int, InstanceId]] = ()
    ) -> None:
        """Groups changed after this epoch. `at_window`: virtual nodes and learners without a snapshot."""
        self.work.begin_again()
        now = self._clock()
        with self._lock:
            for change in changes:
                self._changed = now
                self._change(change, now, epoch, (change.vnode, change.instance) in at_window)
            if self._copying is not None and not self._copies:
                self._measure_copies(now - self._copying)
            if not self._under_way and any(c.kind in ("joined", "switched") for c in changes):
                self._under_way, self._usual = True, median(self._distances or (math.inf,))

    def _change(self, change: GroupChange, now: float, epoch: int, at_window: bool) -> None:
        vnode, key = change.vnode, (change.vnode, change.instance)
        match change.kind:
            case "joined":
                self._joined[key] = now, epoch
                if not at_window:
                    self._copies.add(key)
                    if self._copying is None:
                        self._copying, self._copied = now, 0
            case "in-sync":
                began, _ = self._joined.pop(key, (now, 0))
                if key in self._copies:
                    self._copies.remove(key)
                    self._copied += max((heard.sizes.get(vnode, 0) for heard in self._reports.values()), default=0)
                    self._warms.observe(now - began)
                self._in_sync[vnode] = now
            case "switched":
                self._switchovers.observe(now - self._in_sync.pop(vnode, now))
                self._switched[vnode] = now
                self._moved.inc()
            case "cleaned" if vnode in self._switched:
                self._cleans.observe(now - self._switched.pop(vnode))
            case "aborted" | "removed":
                self._joined.pop(key, None)
                self._copies.discard(key)

    def _measure_copies(self, seconds: float) -> None:
        """The last copy under way is in sync, or was abandoned."""
        if self._copied >= COPIED_MIN:
            self._seconds_per_byte = seconds / self._copied
        self._copying = None

    # ---- input from the epoch function
    def epoch(self, seconds: float, settled: Callable[[], bool]) -> None:
        """An epoch of this length has ended; `settled` returns whether the groups are exactly as desired."""
        now = self._clock()
        self._epochs.observe(seconds)
        with self._lock:
            if self._lost is not None:
                self._recoveries.observe(now - self._lost)
                self._lost = None
            distance = now - self._last_end if self._last_end is not None else 0.0
            if self._under_way:
                self._pause = max(self._pause, distance - self._usual)
            elif self._last_end is not None:
                self._distances.append(distance)
            over = self._under_way and not self._joined
            self._last_end = now
        if over and settled():
            with self._lock:
                if self._usual < math.inf:  # inf: unknown, the driver has just begun
                    self._pauses.observe(self._pause)
                    if self._switched:
                        self._seconds_per_switchover = self._pause / len(self._switched)
                self._under_way, self._pause = False, 0.0
                self._in_sync.clear()
                self._switched.clear()

    # ---- results
    def replica_lag(self, epoch: int) -> int:
        """Epochs since the oldest copy that is not in sync yet was begun; 0 when all are."""
        with self._lock:
            return max((epoch - since for key, (_, since) in self._joined.items() if key in self._copies), default=0)

    def quiet_seconds(self) -> float:
        """Seconds since the last change of a group, or since this driver began."""
        with self._lock:
            return self._clock() - self._changed

    def costs(self) -> tuple[float | None, float | None]:
        """(seconds per copied byte, seconds of pause per new leader) of the last plans; None: not measured yet."""
        with self._lock:
            return self._seconds_per_byte, self._seconds_per_switchover

    def links(self) -> Links:
        """The transports of the links between the instances, as reported; the reason is the most frequent one."""
        with self._lock:
            reports = [heard.report for _, heard in sorted(self._reports.items())]
        return Links(
            sum(report.rdma for report in reports),
            sum(report.tcp for report in reports),
            _commonest(report.reason for report in reports),
            _commonest(report.small_pages for report in reports),
        )

    def loads(self, table: Table, rows_per_second: float) -> list[Load]:
        """Of every virtual node: records that came for its leaders, of all operators; bytes as its leader reports them.

        Until records are reported, each has an equal share of `rows_per_second`, the input.
        """
        with self._lock:
            heard = [self._reports.get(group.leader) for group in table.groups]
            rates = [self._rates.get(v, 0.0) for v in range(table.virtual_nodes)]
        if not any(rates):
            rates = [rows_per_second / max(table.virtual_nodes, 1)] * table.virtual_nodes
        sizes = [float(h.sizes.get(v, 0)) if h is not None else 0.0 for v, h in enumerate(heard)]
        return list(zip(rates, sizes, strict=True))


def _commonest(reasons: Iterable[str]) -> str:
    counts = Counter(filter(None, reasons))
    return counts.most_common(1)[0][0] if counts else ""


def _counted(report: m.Report) -> tuple[int, ...]:
    return report.received or report.computed


class StateCollector:
    """State and load per virtual node, read when they are scraped."""

    def __init__(self, table: Callable[[], Table], loads: Callable[[], list[Load]]) -> None:
        self._table = table
        self._loads = loads

    def collect(self) -> Iterator[Metric]:
        """Two gauges, one sample of each for a virtual node."""
        size = GaugeMetricFamily("ferry_state_bytes", "State of a virtual node", labels=["vnode", "instance"])
        rate = GaugeMetricFamily(
            "ferry_state_rows_per_second",
            "Records per second that arrive for a virtual node, of all operators",
            labels=["vnode"],
        )
        table = self._table()
        for vnode, (group, (rows, used)) in enumerate(zip(table.groups, self._loads(), strict=True)):
            size.add_metric([str(vnode), group.leader], used)
            rate.add_metric([str(vnode)], rows)
        yield size
        yield rate
