"""The namespaces with jobs of this release: a list, or the namespaces that a label selector chooses.

The chart renders the objects of listed namespaces. The operator creates the same objects in a chosen namespace, beginning
with the RoleBinding that gives it the rights there, and removes them when the namespace is no longer chosen and has no jobs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import (
    CONFLICT,
    FORBIDDEN,
    JOBS,
    NAMESPACES,
    NOT_FOUND,
    OF_NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    Api,
    ApiError,
    ClusterApi,
    tolerate,
)

log = logging.getLogger("ferry.operator")

SYSTEM = "kube-"
"""Namespaces with such names are never chosen without a selector."""

OURS = f"{names.MANAGED}={names.MANAGER}"
"""Selects the pods of jobs."""

INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True)
class NamespaceChoice:
    """Where the jobs of the release are."""

    listed: tuple[str, ...] = ()
    selector: str | None = None
    """labels of the namespaces; empty: all namespaces; None: the listed namespaces"""
    objects: tuple[Doc, ...] = ()
    """objects of a chosen namespace; the first one is the RoleBinding of the operator"""

    @staticmethod
    def read(listed: str, selector: str | None, objects: str) -> NamespaceChoice:
        """Read the arguments of the process; `objects`: JSON."""
        return NamespaceChoice(tuple(filter(None, listed.split(","))), selector, tuple(json.loads(objects or "[]")))


OWN = NamespaceChoice()
"""The namespace of the release."""


class Namespaces:
    """Finds the namespaces, prepares them, and clears them again."""

    def __init__(self, api: ClusterApi, choice: NamespaceChoice, home: str, fenced: Callable[[Api], Api]) -> None:
        """`home`: the namespace of the release; `fenced`: wraps an API for writes."""
        self._api = api
        self._choice = choice
        self._home = home
        self._fenced = fenced
        self._prepared: set[str] = set()
        self._left: frozenset[str] | None = None

    @property
    def fixed(self) -> bool:
        """Whether the namespaces are listed."""
        return self._choice.selector is None

    def chosen(self) -> frozenset[str]:
        """The namespaces of jobs. Raises ApiError."""
        selector = self._choice.selector
        if selector is None:
            return frozenset(self._choice.listed or (self._home,))
        everything = self._api.find(NAMESPACES, selector)
        alive = [each["metadata"]["name"] for each in everything if not each["metadata"].get("deletionTimestamp")]
        return frozenset(name for name in alive if selector or not name.startswith(SYSTEM))

    def left(self) -> frozenset[str]:
        """Namespaces that an earlier operator of the release has prepared; read once. Raises ApiError."""
        if self._left is None:
            self._left = self._find_prepared()
        return self._left

    def leave(self, namespace: str) -> None:
        """The namespace is cleared, or gone: it is no longer left."""
        self._left = self.left() - {namespace}

    def prepare(self, namespace: str) -> None:
        """Create the objects of a chosen namespace. Raises ApiError, also while the new rights are not in force yet."""
        if namespace in self._prepared or self.fixed:
            return
        api = self._fenced(self._api.within(namespace))
        for document in self._choice.objects:
            self._put(api, _within(document, namespace))
        self._prepared.add(namespace)
        log.info("the namespace %s is prepared for jobs", namespace)

    def forbidden(self, namespace: str) -> None:
        """Prepare the namespace again at the next occasion: the operator has no rights there."""
        self._prepared.discard(namespace)

    def is_prepared(self, namespace: str) -> bool:
        """Whether the operator still has its RoleBinding there. Raises ApiError."""
        return namespace in self._find_prepared()

    def clear(self, namespace: str) -> bool:
        """Delete the objects of a namespace without jobs, the RoleBinding of the operator last; False: it has jobs.

        The API server is asked: a new leader may not have been able to list the namespace yet. Raises ApiError.
        """
        api = self._fenced(self._api.within(namespace))
        if any(True for kind, selector in ((JOBS, ""), (PODS, OURS)) for _ in api.each(kind, selector)):
            return False
        self._prepared.discard(namespace)
        if self.fixed or namespace == self._home:
            return True
        for document in reversed(self._choice.objects):
            try:
                api.delete(OF_NAMESPACES[document["kind"]], document["metadata"]["name"])
            except ApiError as error:
                tolerate(error, NOT_FOUND, FORBIDDEN)  # the rights may go with the namespace
        log.info("the namespace %s is cleared: it is not chosen, and has no jobs", namespace)
        return True

    def _find_prepared(self) -> frozenset[str]:
        if self.fixed or not self._choice.objects:
            return frozenset()
        first = self._choice.objects[0]["metadata"]
        selector = f"{INSTANCE}={first['labels'][INSTANCE]},{COMPONENT}={first['labels'][COMPONENT]}"
        bindings = self._api.within("").find(ROLE_BINDINGS, selector)
        role = self._choice.objects[0]["roleRef"]  # a ClusterRole: binding it needs its rights
        return frozenset(each["metadata"]["namespace"] for each in bindings if each["roleRef"] == role)

    @staticmethod
    def _put(api: Api, document: Doc) -> None:
        kind, name = OF_NAMESPACES[document["kind"]], document["metadata"]["name"]
        try:
            api.create(kind, document)
        except ApiError as error:
            tolerate(error, CONFLICT)
            api.patch(kind, name, document)


def _within(document: Doc, namespace: str) -> Doc:
    """The object in this namespace; accounts without a namespace are of this namespace."""
    metadata = {**document["metadata"], "namespace": namespace}
    metadata["labels"] = {**metadata["labels"], names.MANAGED: names.MANAGER}
    subjects = [{"namespace": namespace, **subject} for subject in document.get("subjects") or ()]
    return {**document, "metadata": metadata, **({"subjects": subjects} if subjects else {})}
