"""Writes of a reconcile to the API server: creates, deletes and patches of objects that belong to the job.

A create of an object that exists, and a delete of a missing object, succeed. The answers go into the store.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, CONFLICT, NOT_FOUND, PODS, Api, ApiError, Kind, tolerate
from ferry_operator.kube.manifests import objects
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.view import JobView
from ferry_operator.kube.store import Store


@dataclass(slots=True)
class ObjectWrites:
    """Writes for one reconcile of a job."""

    api: Api
    store: Store
    view: JobView

    def _create(self, kind: Kind, document: Doc) -> None:
        """Create an object. An object of this job that exists already goes into the store instead."""
        name = document["metadata"]["name"]
        try:
            created = self.api.create(kind, document)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            selector = f"{names.MANAGED}={names.MANAGER},{names.JOB}={self.view.seen.name}"
            there = [document for document in self.api.find(kind, selector) if document["metadata"]["name"] == name]
            if not there or facts.owner(there[0]["metadata"]) != self.view.seen.uid:
                raise not_owned(kind, name) from None
            created = there[0]
        self.store.put(kind, created)

    def _write_budget(self, minimum: int) -> None:
        seen = self.view.seen
        document, old = objects.budget(seen.job, minimum), self.store.budget(seen.name, seen.uid)
        if old is None:
            self._create(BUDGETS, document)
            return
        change = {"metadata": {"uid": old["metadata"]["uid"]}, "spec": {**document["spec"], "maxUnavailable": None}}
        try:
            self.store.put(BUDGETS, self.api.patch(BUDGETS, document["metadata"]["name"], change))
        except ApiError as error:
            tolerate(error, NOT_FOUND)
            self.store.remove(BUDGETS, old)

    def _delete(self, pod: Pod, exact: bool = False, grace: int | None = None) -> None:
        try:
            self.api.delete(PODS, pod.name, pod.uid, pod.version if exact else "", grace)
        except ApiError as error:
            tolerate(error, NOT_FOUND, CONFLICT)
            return
        if grace == 0:
            self.store.remove(PODS, {"metadata": {"name": pod.name, "uid": pod.uid}})

    def _annotate(self, pod: Pod, annotations: dict[str, str], exact: bool = False) -> None:
        self._change(pod, {"annotations": annotations, **({"resourceVersion": pod.version} if exact else {})})

    def _change(self, pod: Pod, change: Doc) -> None:
        metadata = {"uid": pod.uid, **change}
        try:
            self.store.put(PODS, self.api.patch(PODS, pod.name, {"metadata": metadata}))
        except ApiError as error:
            tolerate(error, NOT_FOUND, CONFLICT)


def not_owned(kind: Kind, name: str) -> ApiError:
    return ApiError(
        CONFLICT, "Foreign", f"{kind.kind} {name} exists and does not belong to this job: delete it, or rename the job"
    )
