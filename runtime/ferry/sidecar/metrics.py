"""Counters of an instance, in a file for its parent; and the parent's metrics of all its instances.

Must never be used for a decision: the file may be a second old, or of the life before.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.status import Links
from ferry.system import files

log = logging.getLogger("ferry.sidecar")

FILE = "metrics.json"

LABELS = ("kind", "device", "gid", "mtu", "notify", "reason")
"""Labels of a link."""


class LinkCount(NamedTuple):
    """A number of links of one kind."""

    labels: tuple[str, ...]
    """as LABELS"""
    links: int


@dataclass(frozen=True, slots=True)
class InstanceMetrics:
    """Counters of one life of an instance."""

    state_bytes: int = 0
    snapshot_sent_bytes: int = 0
    snapshot_received_bytes: int = 0
    links: tuple[LinkCount, ...] = ()
    lent_bytes: int = 0
    """bytes sent directly from the log of deltas"""
    huge_bytes: int = 0
    """bytes of rings in huge pages now"""

    def write(self, directory: Path) -> None:
        """Replace the file."""
        with files.replacing(directory / FILE) as new:
            new.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(directory: Path) -> InstanceMetrics:
        """Counters from the file; zeros when it does not exist yet."""
        try:
            doc = json.loads((directory / FILE).read_text())
            links = tuple(LinkCount(tuple(labels), count) for labels, count in doc.pop("links", ()))
            return InstanceMetrics(**doc, links=links)
        except FileNotFoundError:
            return InstanceMetrics()


class MetricsFile:
    """The file of one instance, whose loop does not wait for a busy disk: intermediate values are left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._thread = ThreadPoolExecutor(1, "metrics")
        self._writing: Future[None] | None = None
        self._problem = ""

    def replace(self, metrics: InstanceMetrics) -> None:
        """Begin to write it. A failure is logged once per reason."""
        if self._writing is not None:
            if not self._writing.done():
                return
            before, self._problem = self._problem, str(self._writing.exception() or "")
            if self._problem not in ("", before):
                log.warning("%s: metrics could not be written: %s", self._directory, self._problem)
        self._writing = self._thread.submit(metrics.write, self._directory)


class LoadCounter:
    """Counters of an instance's work: for its loop only."""

    def __init__(self, virtual_nodes: int) -> None:
        self._computed = np.zeros(virtual_nodes, np.int64)
        self._received = np.zeros(virtual_nodes, np.int64)
        self.received_bytes = 0

    def computed(self, offsets: npt.NDArray[np.int64]) -> None:
        """A delta of a step: the rows of virtual node v are `offsets[v]:offsets[v + 1]`."""
        self._computed += np.diff(offsets)

    def received(self, records: npt.NDArray[np.int64]) -> None:
        """Records received for virtual nodes that are led here: int64[V]."""
        self._received += records

    def report(
        self,
        me: InstanceId,
        life: str,
        sizes: npt.NDArray[np.int64],
        links: Links,
        timer: int | None = None,
        busy_ms: int = 0,
        boundaries: tuple[tuple[int, InstanceId, int | None], ...] = (),
    ) -> m.Report:
        """`sizes`: bytes held, int64[V]. Virtual nodes without any are left out. `timer`: the first one."""
        held = np.flatnonzero((sizes > 0) | (self._computed > 0) | (self._received > 0))
        vnodes, held_sizes, computed, received = (
            tuple(column.tolist()) for column in (held, sizes[held], self._computed[held], self._received[held])
        )
        link = links.rdma, links.tcp, links.reason
        return m.Report(
            me,
            life,
            vnodes,
            held_sizes,
            computed,
            *link,
            timer,
            busy_ms,
            received,
            boundaries,
            small_pages=links.small_pages,
        )


@dataclass(slots=True)
class InstanceLife:
    """State of an instance as its parent sees it."""

    up: bool = False
    restarts: int = 0


class InstancesCollector:
    """Metrics of the instances of one worker, read when they are scraped."""

    def __init__(self, worker: int, directory: Path, lives: Callable[[], Mapping[int, InstanceLife]]) -> None:
        self._worker = worker
        self._directory = directory
        self._lives = lives

    def collect(self) -> Iterator[Metric]:
        """One sample of each metric per instance."""
        label = ["instance"]
        up = GaugeMetricFamily("ferry_instance_up", "1 while its process runs", labels=label)
        restarts = CounterMetricFamily("ferry_instance_restarts", "Times it was started again", labels=label)
        size = GaugeMetricFamily("ferry_instance_state_bytes", "State held, as leader and as replica", labels=label)
        sent = CounterMetricFamily("ferry_snapshot_sent_bytes", "Copied from it to learners", labels=label)
        received = CounterMetricFamily("ferry_snapshot_received_bytes", "Copied to it as a learner", labels=label)
        carried = GaugeMetricFamily("ferry_transport_info", "Links to other instances", labels=[*label, *LABELS])
        lent = CounterMetricFamily("ferry_transport_lent_bytes", "Sent from the log without a copy", labels=label)
        huge = GaugeMetricFamily("ferry_transport_huge_bytes", "Rings of links in huge pages", labels=label)
        for index, life in sorted(self._lives().items()):
            name, metrics = [f"{self._worker}.{index}"], InstanceMetrics.read(self._directory / str(index))
            up.add_metric(name, float(life.up))
            restarts.add_metric(name, life.restarts)
            size.add_metric(name, metrics.state_bytes)
            sent.add_metric(name, metrics.snapshot_sent_bytes)
            received.add_metric(name, metrics.snapshot_received_bytes)
            lent.add_metric(name, metrics.lent_bytes)
            huge.add_metric(name, metrics.huge_bytes)
            for row in metrics.links:
                carried.add_metric([*name, *row.labels], row.links)
        yield from (up, restarts, size, sent, received, carried, lent, huge)
