"""A cache of the cluster's objects, filled by watches, by periodic listings, and by our own writes. It decides nothing.

Thread-safe. The newer of two versions of an object wins; an older listing does not restore a deleted object.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, JOBS, PODS, Kind
from ferry_operator.kube.observe import facts

TOMBSTONES_MAX = 4096
"""Deleted objects whose uids the store keeps."""


@dataclass(slots=True)
class Store:
    """Jobs, their pods and budgets by name; nodes by name, or None while the operator may not list nodes."""

    nodes: dict[str, facts.KubeNode] | None = None
    _objects: dict[Kind, dict[str, Doc]] = field(default_factory=lambda: {JOBS: {}, PODS: {}, BUDGETS: {}})
    _tombstones: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, kind: Kind, document: Doc) -> None:
        """Store an object, unless the store has a newer version."""
        with self._lock:
            self._put(kind, document)

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

    def sync(self, kind: Kind, documents: Iterable[Doc], before: frozenset[str]) -> None:
        """Store a listing of all objects. `before`: the uids in the store before the listing; a uid of `before` that the
        listing lacks belongs to a deleted object."""
        with self._lock:
            uids = frozenset(document["metadata"]["uid"] for document in documents)
            for document in documents:
                self._put(kind, document)
            for name, known in list(self._objects[kind].items()):
                uid = known["metadata"]["uid"]
                if uid in before and uid not in uids:
                    del self._objects[kind][name]

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
            pods = [pod for pod in self._objects[PODS].values() if (pod.get("spec") or {}).get("nodeName", "") in nodes]
            return sorted({pod["metadata"]["labels"].get(names.JOB, "") for pod in pods} - {""})

    def job(self, name: str) -> Doc | None:
        """One StreamJob."""
        with self._lock:
            return self._objects[JOBS].get(name)

    def pods(self, job: str) -> tuple[facts.Pod, ...]:
        """Pods of a job."""
        with self._lock:
            documents = [d for d in self._objects[PODS].values() if d["metadata"]["labels"].get(names.JOB) == job]
        return tuple(facts.pod(document) for document in sorted(documents, key=lambda d: str(d["metadata"]["name"])))

    def has_budget(self, job: str, uid: str) -> bool:
        """Whether the PodDisruptionBudget of this job exists, with this job as owner."""
        with self._lock:
            document = self._objects[BUDGETS].get(names.budget(job))
        return document is not None and facts.owner(document["metadata"]) == uid

    def _put(self, kind: Kind, document: Doc) -> None:
        metadata = document["metadata"]
        if metadata["uid"] in self._tombstones:
            return
        known = self._objects[kind].get(metadata["name"])
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            if _version(known) > _version(document):
                return
        slim = {key: value for key, value in metadata.items() if key != "managedFields"}
        slim["labels"] = slim.get("labels") or {}
        self._objects[kind][metadata["name"]] = {**document, "metadata": slim}


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
