"""A cache of the cluster's objects, filled by watches, by periodic listings, and by our own writes. It decides nothing.

Thread-safe. The newer of two versions of an object wins; an older listing does not restore a deleted object.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc, JobKey
from ferry_operator.kube.api.port import BUDGETS, JOBS, PODS, Kind
from ferry_operator.kube.observe import facts, overruled

TOMBSTONES_MAX = 4096
"""Deleted objects whose uids the store keeps."""


@dataclass(slots=True)
class Nodes:
    """The cluster's nodes, shared by all namespaces."""

    known: dict[str, facts.KubeNode] | None = None
    """by name; None while the operator may not list nodes"""


@dataclass(slots=True)
class WatchAge:
    """Whether the watch of a kind has fallen silent: it has to deliver changes that a write or a listing has shown."""

    delivers: bool = False
    """it has delivered an object since it began"""
    uid: str = ""
    """object with a change that the watch owes; empty: none"""
    since: float = 0.0
    confirmed: bool = False
    """a listing since has the object still: it was not deleted meanwhile"""


@dataclass(slots=True)
class Store:
    """Jobs of one namespace, their pods and budgets, by name; and the nodes of the cluster."""

    shared: Nodes = field(default_factory=Nodes)
    _objects: dict[Kind, dict[str, Doc]] = field(default_factory=lambda: {JOBS: {}, PODS: {}, BUDGETS: {}})
    _tombstones: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _ages: dict[Kind, WatchAge] = field(default_factory=lambda: {JOBS: WatchAge(), PODS: WatchAge()})
    _lock: threading.Lock = field(default_factory=threading.Lock)
    clock: Callable[[], float] = time.monotonic

    @property
    def nodes(self) -> dict[str, facts.KubeNode] | None:
        """Nodes by name; None while the operator may not list nodes."""
        return self.shared.known

    def put(self, kind: Kind, document: Doc, watched: bool = False) -> bool:
        """Store an object, unless the store has a newer version. Whether the object is new, or another version.

        `watched`: it comes from the watch.
        """
        with self._lock:
            return self._put(kind, document, watched)

    def begin_watch(self) -> None:
        """Another watch begins: it owes nothing before its first delivery."""
        with self._lock:
            self._ages = {kind: WatchAge() for kind in self._ages}

    def heard(self, kind: Kind) -> None:
        """The watch has delivered an object."""
        with self._lock:
            self._ages[kind] = WatchAge(delivers=True)

    def watch_age(self, kind: Kind) -> float:
        """Seconds for which the watch has owed a change, by a listing since; 0: it owes none."""
        with self._lock:
            age = self._ages[kind]
            return self.clock() - age.since if age.confirmed else 0.0

    def remove(self, kind: Kind, document: Doc) -> None:
        """Remove an object that was deleted."""
        with self._lock:
            metadata = document["metadata"]
            self._tombstones[metadata["uid"]] = None
            while len(self._tombstones) > TOMBSTONES_MAX:
                self._tombstones.popitem(last=False)
            known = self._objects[kind].get(metadata["name"])
            if known is not None and known["metadata"]["uid"] == metadata["uid"]:
                del self._objects[kind][metadata["name"]]

    def sync(self, kind: Kind, documents: Iterable[Doc], before: frozenset[str]) -> set[str]:
        """Store a listing of all objects. `before`: the uids in the store before the listing; a uid of `before` that the
        listing lacks belongs to a deleted object. Returns the jobs of pods and budgets that the listing has changed."""
        jobs, uids, began, owed = set[str](), set[str](), self.clock(), False
        for document in documents:
            uid = document["metadata"]["uid"]
            uids.add(uid)
            with self._lock:
                if self._put(kind, document):
                    jobs.add(_job_of(document))
                if kind in self._ages and uid == self._ages[kind].uid:
                    owed = self._ages[kind].since < began and _is_watched(kind, document)
        with self._lock:
            for name, known in list(self._objects[kind].items()):
                uid = known["metadata"]["uid"]
                if uid in before and uid not in uids:
                    del self._objects[kind][name]
                    jobs.add(_job_of(known))
            if kind in self._ages and self._ages[kind].since < began:
                self._confirm(kind, owed)
        return jobs - {""}

    def uids(self, kind: Kind) -> frozenset[str]:
        """Uids of all stored objects."""
        with self._lock:
            return frozenset(document["metadata"]["uid"] for document in self._objects[kind].values())

    def jobs(self) -> list[str]:
        """Names of the stored jobs, and of deleted jobs that still have pods."""
        with self._lock:
            left = [pod["metadata"]["labels"].get(names.JOB, "") for pod in self._objects[PODS].values()]
            return sorted({*self._objects[JOBS], *filter(None, left)})

    def jobs_on(self, nodes: Container[str]) -> list[str]:
        """Names of the jobs that have a pod on one of these nodes."""
        with self._lock:
            pods = [pod for pod in self._objects[PODS].values() if (pod["facts"].node or "") in nodes]
            return sorted({pod["metadata"]["labels"].get(names.JOB, "") for pod in pods} - {""})

    def job(self, name: str) -> Doc | None:
        """One StreamJob."""
        with self._lock:
            return self._objects[JOBS].get(name)

    def documents(self) -> list[Doc]:
        """All StreamJobs."""
        with self._lock:
            return list(self._objects[JOBS].values())

    def pods(self, job: str) -> tuple[facts.Pod, ...]:
        """Pods of a job."""
        with self._lock:
            pods = [d["facts"] for d in self._objects[PODS].values() if d["metadata"]["labels"].get(names.JOB) == job]
        return tuple(sorted(pods, key=lambda pod: str(pod.name)))

    def protected(self, job: str, uid: str) -> int | None:
        """The number of pods that the PodDisruptionBudget of this job protects; None without a budget.

        -1: another writer has put in a percentage or `maxUnavailable`.
        """
        document = self.budget(job, uid)
        minimum = (document.get("spec") or {}).get("minAvailable") if document is not None else None
        return None if document is None else minimum if isinstance(minimum, int) else -1

    def budget(self, job: str, uid: str) -> Doc | None:
        """The PodDisruptionBudget of this job; None without a budget that this job owns."""
        with self._lock:
            document = self._objects[BUDGETS].get(names.budget(job))
        return document if document is not None and facts.owner(document["metadata"]) == uid else None

    def _put(self, kind: Kind, document: Doc, watched: bool = False) -> bool:
        """Whether the store had no object, or another version of it."""
        metadata = document["metadata"]
        if metadata["uid"] in self._tombstones:
            return False
        known, same = self._objects[kind].get(metadata["name"]), False
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            if _version(known) > _version(document):
                return False
            same = _version(known) == _version(document)
        self._objects[kind][metadata["name"]] = _kept(kind, document)
        if kind in self._ages and not same and not watched and _is_watched(kind, document):
            self._owe(kind, metadata["uid"])
        return not same

    def _owe(self, kind: Kind, uid: str) -> None:
        age = self._ages[kind]
        if age.delivers and not age.uid:
            age.uid, age.since = uid, self.clock()

    def _confirm(self, kind: Kind, owed: bool) -> None:
        """A listing shows whether the watch still owes its change."""
        age = self._ages[kind]
        if age.uid:
            self._ages[kind] = WatchAge(True, age.uid, age.since, True) if owed else WatchAge(True)


class Stores:
    """The store of each namespace. Thread-safe."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()

    def of(self, namespace: str) -> Store:
        """The store of a namespace; an empty one for a new namespace."""
        with self._lock:
            return self._stores.setdefault(namespace, Store(self.nodes))

    def remove(self, namespace: str) -> None:
        """Remove the objects of a namespace that the operator no longer manages."""
        with self._lock:
            self._stores.pop(namespace, None)

    def jobs(self) -> list[JobKey]:
        """All jobs, as in `Store.jobs`."""
        return [JobKey(namespace, name) for namespace, store in self._all() for name in store.jobs()]

    def documents(self) -> list[Doc]:
        """All StreamJobs."""
        return [document for _, store in self._all() for document in store.documents()]

    def jobs_on(self, nodes: Container[str]) -> list[JobKey]:
        """The jobs that have a pod on one of these nodes."""
        return [JobKey(namespace, name) for namespace, store in self._all() for name in store.jobs_on(nodes)]

    def begin_watch(self) -> None:
        """See `Store.begin_watch`, in all namespaces."""
        for _, store in self._all():
            store.begin_watch()

    def watch_ages(self) -> dict[tuple[str, str], float]:
        """`Store.watch_age` of all watches, by namespace and kind in the plural."""
        return {(ns, kind.plural): store.watch_age(kind) for ns, store in self._all() for kind in (JOBS, PODS)}

    def _all(self) -> list[tuple[str, Store]]:
        with self._lock:
            return sorted(self._stores.items(), key=lambda item: item[0])


def _kept(kind: Kind, document: Doc) -> Doc:
    """What the store keeps of an object: the facts of a pod instead of the pod.

    Of a StreamJob, the owners of its size stay: the autoscaler has to know them.
    """
    slim = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    slim["labels"] = slim.get("labels") or {}
    if kind == JOBS:
        slim["managedFields"] = overruled.writers_of_workers(document["metadata"])
    if kind == PODS:
        few = {key: slim[key] for key in ("name", "uid", "resourceVersion", "labels") if key in slim}
        return {"metadata": few, "facts": facts.pod(document)}
    return {**document, "metadata": slim}


def _is_watched(kind: Kind, document: Doc) -> bool:
    """Whether the watch delivers the object: not a pod without a job."""
    labels = document["metadata"].get("labels") or {}
    return kind != PODS or (labels.get(names.MANAGED) == names.MANAGER and bool(labels.get(names.JOB)))


def _job_of(document: Doc) -> str:
    return str((document["metadata"].get("labels") or {}).get(names.JOB, ""))


def _version(document: Doc) -> int:
    """The resourceVersion as a number; -1, the oldest, when it is no number."""
    text = str(document["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdigit() else -1


def changed(old: Doc | None, new: Doc) -> bool:
    """Whether a StreamJob changed in more than its status, which only the operator writes."""
    if old is None:
        return True
    keys = ("uid", "generation", "annotations", "labels", "deletionTimestamp")
    return any((old["metadata"].get(key) or None) != (new["metadata"].get(key) or None) for key in keys)


def noting(jobs: Iterable[Doc], store: Store, edited: list[str]) -> Iterator[Doc]:
    """The same jobs; adds the names of jobs that have changed since the last reconcile to `edited`."""
    for job in jobs:
        old = store.job(job["metadata"]["name"])
        if changed(old, job) if old is not None else _is_unobserved(job):
            edited.append(job["metadata"]["name"])
        yield job


def _is_unobserved(job: Doc) -> bool:
    """Whether the spec has changed since the last reconcile of any operator."""
    return bool((job.get("status") or {}).get("observedGeneration") != job["metadata"].get("generation"))
