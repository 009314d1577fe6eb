"""The work of the holder of the Lease: watches, periodic listings, and worker threads of the queue.

Composition only. Every new leader begins with an empty store and lists all objects.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ferry.contract.errors import Fault
from ferry_operator.control.driver_client import DriverClient
from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import Fenced
from ferry_operator.kube.api.keys import read_keys
from ferry_operator.kube.api.names import JobKey
from ferry_operator.kube.api.port import (
    BUDGETS,
    FORBIDDEN,
    JOBS,
    LEASES,
    NOT_FOUND,
    PODS,
    Api,
    ApiError,
    ClusterApi,
    Deposed,
)
from ferry_operator.kube.api.redis import RedisApart
from ferry_operator.kube.manifests.release import Installation, clear_port, redis_address, redis_tag
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe.definition import Definition
from ferry_operator.kube.observe.pace import CALM_SECONDS, calm_seconds
from ferry_operator.kube.process.definition import DefinitionReading
from ferry_operator.kube.process.namespaces import OWN, NamespaceChoice, Namespaces
from ferry_operator.kube.process.nodes import NodeWatch
from ferry_operator.kube.process.probe import KEY, Probe
from ferry_operator.kube.process.queue import EDIT, ROUTINE, URGENT, WorkQueue
from ferry_operator.kube.process.watch import JobWatches
from ferry_operator.kube.reconcile import Reconciler
from ferry_operator.kube.store import Stores, noting
from ferry_operator.kube.turns import Turns

log = logging.getLogger("ferry.operator")

RESYNC_SECONDS = 30.0
"""Between two listings of all objects, which include changes that a watch has missed; with many jobs as `calm_seconds`."""

AGAIN_SECONDS = 4.0
"""Between a failed listing and the next attempt."""

LISTINGS = 4
"""Namespaces that are listed at a time. The operator holds the documents of these namespaces only."""

TICK_SECONDS = 5.0
"""Between two looks for namespaces and listings that are due."""

FAILURES_MIN = 3
"""Failed listings of a namespace in a row that are worth a warning: new rights come into force within seconds."""

SILENT_MAX = 3
"""Namespaces without an answer after which the API server counts as down. A single namespace may have too many objects."""

STALE_SECONDS = 90.0
"""A leader with an older last listing is not healthy."""

STUCK_SECONDS = 90.0
"""A queue with a due job, but without a finished or started reconcile for longer, is stuck."""

DEAF_SECONDS = 60.0
"""Age of the probe, and of a watch that owes a change, after which the operator is deaf."""

END_SECONDS = 12.0
"""Time for running reconciles to end: longer than the timeout of every call."""


class Leader:
    """The work of one term of leadership."""

    def __init__(
        self,
        api: ClusterApi,
        release: Installation,
        token: int,
        held: Callable[[], bool],
        metrics: Metrics,
        choice: NamespaceChoice = OWN,
    ) -> None:
        self.queue = WorkQueue()
        self.stores = Stores()
        self.token = token
        self.definition = Definition()
        self._api = api
        self.turns = Turns(self.stores.documents, release.roll_jobs, release.roll_seconds)
        self._release = release
        self._held = held
        self._metrics = metrics
        self._driver_client = DriverClient()
        self._redis = RedisApart(redis_address(release), redis_tag(release), clear_port=clear_port(release))
        self._stepped_down = threading.Event()
        """set at the end of the leadership: a reconcile that still runs writes nothing"""
        self._namespaces = Namespaces(api, choice, release.namespace, self._fenced)
        self._apis: dict[str, Api] = {}
        """by namespace, also of namespaces that are no longer chosen and still have jobs"""
        self._reconcilers: dict[str, Reconciler] = {}
        self.failing: dict[str, int] = {}
        """failed listings in a row, by namespace: the other namespaces go on"""
        self._refused: ApiError | None = None
        """the last refusal of a listing"""
        self._due: dict[str, float] = {}
        """time of the next listing, by namespace"""
        self._nodes = NodeWatch(api, self.stores, self.queue, release.leaving_taints) if release.read_nodes else None
        self._probe = Probe(
            api, release.home.rpartition("/")[2], token, self.queue, lambda act: self._watches.call(act)
        )
        self._watches = JobWatches(self.stores, self.queue)
        self._definitions = DefinitionReading(api, self.definition)
        self._end = threading.Event()
        self._listed_at = time.monotonic()
        self._listing = threading.Thread(target=self._keep_listing, name="listing", daemon=True)
        self._dispatcher = threading.Thread(target=self._dispatch, name="dispatcher", daemon=True)
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[JobKey | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def start(self) -> None:
        """Start the threads; returns at once."""
        if self._nodes is not None:
            self._nodes.start()
        self._definitions.start()
        self._listing.start()

    @property
    def hang(self) -> str | None:
        """Why this process has to be started again, or None. A reconcile that does not end affects its job alone."""
        if not (self._listing.is_alive() and (not self._began or self._dispatcher.is_alive())):
            return "a thread has ended"
        if (stuck := self.queue.stuck_seconds()) >= STUCK_SECONDS:
            return f"no reconcile has begun or ended for {stuck:.0f} s"
        (namespace, kind), age = max(self.watch_ages().items(), key=lambda item: item[1], default=(("", ""), 0.0))
        return f"the watch of {kind} in {namespace} has been silent for {age:.0f} s" if age >= DEAF_SECONDS else None

    @property
    def healthy(self) -> bool:
        """Whether the process works, and listings go on."""
        return self.hang is None and time.monotonic() - self._listed_at < STALE_SECONDS

    def watch_ages(self) -> dict[tuple[str, str], float]:
        """Seconds for which each watch has owed a change, by namespace and kind in the plural; with the Lease, the probe."""
        ages = {key: age for key, age in self.stores.watch_ages().items() if key[0] in self._watches.watched}
        return ages | (
            {(self._release.namespace, LEASES.plural): age} if (age := self._probe.age()) is not None else {}
        )

    def woke(self) -> None:
        """The process did not run for a while: what it has not heard meanwhile says nothing."""
        self._listed_at = time.monotonic()
        self._probe.reconciled()
        self.stores.begin_watch()

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
        self._watches.close()
        if self._nodes is not None:
            self._nodes.close()
        self._definitions.close()
        self._probe.close()
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
                self._list_all(everything=False)
                self._watches.follow(frozenset(self._apis.keys() - self.failing.keys()))
                if not self._began:
                    self._dispatcher.start()
                    self._probe.start()
                self._listed_at = time.monotonic()
                wait = TICK_SECONDS
            except ApiError as error:
                wait = AGAIN_SECONDS
                if error.status == NOT_FOUND and not self._began:
                    log.warning(
                        "the cluster has no definition of StreamJob yet: install the custom resource definition"
                    )
                    self._listed_at = time.monotonic()
                else:
                    log.info("listing: %s", error)
            self._end.wait(wait)

    @property
    def _began(self) -> bool:
        return self._dispatcher.ident is not None

    @property
    def managed(self) -> int:
        """Number of namespaces with jobs of this release."""
        return len(self._apis)

    def _list_all(self, everything: bool = True) -> None:
        """List the namespaces that are due, or all. Queue changed jobs at once, and jobs without a due time spread over the
        time until the next listing. Raises ApiError when the API server does not answer, or refuses every namespace."""
        chosen = self._namespaces.chosen()
        for namespace in (chosen | self._namespaces.left()) - self._apis.keys():
            self._apis[namespace] = self._api.within(namespace)
            self._reconcilers[namespace] = self._reconciler(namespace)
        now = time.monotonic()
        due = [namespace for namespace in sorted(self._apis) if everything or self._due.get(namespace, 0.0) <= now]
        if due:
            self._read_keys()
        silent, answers = list[ApiError](), 0
        for namespace, error in self._listed(due, chosen):
            if error is not None:
                if error.is_transient:
                    log.info("listing of the namespace %s: %s", namespace, error)
                    silent.append(error)
                    if len(silent) >= SILENT_MAX:
                        raise error
                else:
                    self._fail(namespace, error)
                continue
            answers += 1
            self._due[namespace] = now + max(RESYNC_SECONDS, calm_seconds(self._metrics.jobs.count()))
            if self.failing.pop(namespace, 0) >= FAILURES_MIN:
                log.info("the jobs of the namespace %s are managed again", namespace)
        if silent and not answers:
            raise silent[0]
        if self._refused is not None and self.failing and len(self.failing) == len(self._apis):
            raise self._refused
        for namespace in self._apis.keys() - chosen:
            self._leave(namespace)
        jobs, seconds = self.stores.jobs() if due else [], RESYNC_SECONDS if self._began else 0.0
        for number, key in enumerate(jobs):
            self.queue.ensure(key, seconds * number / len(jobs))

    def _listed(self, due: list[str], chosen: frozenset[str]) -> Iterator[tuple[str, ApiError | None]]:
        """List namespaces, a few at a time: they wait for the API server. Yields each in order, with its error."""

        def attempt(namespace: str) -> tuple[str, ApiError | None]:
            try:
                if namespace in chosen:
                    self._namespaces.prepare(namespace)
                self._list(namespace, self._apis[namespace])
            except ApiError as error:
                return namespace, error
            except Exception:
                log.exception("an object of the namespace %s could not be parsed", namespace)
            return namespace, None

        with ThreadPoolExecutor(min(LISTINGS, len(due)) or 1, "listing") as threads:
            for first in range(0, len(due), LISTINGS):
                yield from threads.map(attempt, due[first : first + LISTINGS])

    def _fail(self, namespace: str, error: ApiError) -> None:
        """Leave a namespace out until its next attempt."""
        count = self.failing[namespace] = self.failing.get(namespace, 0) + 1
        self._refused = error
        self._due[namespace] = time.monotonic() + min(AGAIN_SECONDS * count, RESYNC_SECONDS)
        if error.status == FORBIDDEN:
            self._namespaces.forbidden(namespace)
        if count == FAILURES_MIN and len(self._apis) > 1:
            log.warning("the jobs of the namespace %s are not managed, the others are: %s", namespace, error)

    def _leave(self, namespace: str) -> None:
        """Clear a namespace that is no longer chosen, once it has no jobs; without the operator's RoleBinding it is gone."""
        if namespace not in self.failing and self.stores.of(namespace).jobs():
            return
        try:
            refused = namespace in self.failing
            stays = self._namespaces.is_prepared(namespace) if refused else not self._namespaces.clear(namespace)
        except ApiError as error:
            log.info("the namespace %s is not cleared yet: %s", namespace, error)
            return
        if stays:
            return
        self._namespaces.leave(namespace)
        for each in (self._apis, self._reconcilers, self.failing, self._due):
            each.pop(namespace, None)
        for name in self.stores.of(namespace).jobs():
            self._metrics.jobs.forget(JobKey(namespace, name))
        self.stores.remove(namespace)

    def _read_keys(self) -> None:
        """Read the keys of the installation; a further key is for new runs."""
        if self._release.key_secret is None:
            return
        keys = read_keys(self._api, self._release.key_secret)
        if keys == self._release.keys:
            return
        log.info("new runs take key %d of the Secret %s", max(keys), self._release.key_secret)
        self._release = self._release.with_keys(keys)
        for reconciler in self._reconcilers.values():
            reconciler.release = reconciler.release.with_keys(keys)

    def _list(self, namespace: str, api: Api) -> None:
        ours, store = f"{names.MANAGED}={names.MANAGER}", self.stores.of(namespace)
        for kind, selector in ((JOBS, ""), (PODS, ours), (BUDGETS, ours)):
            before, edited = store.uids(kind), list[str]()
            objects = api.each(kind, selector)
            missed = store.sync(kind, noting(objects, store, edited) if kind == JOBS else objects, before)
            for name in missed if self._began else ():
                self.queue.add(JobKey(namespace, name), priority=URGENT)
            for name in edited:
                self.queue.add(JobKey(namespace, name), priority=EDIT)

    # ---- reconciles
    def _dispatch(self) -> None:
        """Give each due job to an idle thread, or to a new thread."""
        while (key := self.queue.take()) is not None:
            if not self._idle.acquire(blocking=False):
                thread = threading.Thread(target=self._run_worker, name=f"reconcile-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(key)

    def _run_worker(self) -> None:
        while (key := self._work.get()) is not None:
            self._reconcile(key)
            self._idle.release()

    def _fenced(self, api: Api) -> Api:
        return Fenced(api, lambda: self._held() and not self._stepped_down.is_set())

    def _reconciler(self, namespace: str) -> Reconciler:
        release, store = replace(self._release, namespace=namespace), self.stores.of(namespace)
        return Reconciler(
            self._fenced(self._apis[namespace]),
            store,
            release,
            self._driver_client,
            self._metrics,
            self.token,
            redis=self._redis,
            definition=self.definition,
            turns=self.turns,
        )

    def _reconcile(self, key: JobKey) -> None:
        if key == KEY:
            self._probe.reconciled()
            self.queue.done(key, None)
            return
        began = time.monotonic()
        try:
            reconciler = self._reconcilers.get(key.namespace)
            again = reconciler.reconcile(key.name) if reconciler is not None else None  # None: no longer managed
            self.queue.done(key, again, ROUTINE if again is None or again >= CALM_SECONDS else URGENT)
        except Deposed:
            self.queue.done(key, None)
        except Fault as error:
            log.info("%s: the reconcile failed and will be retried: %s", key, error)
            self._metrics.count_error(type(error).__name__)
            self.queue.failed(key)
        except Exception as error:
            log.exception("%s: the reconcile failed", key)
            self._metrics.count_error(type(error).__name__)
            self.queue.failed(key)
        self._metrics.count_reconcile(time.monotonic() - began)
