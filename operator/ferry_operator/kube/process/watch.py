"""Watches StreamJobs and their pods with kopf, in a thread with a loop of its own. Handlers update the store and put
the name of the job on the queue. No finalizer, no timer, no state of kopf on any object.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import kopf

from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import record
from ferry_operator.kube.api.port import JOBS, PODS
from ferry_operator.kube.process.queue import EDIT, URGENT, WorkQueue
from ferry_operator.kube.store import Store, changed

log = logging.getLogger("ferry.operator")

END_SECONDS = 10.0


class JobWatch:
    """Watches one namespace from `start` to `close`."""

    def __init__(self, namespace: str, store: Store, queue: WorkQueue) -> None:
        self._namespace = namespace
        self._store = store
        self._queue = queue
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Start the watches."""
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("kopf._cogs.clients.watching").addFilter(is_final)
        for kind in (JOBS, PODS):
            for verb in ("list", "watch"):
                record(verb, kind)
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether the watches go on."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the watches."""
        # kopf closes its connections first, and then logs errors of requests on these connections.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)
        self._stop.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=self._registry(),
                    settings=settings(),
                    standalone=True,
                    namespaces=[self._namespace],
                    stop_flag=self._stop,
                    ready_flag=self._ready,
                )
            )
        except Exception:
            log.exception("the watches ended")

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        def login(**kwargs: Any) -> Any:
            return kopf.login_via_client(**kwargs)

        @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
        async def job(event: Any, **_: Any) -> None:
            document = dict(event["object"])
            name, ends = document["metadata"]["name"], event["type"] == "DELETED"
            relevant = ends or changed(self._store.job(name), document)
            if ends:
                self._store.remove(JOBS, document)
            else:
                self._store.put(JOBS, document)
            if relevant:
                self._queue.add(name, priority=EDIT)

        @kopf.on.event(
            "", "v1", "pods", labels={names.MANAGED: names.MANAGER, names.JOB: kopf.PRESENT}, registry=registry
        )
        async def pod(event: Any, **_: Any) -> None:
            document = dict(event["object"])
            if event["type"] == "DELETED":
                self._store.remove(PODS, document)
            else:
                self._store.put(PODS, document)
            self._queue.add(document["metadata"]["labels"][names.JOB], priority=URGENT)

        return registry


def is_final(record: logging.LogRecord) -> bool:
    """Whether a message of kopf is more than the note of a retry."""
    return "; will retry: " not in record.getMessage()


def settings() -> kopf.OperatorSettings:
    """Settings of kopf: rights in one namespace only, and no writes by kopf itself."""
    options = kopf.OperatorSettings()
    options.scanning.disabled = True
    options.posting.enabled = False
    options.peering.standalone = True
    options.process.ultimate_exiting_timeout = None
    options.networking.request_timeout = 10.0
    options.networking.connect_timeout = 3.0
    # The API server filters: it sends no other pods of the namespace.
    options.watching.label_selectors["", "v1", "pods"] = f"{names.MANAGED}={names.MANAGER}"
    return options
