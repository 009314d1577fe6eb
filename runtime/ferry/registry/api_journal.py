"""The journal in the API server of Kubernetes: an object of its own for each job, swapped by its resourceVersion.

Plain HTTPS with the token of the pod, so the runtime needs no client of Kubernetes. Three verbs on one object and no
more: code that runs in a driver has no other right. It never creates the object, which belongs to the StreamJob, and
never reads any other.
"""

from __future__ import annotations

import json
import logging
import secrets
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import SpecRefused, StateUnavailable, Superseded, Unreachable
from ferry.contract.journals import PATH, PLURAL, packed, read, unpacked, written
from ferry.contract.routing import Table, Version
from ferry.registry.journal import GONE, RedisJournal, taken_over

log = logging.getLogger("ferry.registry")

TIMEOUT = httpx.Timeout(5.0, connect=2.0)

CONFLICTS_MAX = 5
"""Conflicting writes in a row: another process writes to the object all the time."""

FORBIDDEN_SECONDS = 60.0
"""New rights reach every API server within seconds: after this long without them the driver reports it."""

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Request format for calls that do not need the table, which is most of the bytes."""

Doc = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """A pod's access to the API server."""

    url: str
    """https://HOST:PORT"""
    token: Path
    """read for every request: the kubelet renews it"""
    authority: Path


class _Conflict(Exception):
    """The object has changed since it was read."""


class ApiJournal:
    """One object for each job: in `spec` are version, writer and operators, and the table, packed."""

    look_seconds = 2.0

    def __init__(self, access: Access, namespace: str, name: str, before: RedisJournal, begun: bool) -> None:
        """`before`: the Redis journal of a job from an older release, taken over once.

        `begun`: the job has finished an epoch, so an empty journal is a lost one.
        """
        self._access = access
        self._path = PATH.format(namespace=namespace, name=name)
        self._name = name
        self._before = before
        self._begun = begun
        self._writer = secrets.token_hex(8)
        trusted = ssl.create_default_context(cafile=access.authority)
        self._client = httpx.Client(
            base_url=access.url,
            verify=trusted,
            timeout=TIMEOUT,
            trust_env=False,
            headers={"User-Agent": "ferry-driver"},  # also the owner of the journal's fields
        )
        self._taking_over = self._seen = False
        self._forbidden_since: float | None = None

    def catalogue(self) -> Catalogue | None:
        text = self._found()["spec"].get("operators")
        return read(text) if text else self._before.catalogue()

    def record(self, catalogue: Catalogue, generation: int) -> None:
        for _ in range(CONFLICTS_MAX):
            current, now = self._found(), written(catalogue)
            if "table" in current["spec"] and int(current["spec"]["generation"]) > generation:
                raise taken_over(int(current["spec"]["generation"]))
            if current["spec"].get("operators") == now:
                return
            with suppress(_Conflict):
                return self._write(current, {"operators": now})
        raise self._restless()

    def read(self) -> Table | None:
        """The journaled table. Raises StateUnavailable for a journal that should exist and was not found, and
        SpecRefused when this pod has never had the right to it.
        """
        spec = self._found(self._gone() if self._seen else None)["spec"]
        if "table" in spec:
            return unpacked(spec["table"])
        journaled = self._before.read()
        if journaled is None and self._begun:
            raise StateUnavailable(
                f"the job has finished epochs, and its journal is neither in {PLURAL}/{self._name} nor in Redis: bring back "
                "what held it (the volume of Redis, or a backup of the object), or make a new job"
            )
        self._taking_over = journaled is not None
        return journaled

    def swap(self, table: Table, expected: Version | None) -> None:
        for _ in range(CONFLICTS_MAX):
            current = self._found(self._gone())
            spec = current["spec"]
            if "table" in spec:
                now = Version(int(spec["generation"]), int(spec["number"]))
                if spec.get("writer") == self._writer and now == table.version:
                    return self._finish_taking_over()
                if now != expected:
                    raise taken_over(now.generation)
            elif self._taking_over:
                # From here on no driver that knows only Redis can write; a later driver takes over the present table.
                self._before.swap(table, expected)
            elif expected is not None:
                raise self._gone()
            generation, number = table.version
            wanted = {"generation": generation, "number": number, "virtualNodes": table.virtual_nodes}
            with suppress(_Conflict):
                self._write(current, {**wanted, "writer": self._writer, "table": packed(table)})
                return self._finish_taking_over()
        raise self._restless()

    def is_reachable(self) -> bool:
        try:
            self._call("GET", accept=METADATA_ONLY)
        except Unreachable:
            return False
        return True

    def weakness(self) -> str:
        """No weakness: the API server has written what it acknowledges to disk, on most of its machines."""
        return ""

    # ---- the object
    def _finish_taking_over(self) -> None:
        """Stop later use of the Redis journal. Redis may be unreachable: the next driver reads here."""
        if self._taking_over:
            self._taking_over = False
            with suppress(Unreachable):
                self._before.move(f"{PLURAL}/{self._name}")

    def _found(self, missing: Exception | None = None) -> Doc:
        try:
            current = self._call("GET")
        except _Forbidden as error:
            now = time.monotonic()
            self._forbidden_since = self._forbidden_since or now
            if self._seen or now - self._forbidden_since < FORBIDDEN_SECONDS:
                raise
            raise SpecRefused(str(error)) from None
        if current is None:
            raise missing or Unreachable(
                f"there is no {PLURAL}/{self._name}: the operator makes it before the driver's pod"
            )
        self._seen = True
        return {**current, "spec": current.get("spec") or {}}

    def _write(self, found: Doc, spec: Doc) -> None:
        """Merge into the object, if it has not changed since it was read."""
        version = found["metadata"]["resourceVersion"]
        if self._call("PATCH", {"metadata": {"resourceVersion": version}, "spec": spec}, METADATA_ONLY) is None:
            raise self._gone()

    def _call(self, method: str, body: Doc | None = None, accept: str = "application/json") -> Doc | None:
        """The answer; None: the object does not exist."""
        try:
            headers = {"Authorization": f"Bearer {self._access.token.read_text().strip()}", "Accept": accept}
            if body is not None:
                headers["Content-Type"] = "application/merge-patch+json"
            answer = self._client.request(
                method, self._path, headers=headers, content=json.dumps(body) if body else None
            )
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(
                f"the journal: the API server does not answer: {type(error).__name__}: {error}"
            ) from error
        if answer.status_code == 404:
            return None
        if answer.status_code == 409:
            raise _Conflict
        if answer.status_code == 403:
            raise _Forbidden(
                f"the journal: {_message(answer)}; the account of the driver's pod needs the chart's Role for journals: "
                "name it in the value jobs.driverAccounts, or leave spec.kubernetes.serviceAccount out"
            )
        if not answer.is_success:
            raise Unreachable(f"the journal: the API server answers {answer.status_code}: {_message(answer)}")
        found: Doc = answer.json()
        return found

    def _gone(self) -> Superseded:
        return Superseded(GONE.format(where=f"{PLURAL}/{self._name}"))

    def _restless(self) -> Unreachable:
        return Unreachable(f"{PLURAL}/{self._name} is constantly written to by another process")


class _Forbidden(Unreachable):
    """This pod has no right to its journal."""


def _message(answer: httpx.Response) -> str:
    with suppress(ValueError, AttributeError):
        return str(answer.json().get("message"))
    return answer.text[:200]
