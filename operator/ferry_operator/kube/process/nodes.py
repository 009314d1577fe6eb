"""Lists the nodes, in a thread of its own: a slow or failing listing delays no job.

There is no watch of nodes: it would get every heartbeat, and few of them matter.
"""

from __future__ import annotations

import logging
import threading
import time

from ferry_operator.kube.api.port import FORBIDDEN, NODES, Api, ApiError
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.queue import URGENT, WorkQueue
from ferry_operator.kube.store import Store

log = logging.getLogger("ferry.operator")

SECONDS, SHARE = 4.0, 0.05
"""Minimum between two listings, and the maximum share of the time that listings take."""

REFUSED_SECONDS = 60.0
"""Between two attempts while the operator may not list nodes."""

STALE_SECONDS = 60.0
"""Without another listing, the last list of nodes is dropped after this time."""

FIRST_SECONDS = 2.0
"""Maximum wait of the first reconciles for the first list of nodes."""


class NodeListing:
    """Keeps `Store.nodes` up to date, from `start` to `close`; None while there is no list."""

    def __init__(self, api: Api, store: Store, queue: WorkQueue) -> None:
        self._api = api
        self._store = store
        self._queue = queue
        self._first = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._refused = False
        self._listed_at = time.monotonic()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_for_first(self) -> None:
        """Wait for the first list, at most FIRST_SECONDS."""
        self._first.wait(FIRST_SECONDS)

    def close(self) -> None:
        """End the thread, without a wait for a running listing."""
        self._end.set()

    def list(self) -> float:
        """List the nodes once; returns seconds until the next listing."""
        began = time.monotonic()
        try:
            self._take({node.name: node for node in map(facts.node, self._api.find(NODES))})
        except ApiError as error:
            return self._without(error)
        except Exception:
            log.exception("the nodes could not be parsed")
            return REFUSED_SECONDS
        self._listed_at, self._refused = time.monotonic(), False
        return max(SECONDS, (self._listed_at - began) / SHARE)

    def _run(self) -> None:
        while not self._end.is_set():
            wait = self.list()
            self._first.set()
            self._end.wait(wait)

    def _without(self, error: ApiError) -> float:
        """Handle a failed listing; returns seconds until the next attempt. FORBIDDEN drops the old list at once."""
        if error.status != FORBIDDEN:
            log.info("nodes: %s", error)
            if time.monotonic() - self._listed_at > STALE_SECONDS:
                self._take(None)
            return SECONDS
        if not self._refused:
            log.info("the operator may not list nodes: it does not notice cordoned or drained nodes")
        self._refused = True
        self._take(None)
        return REFUSED_SECONDS

    def _take(self, new: dict[str, facts.KubeNode] | None) -> None:
        """Store the list, and queue jobs with pods on nodes that were cordoned, lost or became ready again."""
        old, self._store.nodes = self._store.nodes, new
        if old == new or self._end.is_set():
            return
        before, now = old or {}, new or {}
        differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        for name in self._store.jobs_on(differ):
            self._queue.add(name, priority=URGENT)
