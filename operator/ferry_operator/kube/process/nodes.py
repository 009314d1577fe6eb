"""Lists the nodes, in a thread of its own: nodes that are many, or cannot be listed, keep no job waiting.

They are not watched: their heartbeats are many, and few of them matter.
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
"""Between two listings; longer when a listing takes long, so that it takes no more than this share of the time."""

REFUSED_SECONDS = 60.0
"""Between two tries to list nodes that may not be read."""

STALE_SECONDS = 60.0
"""The last list of nodes is forgotten when no other list has come for so long."""

FIRST_SECONDS = 2.0
"""The first passes wait for the first list, if it comes as soon as this."""


class NodeListing:
    """Keeps `Store.nodes` up to date, from `start` to `close`; it is None while the nodes are not known."""

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
        """Begin."""
        self._thread.start()

    def wait_for_first(self) -> None:
        """Until something is known, or not for long."""
        self._first.wait(FIRST_SECONDS)

    def close(self) -> None:
        """End, without waiting for a listing that is under way."""
        self._end.set()

    def list(self) -> float:
        """Once; seconds until the next time."""
        began = time.monotonic()
        try:
            self._take({node.name: node for node in map(facts.node, self._api.find(NODES))})
        except ApiError as error:
            return self._without(error)
        except Exception:
            log.exception("the nodes could not be read")
            return REFUSED_SECONDS
        self._listed_at, self._refused = time.monotonic(), False
        return max(SECONDS, (self._listed_at - began) / SHARE)

    def _run(self) -> None:
        while not self._end.is_set():
            wait = self.list()
            self._first.set()
            self._end.wait(wait)

    def _without(self, error: ApiError) -> float:
        """Go without them, at once when they may not be read; seconds until the next try."""
        if error.status != FORBIDDEN:
            log.info("nodes: %s", error)
            if time.monotonic() - self._listed_at > STALE_SECONDS:
                self._take(None)
            return SECONDS
        if not self._refused:
            log.info("nodes may not be read: those that are cordoned or drained are not seen")
        self._refused = True
        self._take(None)
        return REFUSED_SECONDS

    def _take(self, new: dict[str, facts.KubeNode] | None) -> None:
        """Jobs with pods on nodes that were cordoned, lost or found again come to their turn."""
        old, self._store.nodes = self._store.nodes, new
        if old == new or self._end.is_set():
            return
        before, now = old or {}, new or {}
        differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        for name in self._store.jobs_on(differ):
            self._queue.add(name, ahead=URGENT)
