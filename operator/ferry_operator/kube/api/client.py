"""The API server, through the official client; only this file imports it. Plain documents in and out, no retries.

With FERRY_RECORD_CALLS=FILE every call appends a line of JSON, with the terms of a Role: a test compares the calls with
the RBAC rules of the chart.
"""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kubernetes
import urllib3
import yaml

from ferry.contract.errors import Refusal
from ferry_operator.kube.api.names import FIELD_MANAGER, Doc
from ferry_operator.kube.api.port import EVENTS, GONE, PODS, Api, ApiError, Deposed, Kind

TIMEOUT = (3.0, 8.0)
"""Seconds to connect, and to wait for an answer."""

USER_TIMEOUT = (5.0, 30.0)
"""The same for command lines of users, with slower networks."""

CONNECTIONS_MAX = 40
"""Connections of the pool: one for each concurrent reconcile, and a few for listings."""

PAGE = 100
"""Objects in one answer to a list: neither side holds all documents at a time."""

BEGIN_AGAIN_MAX = 3
"""New attempts for a list whose version becomes too old before its end."""

RECORD = "FERRY_RECORD_CALLS"

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of the service account in a pod."""

WRITES = frozenset({"POST", "PUT", "PATCH"})
"""Methods that have an owner in `managedFields` of the written object."""

Counter = Callable[[str, str, str], None]
"""counter(verb, resource, HTTP status), at every call"""


class KubeApi:
    """One namespace of a cluster. Thread-safe."""

    manager = FIELD_MANAGER
    """Name of this program in audit logs, and as the owner of the fields that it writes."""

    def __init__(
        self, namespace: str, count: Counter, timeout: tuple[float, float] = TIMEOUT, configuration: Any = None
    ) -> None:
        """Default configuration: the service account of the pod, else the kubeconfig of the user."""
        configuration = configuration or _of_this_process()
        configuration.retries = False
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        self._client = kubernetes.client.ApiClient(configuration)
        self._client.user_agent = self.manager
        self._namespace = namespace
        self._count = count
        self._timeout = timeout

    def within(self, namespace: str) -> KubeApi:
        """See `port.ClusterApi`."""
        other = copy.copy(self)
        other._namespace = namespace
        return other

    def get(self, kind: Kind, name: str) -> Doc:
        """See `port.Api`."""
        return self._call("GET", kind, name)

    def find(self, kind: Kind, selector: str = "", name: str = "") -> list[Doc]:
        """See `port.Api`."""
        everything = list[Doc]()
        for is_first, items in self._pages(kind, selector, name):
            everything = items if is_first else [*everything, *items]
        return everything

    def each(self, kind: Kind, selector: str = "") -> Iterator[Doc]:
        """See `port.Api`."""
        for _, items in self._pages(kind, selector):
            yield from items

    def _pages(self, kind: Kind, selector: str, name: str = "") -> Iterator[tuple[bool, list[Doc]]]:
        """Pages of a list, each with whether it is the first: the list begins again when it has become too old to go on."""
        token, begun = "", 0
        while True:
            query = [("limit", str(PAGE)), *([("labelSelector", selector)] if selector else [])]
            query += [("fieldSelector", f"metadata.name={name}")] if name else []
            try:
                answer = self._call("GET", kind, verb="list", query=[*query, *([("continue", token)] if token else [])])
            except ApiError as error:
                begun += 1
                if error.status != GONE or not token or begun > BEGIN_AGAIN_MAX:
                    raise
                token = ""
                continue
            yield not token, answer.get("items") or []
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    def listed(self, kind: Kind) -> tuple[list[Doc], str]:
        """See `port.Watchable`."""
        answer = self._call("GET", kind, verb="list")
        return answer.get("items") or [], str((answer.get("metadata") or {}).get("resourceVersion", ""))

    def changes(self, kind: Kind, version: str, seconds: int, name: str = "") -> Iterator[tuple[str, Doc]]:
        """See `port.Watchable`."""
        record("watch", kind)
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", str(seconds))]
        query += [("fieldSelector", f"metadata.name={name}")] if name else []
        request = self._client.param_serialize(
            "GET",
            self._base(kind),
            query_params=[*query, ("resourceVersion", version)],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        connect, read = self._timeout
        try:
            answer = self._client.call_api(*request, _request_timeout=(connect, seconds + read)).response
            if not 200 <= answer.status <= 299:
                raise _refused("watch", kind, "", int(answer.status), _parsed(answer.data))
            for line in answer:
                change = _parsed(line)
                if not isinstance(change, dict) or not isinstance(change.get("object"), dict):
                    raise ApiError(0, "Garbled", f"watch {kind.plural}: a line is no change of an object")
                if change.get("type") == "ERROR":
                    raise _refused("watch", kind, "", int(change["object"].get("code") or 0), change["object"])
                yield str(change.get("type")), change["object"]
        except (urllib3.exceptions.HTTPError, kubernetes.client.ApiException, OSError) as error:
            raise ApiError(0, "Unreachable", f"watch {kind.plural}: the API server does not answer: {error}") from None

    def create(self, kind: Kind, document: Doc) -> Doc:
        """See `port.Api`."""
        return self._call("POST", kind, body=document)

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        """See `port.Api`."""
        return self._call("PUT", kind, name, body=document)

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        """See `port.Api`."""
        return self._call("PATCH", kind, name, subresource, document)

    def json_patch(self, kind: Kind, name: str, steps: Sequence[Doc]) -> Doc:
        """See `port.Api`."""
        return self._call("PATCH", kind, name, body=list(steps))

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        """See `port.Api`."""
        conditions = {**({"uid": uid} if uid else {}), **({"resourceVersion": version} if version else {})}
        options: Doc = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if conditions:
            options["preconditions"] = conditions
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        self._call("DELETE", kind, name, body=options)

    def schemas(self, kind: Kind) -> Doc:
        """See `port.Schemas`."""
        return self._call("GET", kind, path=f"/openapi/v3/apis/{kind.group}/{kind.version}")

    def _call(
        self,
        method: str,
        kind: Kind,
        name: str = "",
        subresource: str = "",
        body: Doc | list[Doc] | None = None,
        verb: str = "",
        query: list[tuple[str, str]] | None = None,
        path: str = "",
        applied: bool = False,
    ) -> Doc:
        """`path`: of no resource, so no rule of a Role allows it; `applied`: a server-side apply, and no merge patch."""
        verb = verb or VERBS[method]
        if not path:
            record(verb, kind, subresource, everywhere=not self._namespace)
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = f"application/{'json' if isinstance(body, list) else 'merge'}-patch+json"
        if applied:
            headers["Content-Type"] = "application/apply-patch+yaml"
        if method in WRITES:
            query = [*(query or ()), ("fieldManager", self.manager)]
        path = path or "/".join(part for part in (self._base(kind), name, subresource) if part)
        request = self._client.param_serialize(
            method,
            path,
            query_params=query,
            header_params=headers,
            body=json.dumps(body) if applied else body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(*request, _request_timeout=self._timeout)
            data = _parsed(answer.read() or b"{}")
        except (urllib3.exceptions.HTTPError, kubernetes.client.ApiException, OSError) as error:
            self._count(verb, kind.plural, "none")
            raise ApiError(0, "Unreachable", f"{verb} {kind.plural}: the API server does not answer: {error}") from None
        self._count(verb, kind.plural, str(answer.status))
        if not 200 <= answer.status <= 299:
            raise _refused(verb, kind, name, int(answer.status), data)
        if not isinstance(data, dict):
            raise ApiError(0, "Garbled", f"{verb} {kind.plural}: the answer of the API server is no JSON object")
        return data

    def _base(self, kind: Kind) -> str:
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        within = kind.namespaced and self._namespace
        return f"{root}/namespaces/{self._namespace}/{kind.plural}" if within else f"{root}/{kind.plural}"


class DefinitionsClient(KubeApi):
    """A client that applies definitions. Implements `port.Definitions`."""

    manager = "ferry-definitions"

    def apply(self, kind: Kind, name: str, document: Doc) -> Doc:
        """See `port.Definitions`."""
        return self._call("PATCH", kind, name, body=document, query=[("force", "true")], applied=True)


class UserClient(KubeApi):
    """A client with the rights of a user, and with calls for command lines. Implements `cli.remote.port.UserApi`."""

    manager = "kubectl-streamjob"

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        """`kubeconfig`: files in the syntax of KUBECONFIG; None: the service account of this pod. Raises Refusal."""
        configuration = kubernetes.client.Configuration()
        self.context, of_context = _of_user(configuration, kubeconfig, context)
        self.namespace = namespace or of_context
        super().__init__(self.namespace, lambda *_: None, USER_TIMEOUT, configuration)

    def dry_run(self, kind: Kind, name: str, document: Doc) -> Doc:
        """See `cli.remote.port.UserApi`."""
        query = [("dryRun", "All"), ("fieldValidation", "Strict")]
        return self._call("PATCH", kind, name, body=document, query=query)

    def events(self, about: str) -> list[Doc]:
        """See `cli.remote.port.UserApi`."""
        query = [("fieldSelector", f"involvedObject.name={about}")]
        items: list[Doc] = self._call("GET", EVENTS, verb="list", query=query).get("items") or []
        return items

    def log(
        self, pod: str, container: str, follow: bool = False, previous: bool = False, tail: int | None = None
    ) -> Iterator[bytes]:
        """See `cli.remote.port.UserApi`."""
        record("get", PODS, "log")
        wanted = {"container": container, "follow": follow or None, "previous": previous or None, "tailLines": tail}
        query = [(key, str(value).lower()) for key, value in wanted.items() if value is not None]
        request = self._client.param_serialize(
            "GET",
            f"{self._base(PODS)}/{pod}/log",
            query_params=query,
            header_params={"Accept": "*/*"},
            auth_settings=["BearerToken"],
        )
        connect, read = self._timeout
        try:
            answer = self._client.call_api(*request, _request_timeout=(connect, None if follow else read)).response
            if not 200 <= answer.status <= 299:
                raise _refused("get", PODS, pod, int(answer.status), _parsed(answer.data))
            yield from answer
        except (urllib3.exceptions.HTTPError, kubernetes.client.ApiException, OSError) as error:
            raise ApiError(0, "Unreachable", f"log of {pod}: the API server does not answer: {error}") from None


def _of_this_process() -> Any:
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(client_configuration=configuration)
    except kubernetes.config.ConfigException:
        kubernetes.config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=configuration)
    return configuration


def _of_user(configuration: Any, kubeconfig: str | None, context: str | None) -> tuple[str, str]:
    """Fill in the configuration; returns the names of the context and of its namespace."""
    if kubeconfig is None:
        try:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            return "in-cluster", (ACCOUNT / "namespace").read_text().strip()
        except (kubernetes.config.ConfigException, OSError) as error:
            raise Refusal(f"the service account of this pod cannot be used: {error}") from None
    try:
        kubernetes.config.load_kube_config(
            kubeconfig, context, client_configuration=configuration, persist_config=False
        )
        merged = kubernetes.config.kube_config.KubeConfigMerger(kubeconfig).config.value
        name = context or merged["current-context"]
        chosen = next(each.value for each in merged["contexts"] if each.value["name"] == name)
        return str(name), str(chosen["context"].get("namespace") or "default")
    except (kubernetes.config.ConfigException, yaml.YAMLError, OSError, TypeError, LookupError) as error:
        within = f", context {context}" if context else ""
        raise Refusal(f"kubeconfig {kubeconfig}{within} cannot be used: {error}") from None


class Fenced:
    """An API with a fence: only the holder of the Lease writes; for a deposed operator, every write raises Deposed."""

    def __init__(self, api: Api, held: Callable[[], bool]) -> None:
        self._api = api
        self._held = held
        self.get = api.get
        self.find = api.find
        self.each = api.each

    def create(self, kind: Kind, document: Doc) -> Doc:
        """See `port.Api`."""
        return self._mine().create(kind, document)

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        """See `port.Api`."""
        return self._mine().replace(kind, name, document)

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        """See `port.Api`."""
        return self._mine().patch(kind, name, document, subresource)

    def json_patch(self, kind: Kind, name: str, steps: Sequence[Doc]) -> Doc:
        """See `port.Api`."""
        return self._mine().json_patch(kind, name, steps)

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        """See `port.Api`."""
        self._mine().delete(kind, name, uid, version, grace)

    def _mine(self) -> Api:
        if not self._held():
            raise Deposed("the Lease is no longer held")
        return self._api


_record_lock = threading.Lock()


def record(verb: str, kind: Kind, subresource: str = "", everywhere: bool = False) -> None:
    """Append a call to the file of FERRY_RECORD_CALLS, if it is set."""
    file = os.environ.get(RECORD)
    if file:
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        line = json.dumps(
            {"verb": verb, "group": kind.group, "resource": resource, "namespaced": kind.namespaced and not everywhere}
        )
        with _record_lock, open(file, "a") as out:
            out.write(line + "\n")


def _refused(verb: str, kind: Kind, name: str, status: int, data: Any) -> ApiError:
    body = data if isinstance(data, dict) else {}
    text = str(body.get("message") or f"{verb} {kind.plural} {name}: the API server answers with {status}")
    return ApiError(status, str(body.get("reason") or status), text)


def _parsed(data: bytes) -> Any:
    """The parsed JSON, else None: the answer for an unknown resource is plain text."""
    try:
        return json.loads(data)
    except ValueError:
        return None
