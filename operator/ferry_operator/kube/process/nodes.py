"""Watches the nodes, in a thread of its own: a slow API server delays no job.

One listing, then changes alone: kubelets report heartbeats in Leases, so a node seldom changes. The API server ends each
watch after a while, and the next one goes on from the last version.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import FORBIDDEN, GONE, NODES, ApiError, ClusterApi
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.queue import URGENT, WorkQueue
from ferry_operator.kube.store import Stores

log = logging.getLogger("ferry.operator")

SECONDS, SHARE = 4.0, 0.05
"""Minimum between two listings, and the maximum share of the time that listings take."""

WATCH_SECONDS = 30
"""Length of one watch. A connection that broke in silence is noticed after this time."""

REFUSED_SECONDS = 60.0
"""Between two attempts while the operator may not list nodes."""

STALE_SECONDS = 60.0
"""Without an answer of the API server, the known nodes are dropped after this time."""

FIRST_SECONDS = 2.0
"""Maximum wait of the first reconciles for the first list of nodes."""


class NodeWatch:
    """Keeps `Stores.nodes` up to date, from `start` to `close`; None while the nodes are not known."""

    def __init__(
        self, api: ClusterApi, stores: Stores, queue: WorkQueue, leaving: Sequence[str] = names.LEAVING
    ) -> None:
        """`leaving`: taints of nodes that will be removed, as in `facts.node`."""
        self._api = api
        self._leaving = leaving
        self._stores = stores
        self._queue = queue
        self._first = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
        self._refused = False
        self._heard_at = time.monotonic()
        self._pause = SECONDS
        """between the last listing and another one"""
        self._version = ""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_for_first(self) -> None:
        """Wait for the first list, at most FIRST_SECONDS."""
        self._first.wait(FIRST_SECONDS)

    def close(self) -> None:
        """End the thread, without a wait for a running request."""
        self._end.set()

    def list(self) -> float | None:
        """List the nodes; returns seconds until the next attempt, None: the list is complete, and `follow` goes on."""
        began = time.monotonic()
        try:
            documents, self._version = self._api.listed(NODES)
            self._take({node.name: node for node in (facts.node(one, self._leaving) for one in documents)})
        except ApiError as error:
            return self._without(error)
        except Exception:
            log.exception("the nodes could not be parsed")
            return REFUSED_SECONDS
        self._heard_at, self._refused = time.monotonic(), False
        self._pause = max(SECONDS, (self._heard_at - began) / SHARE)
        return None

    def follow(self) -> float | None:
        """Take changes until the watch ends; returns seconds until the next listing, None: another watch goes on."""
        known = dict(self._stores.nodes.known or {})
        try:
            for change, document in self._api.changes(NODES, self._version, WATCH_SECONDS):
                if self._end.is_set():
                    return None
                self._version = document["metadata"]["resourceVersion"]
                name = document["metadata"].get("name", "")
                if change == "DELETED":
                    known.pop(name, None)
                elif change != "BOOKMARK":
                    known[name] = facts.node(document, self._leaving)
                self._take(dict(known))
        except ApiError as error:
            wait = self._without(error)
            return self._pause if error.status == GONE else max(wait, self._pause)
        except Exception:
            log.exception("a node could not be parsed")
            return REFUSED_SECONDS
        self._heard_at = time.monotonic()
        return None

    def _run(self) -> None:
        while not self._end.is_set():
            wait = self.list()
            self._first.set()
            while wait is None and not self._end.is_set():
                wait = self.follow()
            self._end.wait(wait)

    def _without(self, error: ApiError) -> float:
        """Handle a failed request; returns seconds until the next attempt. FORBIDDEN drops the known nodes at once."""
        if error.status != FORBIDDEN:
            log.info("nodes: %s", error)
            if time.monotonic() - self._heard_at > STALE_SECONDS:
                self._take(None)
            return SECONDS
        if not self._refused:
            log.info("the operator may not list and watch nodes: it does not notice cordoned or drained nodes")
        self._refused = True
        self._take(None)
        return REFUSED_SECONDS

    def _take(self, new: dict[str, facts.KubeNode] | None) -> None:
        """Store the nodes, and queue jobs with pods on nodes that were cordoned, lost or became ready again."""
        old, self._stores.nodes.known = self._stores.nodes.known, new
        if old == new or self._end.is_set():
            return
        before, now = old or {}, new or {}
        differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        for key in self._stores.jobs_on(differ):
            self._queue.add(key, priority=URGENT)
