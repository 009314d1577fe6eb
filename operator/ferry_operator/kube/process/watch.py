"""Watches StreamJobs and their pods with kopf, in threads with loops of their own. Handlers update the store and put
the name of the job on the queue. No finalizer, no timer, no state of kopf on any object.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import kopf

from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import record
from ferry_operator.kube.api.names import JobKey
from ferry_operator.kube.api.port import JOBS, PODS
from ferry_operator.kube.process.queue import EDIT, URGENT, WorkQueue
from ferry_operator.kube.store import Stores, changed

log = logging.getLogger("ferry.operator")

END_SECONDS = 10.0

CHUNK = 100
"""Objects in one answer to a list of kopf: the operator does not hold all documents at a time."""

TOGETHER, APART_SECONDS = 5, 0.3
"""Namespaces that an instance of kopf watches, and the time between the starts of two of many instances. An instance lists
all its namespaces at once. With one instance, the lists of 1,000 jobs took 265 MiB, which the process did not give back."""

IDLE_SECONDS = 0.2
"""kopf keeps the document of an object for this time after its last event."""


class JobWatches:
    """Watches any number of namespaces, a few with each instance of kopf."""

    def __init__(self, stores: Stores, queue: WorkQueue) -> None:
        self._stores = stores
        self._queue = queue
        self._parts: list[JobWatch] = []

    @property
    def watched(self) -> frozenset[str]:
        """The namespaces."""
        return frozenset(name for part in self._parts for name in part.namespaces)

    def follow(self, namespaces: frozenset[str]) -> None:
        """Watch exactly these namespaces. The others notice no change; a new watch begins before the old one ends.

        One of the namespaces of a watch that has ended may be the reason: each of them gets a watch of its own.
        """
        ended = [part for part in self._parts if not part.alive]
        kept = [part for part in self._parts if part.alive and part.namespaces <= namespaces]
        new = namespaces.difference(*(part.namespaces for part in kept))
        small = min(kept, key=lambda part: len(part.namespaces), default=None)
        if new and not ended and small is not None and len(new) + len(small.namespaces) <= TOGETHER:
            kept.remove(small)
            new |= small.namespaces
        old, wanted = [part for part in self._parts if part not in kept], sorted(new)
        together = 1 if len(ended) == 1 else TOGETHER
        parts = [wanted[first : first + together] for first in range(0, len(wanted), together)]
        begun = [JobWatch(part, self._stores, self._queue, n * APART_SECONDS) for n, part in enumerate(parts)]
        for watch in begun:
            watch.start()
        self._parts = [*kept, *begun]
        if old:
            threading.Thread(target=_close, args=(old,), name="watch-end", daemon=True).start()

    def call(self, act: Callable[[], None]) -> None:
        """Call a function after each loop of the watches has had a turn. With an ended loop, never."""
        for part in self._parts:
            act = partial(part.call, act)
        act()

    def close(self) -> None:
        """End the watches."""
        _close(self._parts)


def _close(parts: Sequence[JobWatch]) -> None:
    # kopf closes its connections first, and then logs errors of requests on these connections.
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
    for part in parts:
        part.stop()
    deadline = time.monotonic() + END_SECONDS
    for part in parts:
        part.join(max(0.0, deadline - time.monotonic()))
    logging.getLogger("kopf").setLevel(logging.WARNING)  # other namespaces may be watched by now


class JobWatch:
    """Watches a few namespaces from `start` to `stop`. A namespace without rights ends the watches of all of them."""

    def __init__(self, namespaces: Sequence[str], stores: Stores, queue: WorkQueue, after: float = 0.0) -> None:
        """`after`: seconds between `start` and the beginning of the watches."""
        self.namespaces = frozenset(namespaces)
        self._stores = stores
        self._queue = queue
        self._after = after
        self._stop = threading.Event()
        # An instance of kopf cancels all tasks of its loop at its end: each has a loop of its own.
        self._thread = threading.Thread(target=self._run, name=f"watch-{min(namespaces)}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    def start(self) -> None:
        """Start the watches."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("kopf._cogs.clients.watching").addFilter(is_final)
        for kind in (JOBS, PODS):
            for verb in ("list", "watch"):
                record(verb, kind)
        for namespace in self.namespaces:
            self._stores.of(namespace).begin_watch()
        self._thread.start()

    def call(self, act: Callable[[], None]) -> None:
        """Call a function after a turn of the loop. Before the loop begins, at once; after its end, never."""
        if self._loop is None:
            act()
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(act)

    @property
    def alive(self) -> bool:
        """Whether the watches go on."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Have the watches end."""
        self._stop.set()
        loop, stopped = self._loop, self._stopped
        if loop is not None and stopped is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(stopped.set)

    def join(self, seconds: float) -> None:
        """Wait for the end of the watches."""
        self._thread.join(seconds)

    def _run(self) -> None:
        if self._stop.wait(self._after):
            return
        try:
            asyncio.run(self._watch())
            if not self._stop.is_set():
                log.warning("the watches of %s ended", ", ".join(sorted(self.namespaces)))
        except Exception:
            log.exception("the watches of %s ended", ", ".join(sorted(self.namespaces)))

    async def _watch(self) -> None:
        # Not a flag of threads: kopf waits for it in a thread of its own, also after one of its tasks has failed.
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=self._registry(),
            settings=settings(),
            standalone=True,
            namespaces=sorted(self.namespaces),
            stop_flag=self._stopped,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**kwargs: Any) -> Any:
            return kopf.login_via_client(**kwargs)

        @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
        async def job(event: Any, **_: Any) -> None:
            document = dict(event["object"])
            key, ends = (
                JobKey(document["metadata"]["namespace"], document["metadata"]["name"]),
                event["type"] == "DELETED",
            )
            store = self._stores.of(key.namespace)
            store.heard(JOBS)
            relevant = ends or changed(store.job(key.name), document)
            if ends:
                store.remove(JOBS, document)
            else:
                store.put(JOBS, document, watched=True)
            if relevant:
                self._queue.add(key, priority=EDIT)

        @kopf.on.event(
            "", "v1", "pods", labels={names.MANAGED: names.MANAGER, names.JOB: kopf.PRESENT}, registry=registry
        )
        async def pod(event: Any, **_: Any) -> None:
            document = dict(event["object"])
            namespace = document["metadata"]["namespace"]
            store = self._stores.of(namespace)
            store.heard(PODS)
            if event["type"] == "DELETED":
                store.remove(PODS, document)
            elif not store.put(PODS, document, watched=True) and event["type"] is None:
                return  # The first list of a watch has the pods of the listing before.
            self._queue.add(JobKey(namespace, document["metadata"]["labels"][names.JOB]), priority=URGENT)

        return registry


def is_final(record: logging.LogRecord) -> bool:
    """Whether a message of kopf is more than the note of a retry."""
    return "; will retry: " not in record.getMessage()


def settings() -> kopf.OperatorSettings:
    """Settings of kopf: rights in some namespaces only, and no writes by kopf itself."""
    options = kopf.OperatorSettings()
    options.scanning.disabled = True
    options.posting.enabled = False
    options.peering.standalone = True
    options.process.ultimate_exiting_timeout = None
    options.networking.request_timeout = 10.0
    options.networking.connect_timeout = 3.0
    options.watching.chunk_size = CHUNK
    options.queueing.idle_timeout = IDLE_SECONDS
    # The API server filters: it sends no other pods of the namespace.
    options.watching.label_selectors["", "v1", "pods"] = f"{names.MANAGED}={names.MANAGER}"
    return options
