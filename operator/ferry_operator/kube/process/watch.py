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
"""Namespaces that an instance of kopf watches, and the time between the starts of two instances. An instance lists all its
namespaces at once. With one instance, the lists of 1,000 jobs took 265 MiB, which the process did not give back."""

IDLE_SECONDS = 0.2
"""kopf keeps the document of an object for this time after its last event."""


class JobWatch:
    """Watches namespaces from `start` to `close`. A namespace without rights ends the watches of all namespaces."""

    def __init__(self, namespaces: Sequence[str], stores: Stores, queue: WorkQueue) -> None:
        self._stores = stores
        self._queue = queue
        self._stop = threading.Event()
        parts = [namespaces[first : first + TOGETHER] for first in range(0, len(namespaces), TOGETHER)]
        # An instance of kopf cancels all tasks of its loop at its end: each has a loop of its own.
        self._threads = [
            threading.Thread(target=self._run, args=(part, number * APART_SECONDS), name=f"watch-{number}", daemon=True)
            for number, part in enumerate(parts)
        ]
        self._loops: list[asyncio.AbstractEventLoop] = []

    def start(self) -> None:
        """Start the watches."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("kopf._cogs.clients.watching").addFilter(is_final)
        for kind in (JOBS, PODS):
            for verb in ("list", "watch"):
                record(verb, kind)
        self._stores.begin_watch()
        for thread in self._threads:
            thread.start()

    def call(self, act: Callable[[], None]) -> None:
        """Call a function after each loop of the watches has had a turn. Without a loop, or with an ended one, never."""
        if self._loops:
            self._call_after(0, act)

    def _call_after(self, number: int, act: Callable[[], None]) -> None:
        if number == len(self._loops):
            act()
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loops[number].call_soon_threadsafe(self._call_after, number + 1, act)

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return any(thread.ident is not None for thread in self._threads)

    @property
    def alive(self) -> bool:
        """Whether the watches go on."""
        return all(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End the watches."""
        # kopf closes its connections first, and then logs errors of requests on these connections.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        self._stop.set()
        deadline = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        logging.getLogger("kopf").setLevel(logging.WARNING)  # other namespaces may be watched by now

    def _run(self, namespaces: Sequence[str], after: float) -> None:
        if self._stop.wait(after):
            return
        try:
            asyncio.run(self._watch(namespaces))
        except Exception:
            log.exception("the watches ended")

    async def _watch(self, namespaces: Sequence[str]) -> None:
        self._loops.append(asyncio.get_running_loop())
        await kopf.operator(
            registry=self._registry(),
            settings=settings(),
            standalone=True,
            namespaces=namespaces,
            stop_flag=self._stop,
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
