"""What a user's commands ask of the API server: the operator's verbs, and some that only people need.

`kube.api` implements it with an API server; tests with one in memory.
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
"""Tries of a change while others change the object: a status is written every few seconds."""


class UserApi(Api, Protocol):
    """A namespace of a cluster, with the rights of a user. Raises ApiError."""

    @property
    def context(self) -> str:
        """Name of the context, for messages."""

    @property
    def namespace(self) -> str:
        """The namespace."""

    def dry_run(self, kind: Kind, name: str, document: Doc) -> Doc:
        """The object after a merge patch, with all checks of the API server; nothing is changed."""

    def events(self, about: str) -> list[Doc]:
        """Events about objects of this name."""

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
    """The error as a command ends with it: what the API server refuses, nothing is wrong with."""
    refused = 400 <= error.status < 500 and error.status != CONFLICT and not error.is_transient
    return Refusal(str(error)) if refused else error
