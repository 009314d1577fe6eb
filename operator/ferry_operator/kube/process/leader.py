"""The work of the holder of the Lease: watches, periodic listings, and worker threads of the queue.

Composition only. Every new leader begins with an empty store and lists all objects.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from ferry.contract.errors import Fault
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import Fenced
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, JOBS, NOT_FOUND, PODS, Api, ApiError, Deposed
from ferry_operator.kube.api.redis import RedisApart
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.process.nodes import NodeListing
from ferry_operator.kube.process.queue import EDIT, ROUTINE, URGENT, WorkQueue
from ferry_operator.kube.process.watch import JobWatch
from ferry_operator.kube.reconcile import CALM_SECONDS, Reconciler
from ferry_operator.kube.store import Store, changed

log = logging.getLogger("ferry.operator")

RESYNC_SECONDS = 30.0
"""Between two listings of all objects, which include changes that a watch has missed."""

AGAIN_SECONDS = 4.0
"""Between a failed listing and the next attempt."""

STALE_SECONDS = 90.0
"""A leader with an older last listing is not healthy."""

STUCK_SECONDS = 90.0
"""A queue with a due job, but without a finished or started reconcile for longer, is stuck."""

END_SECONDS = 12.0
"""Time for running reconciles to end: longer than the timeout of every call."""


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
        self._driver_client = DriverClient()
        self._redis = RedisApart(release.redis)
        self._stepped_down = threading.Event()
        """set at the end of the leadership: a reconcile that still runs writes nothing"""
        fenced = Fenced(api, lambda: held() and not self._stepped_down.is_set())
        self._reconciler = Reconciler(
            fenced, self.store, release, self._driver_client, metrics, token, redis=self._redis
        )
        self._nodes = NodeListing(api, self.store, self.queue) if release.read_nodes else None
        self._watch = JobWatch(release.namespace, self.store, self.queue)
        self._end = threading.Event()
        self._listed_at = time.monotonic()
        self._listing = threading.Thread(target=self._keep_listing, name="listing", daemon=True)
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def start(self) -> None:
        """Start the threads; returns at once."""
        if self._nodes is not None:
            self._nodes.start()
        self._listing.start()

    @property
    def healthy(self) -> bool:
        """Whether listings, watches and reconciles go on. A reconcile that does not end affects its job alone."""
        working = self._listing.is_alive() and (
            not self._watch.started or (self._watch.alive and self._dispatcher.is_alive())
        )
        listed = time.monotonic() - self._listed_at < STALE_SECONDS
        return working and listed and self.queue.stuck_seconds() < STUCK_SECONDS

    def close(self, before_watch: Callable[[], None] = lambda: None) -> bool:
        """End all reconciles, call `before_watch`, end the watches; False if a reconcile did not end: it cannot write."""
        self._end.set()
        self.queue.close()
        if self._dispatcher.ident:
            self._dispatcher.join(END_SECONDS)
        deadline = time.monotonic() + END_SECONDS
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._stepped_down.set()
        self._driver_client.close()
        before_watch()
        if self._watch.started:
            self._watch.close()
        if self._nodes is not None:
            self._nodes.close()
        self._redis.close()
        self._metrics.jobs.clear()
        return not any(thread.is_alive() for thread in (self._dispatcher, *self._threads))

    # ---- listings
    def _keep_listing(self) -> None:
        """List all objects, then start watches and reconciles; list again periodically."""
        if self._nodes is not None:
            self._nodes.wait_for_first()
        while not self._end.is_set():
            try:
                self._list_all()
                if not self._watch.started:
                    self._watch.start()
                    self._dispatcher.start()
                self._listed_at = time.monotonic()
                wait = RESYNC_SECONDS
            except ApiError as error:
                wait = AGAIN_SECONDS
                if error.status == NOT_FOUND and not self._watch.started:
                    log.warning(
                        "the cluster has no definition of StreamJob yet: install the custom resource definition"
                    )
                    self._listed_at = time.monotonic()
                else:
                    log.info("listing: %s", error)
            self._end.wait(wait)

    def _list_all(self) -> None:
        """Queue jobs with unobserved changes at once, and the other jobs spread over the time until the next listing."""
        ours = f"{names.MANAGED}={names.MANAGER}"
        for kind, selector in ((JOBS, ""), (PODS, ours), (BUDGETS, ours)):
            before = self.store.uids(kind)
            objects = self._api.find(kind, selector)
            known = {document["metadata"]["name"]: self.store.job(document["metadata"]["name"]) for document in objects}
            self.store.sync(kind, objects, before)
            for job in objects if kind == JOBS else ():
                name = job["metadata"]["name"]
                old = known[name]
                if changed(old, job) if old is not None else _is_unobserved(job):
                    self.queue.add(name, priority=EDIT)
        jobs, seconds = self.store.jobs(), RESYNC_SECONDS if self._watch.started else 0.0
        for number, name in enumerate(jobs):
            self.queue.add(name, seconds * number / len(jobs))

    # ---- reconciles
    def _dispatch(self) -> None:
        """Give each due name to an idle thread, or to a new thread."""
        while (name := self.queue.take()) is not None:
            if not self._idle.acquire(blocking=False):
                thread = threading.Thread(target=self._run_worker, name=f"reconcile-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(name)

    def _run_worker(self) -> None:
        while (name := self._work.get()) is not None:
            self._reconcile(name)
            self._idle.release()

    def _reconcile(self, name: str) -> None:
        began = time.monotonic()
        try:
            again = self._reconciler.reconcile(name)
            self.queue.done(name, again, ROUTINE if again is None or again >= CALM_SECONDS else URGENT)
        except Deposed:
            self.queue.done(name, None)
        except Fault as error:
            log.info("%s: the reconcile failed and will be retried: %s", name, error)
            self._metrics.count_error(type(error).__name__)
            self.queue.failed(name)
        except Exception as error:
            log.exception("%s: the reconcile failed", name)
            self._metrics.count_error(type(error).__name__)
            self.queue.failed(name)
        self._metrics.count_reconcile(time.monotonic() - began)


def _is_unobserved(job: Doc) -> bool:
    """Whether the spec has changed since the last reconcile of any operator."""
    return bool((job.get("status") or {}).get("observedGeneration") != job["metadata"].get("generation"))
