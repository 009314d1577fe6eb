"""The API of a cluster for commands of users: the calls of the operator, and calls that only users need.

`kube.api` implements it by an API server, tests implement it in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ferry.contract.errors import FerryError, Refusal
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFLICT, JOBS, NOT_FOUND, Api, ApiError, Kind
from ferry_operator.local.registry import NoSuchJob

DEFINITIONS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)

TRIES_MAX = 8
"""Attempts at a change while others change the object: a status is written every few seconds."""


class UserApi(Api, Protocol):
    """A namespace of a cluster, with the rights of a user. Raises ApiError."""

    @property
    def context(self) -> str:
        """Name of the context, for messages."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    def dry_run(self, kind: Kind, name: str, document: Doc) -> Doc:
        """The object after a merge patch, checked by the API server; the cluster stays unchanged."""

    def events(self, about: str) -> list[Doc]:
        """Events of objects with this name."""

    def log(
        self, pod: str, container: str, follow: bool = False, previous: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        """Lines of the log of a container."""


def job_of(api: UserApi, name: str) -> Doc:
    """The StreamJob. Raises NoSuchJob, ApiError."""
    try:
        return api.get(JOBS, name)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        where = f"in namespace {api.namespace} (context {api.context})"
        if error.reason != "NotFound" or "the requested resource" in str(error):
            raise Refusal(f"this cluster has no StreamJobs (context {api.context}): is Ferry installed?") from None
        raise NoSuchJob(f"no StreamJob called {name!r} {where}") from None


def as_refusal(error: ApiError) -> FerryError:
    """The error for a command: a Refusal if the API server refuses the request, else the error itself."""
    refused = 400 <= error.status < 500 and error.status != CONFLICT and not error.is_transient
    return Refusal(str(error)) if refused else error
