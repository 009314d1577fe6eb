"""What the holder of the Lease runs: watches, regular listings, and threads that work through the queue.

Composition only. It ends when it is closed; a new one begins with an empty store and asks the cluster anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ferry.contract.errors import Fault
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import Fenced
from ferry_operator.kube.api.port import BUDGETS, FORBIDDEN, JOBS, NODES, NOT_FOUND, PODS, Api, ApiError, Deposed
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.queue import WorkQueue
from ferry_operator.kube.process.watch import JobWatch
from ferry_operator.kube.reconcile import Reconciler
from ferry_operator.kube.store import Store

log = logging.getLogger("ferry.operator")

THREADS = 4

RESYNC_SECONDS = 30.0
"""Between two listings of everything: what a watch has missed is seen then."""

NODES_SECONDS = 4.0
"""Between two listings of the nodes, which are not watched: their heartbeats are many, and few of them matter."""

REFUSED_SECONDS = 60.0
"""Between two tries to list nodes that may not be read."""

STALE_SECONDS = 90.0
"""A leader whose last listing is older is not well."""

STUCK_SECONDS = 90.0
"""A pass that lasts longer waits for something that has no end, such as a name server; so may all others soon."""

END_SECONDS = 12.0
"""For the passes under way to end: longer than any call takes."""


class Leader:
    """The work of one term of leadership."""

    def __init__(self, api: Api, release: Installation, token: int, held: Callable[[], bool], metrics: Metrics) -> None:
        self.queue = WorkQueue()
        self.store = Store()
        self.token = token
        self._api = api
        self._release = release
        self._held = held
        self._metrics = metrics
        self._link = DriverClient()
        self._nodes_at = 0.0
        fenced = Fenced(api, held)
        self._reconciler = Reconciler(fenced, self.store, release, self._link, metrics, token)
        self._watch = JobWatch(release.namespace, self.store, self.queue)
        self._end = threading.Event()
        self._listed_at = time.monotonic()
        self._listing = threading.Thread(target=self._keep_listing, name="listing", daemon=True)
        self._threads = [threading.Thread(target=self._work, name=f"pass-{i}", daemon=True) for i in range(THREADS)]

    def start(self) -> None:
        """Begin; returns at once."""
        self._listing.start()

    @property
    def well(self) -> bool:
        """Whether everything goes on as it should."""
        working = self._listing.is_alive() and (not self._watch.started or self._watch.alive)
        return working and time.monotonic() - self._listed_at < STALE_SECONDS and self.queue.longest() < STUCK_SECONDS

    def close(self, before_watch: Callable[[], None] = lambda: None) -> bool:
        """End all passes, then call `before_watch`, then end the watches; False when a pass would not end."""
        self._end.set()
        self.queue.close()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._threads:
            if thread.ident:
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended:
            before_watch()
        if self._watch.started:
            self._watch.close()
        self._link.close()
        self._metrics.jobs.clear()
        return ended

    # ---- listings
    def _keep_listing(self) -> None:
        """List everything, then begin to work; list again every now and then."""
        everything_at = 0.0
        while not self._end.is_set():
            try:
                self._list_nodes()
                if time.monotonic() >= everything_at:
                    self._list_all()
                    everything_at = time.monotonic() + RESYNC_SECONDS
                    if not self._watch.started:
                        self._watch.start()
                        for thread in self._threads:
                            thread.start()
                self._listed_at = time.monotonic()
            except ApiError as error:
                if error.status == NOT_FOUND and not self._watch.started:
                    log.warning("StreamJobs are not known here yet: install the custom resource definition")
                    self._listed_at = time.monotonic()
                else:
                    log.info("listing: %s", error)
            self._end.wait(NODES_SECONDS)

    def _list_all(self) -> None:
        ours = f"{names.MANAGED}={names.MANAGER}"
        for kind, selector in ((JOBS, ""), (PODS, ours), (BUDGETS, ours)):
            before = self.store.uids(kind)
            self.store.listed(kind, self._api.find(kind, selector), before)
        for name in self.store.jobs():
            self.queue.add(name)

    def _list_nodes(self) -> None:
        """Nodes; jobs come to their turn when one of them was cordoned, lost or found again."""
        if not self._release.read_nodes or time.monotonic() < self._nodes_at:
            return
        try:
            found = [facts.node(document) for document in self._api.find(NODES)]
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            if not self._nodes_at:
                log.info("nodes may not be read: those that are cordoned or drained are not seen")
            self._nodes_at, self.store.nodes = time.monotonic() + REFUSED_SECONDS, None
            return
        self._nodes_at = 0.0
        new, old = {node.name: node for node in found}, self.store.nodes
        self.store.nodes = new
        if old != new:
            for name in self.store.jobs():
                self.queue.add(name)

    # ---- passes
    def _work(self) -> None:
        while (name := self.queue.take()) is not None:
            began = time.monotonic()
            try:
                again = self._reconciler.reconcile(name)
                self.queue.done(name, again)
            except Deposed:
                self.queue.done(name, None)
            except Fault as error:
                log.info("%s: again in a while: %s", name, error)
                self._metrics.count_error(type(error).__name__)
                self.queue.failed(name)
            except Exception as error:
                log.exception("%s: a pass failed", name)
                self._metrics.count_error(type(error).__name__)
                self.queue.failed(name)
            self._metrics.count_pass(time.monotonic() - began)
