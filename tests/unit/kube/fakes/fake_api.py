"""An API server in memory: versions, preconditions, merge patches, the status apart, and garbage that is collected."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ferry_operator.kube.api.names import FIELD_MANAGER, Doc
from ferry_operator.kube.api.port import JOBS, NODES, PODS, ApiError, Kind
from ferry_operator.kube.observe.facts import stamp

Hook = Callable[[str, Kind, str], None]


def nothing(verb: str, kind: Kind, name: str) -> None:
    pass


class FakeApi:
    """Objects by kind and name. `before` and `after` are called around every call; what they raise, the caller gets."""

    def __init__(self, clock: Callable[[], float], namespace: str = "jobs") -> None:
        self.objects: dict[tuple[Kind, str], Doc] = {}
        self.calls: list[tuple[str, Kind, str]] = []
        self.gone: dict[int, tuple[Kind, Doc]] = {}
        """removed objects by the version of their removal"""
        self.oldest = 0
        """changes since an older version cannot be had"""
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.published: Doc = {}
        """the OpenAPI document"""
        self._clock, self._namespace = clock, namespace
        self._numbers = itertools.count(1)

    # ---- the port
    def within(self, namespace: str) -> FakeApi:
        assert namespace == self._namespace
        return self

    def get(self, kind: Kind, name: str) -> Doc:
        return self._call("get", kind, name, lambda: self._known(kind, name))

    def find(self, kind: Kind, selector: str = "", name: str = "") -> list[Doc]:
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)

        def find() -> Any:
            found = [doc for (one, its), doc in self.objects.items() if one == kind and name in ("", its)]
            return [d for d in found if wanted.items() <= (d["metadata"].get("labels") or {}).items()]

        return self._call("list", kind, "", find)

    def each(self, kind: Kind, selector: str = "") -> Iterator[Doc]:
        yield from self.find(kind, selector)

    def listed(self, kind: Kind) -> tuple[list[Doc], str]:
        return self.find(kind), self._last()

    def changes(self, kind: Kind, version: str, seconds: int, name: str = "") -> Iterator[tuple[str, Doc]]:
        """Objects that were stored since, and names that are gone; nothing is waited for."""
        self._call("watch", kind, "", dict)
        first = int(version or self.oldest)
        if first < self.oldest:
            raise ApiError(410, "Expired", "too old resource version")
        alike = [d for (one, its), d in self.objects.items() if one == kind and name in ("", its)]
        since = [d for d in alike if int(_version(d)) > first]
        yield from (("MODIFIED", copied(d)) for d in sorted(since, key=lambda d: int(_version(d))))
        gone = [(number, d) for number, (one, d) in self.gone.items() if one == kind and number > first]
        for number, document in gone:
            yield "DELETED", {"metadata": {**document["metadata"], "resourceVersion": str(number)}}
        yield "BOOKMARK", {"metadata": {"resourceVersion": self._last()}}

    def _last(self) -> str:
        return str(max([0, *(int(_version(d)) for d in self.objects.values()), *self.gone]))

    def create(self, kind: Kind, document: Doc) -> Doc:
        name = document["metadata"]["name"]

        def create() -> Doc:
            if (kind, name) in self.objects:
                raise ApiError(409, "AlreadyExists", f"{kind.plural} {name!r} already exists")
            made = copied(document)
            made["metadata"] |= {
                "uid": f"{next(self._numbers):08x}-0000", "namespace": self._namespace, "generation": 1,
                "creationTimestamp": stamp(self._clock()), "resourceVersion": str(next(self._numbers)),
            }  # fmt: skip
            if kind == PODS:
                made["status"] = {"phase": "Pending"}
            self.objects[kind, name] = made
            return made

        return self._call("create", kind, name, create)

    def replace(self, kind: Kind, name: str, document: Doc) -> Doc:
        def replace() -> Doc:
            old = self._known(kind, name)
            self._check(old, document["metadata"].get("resourceVersion", ""))
            kept = {key: old["metadata"][key] for key in ("uid", "namespace", "creationTimestamp")}
            return self._store(kind, {**copied(document), "metadata": {**document["metadata"], **kept}})

        return self._call("update", kind, name, replace)

    def patch(self, kind: Kind, name: str, document: Doc, subresource: str = "") -> Doc:
        def patch() -> Doc:
            old = self._known(kind, name)
            metadata = document.get("metadata") or {}
            self._check(old, metadata.get("resourceVersion", ""), metadata.get("uid", ""))
            new = merged(old, document)
            if kind == JOBS:
                new = {**new, "status": old.get("status")} if not subresource else {**old, "status": new["status"]}
                if new.get("spec") != old.get("spec"):
                    new["metadata"] = {**new["metadata"], "generation": old["metadata"]["generation"] + 1}
                    own(new, old, FIELD_MANAGER)
            return self._store(kind, new)

        return self._call(f"patch {subresource}".strip(), kind, name, patch)

    def json_patch(self, kind: Kind, name: str, steps: Sequence[Doc]) -> Doc:
        def json_patch() -> Doc:
            new = copied(self._known(kind, name))
            for step in steps:
                *above, last = step["path"].strip("/").split("/")
                at = new
                try:
                    for part in above:
                        at = at[int(part)] if isinstance(at, list) else at[part]
                    if step["op"] == "test" and at[last] != step["value"]:
                        raise KeyError(last)
                except LookupError:
                    raise ApiError(422, "Invalid", "the server rejected our request due to an error in it") from None
                if step["op"] == "add":
                    at[last] = step["value"]
            return self._store(kind, new)

        return self._call("json_patch", kind, name, json_patch)

    def delete(self, kind: Kind, name: str, uid: str = "", version: str = "", grace: int | None = None) -> None:
        def delete() -> Doc:
            old = self._known(kind, name)
            self._check(old, version, uid)
            running = kind == PODS and (old.get("spec") or {}).get("nodeName") and old["status"]["phase"] == "Running"
            if running and grace != 0:
                seconds = grace if grace is not None else old["spec"].get("terminationGracePeriodSeconds", 30)
                old["metadata"].setdefault("deletionTimestamp", stamp(self._clock() + seconds))
                return self._store(kind, old)
            self.remove(kind, name)
            return old

        self._call("delete", kind, name, delete)

    def schemas(self, kind: Kind) -> Doc:
        return self._call("schemas", kind, "", lambda: self.published)

    # ---- the world around it
    def remove(self, kind: Kind, name: str) -> None:
        """An object goes, with all that it owns."""
        gone = self.objects.pop((kind, name))
        self.gone[next(self._numbers)] = (kind, gone)
        for (other, child), document in list(self.objects.items()):
            owners = document["metadata"].get("ownerReferences") or []
            if any(one["uid"] == gone["metadata"]["uid"] for one in owners) and (other, child) in self.objects:
                self.delete(other, child)

    def set_status(self, kind: Kind, name: str, **status: Any) -> None:
        """What a kubelet or a controller reports."""
        old = self.objects[kind, name]
        self._store(kind, {**old, "status": {**(old.get("status") or {}), **status}})

    def edit(self, kind: Kind, name: str, document: Doc, manager: str = "kubectl-edit") -> None:
        """What a user or a controller writes, past the hooks."""
        old = self.objects[kind, name]
        new = merged(old, document)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] += 1
            if kind == JOBS:
                own(new, old, manager)
        self._store(kind, new)

    def names(self, kind: Kind) -> list[str]:
        return sorted(name for one, name in self.objects if one == kind)

    def add_node(self, name: str, zone: str | None = None) -> None:
        labels = {"topology.kubernetes.io/zone": zone} if zone else {}
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": stamp(self._clock())}
        metadata = {"name": name, "uid": name, "labels": labels, "generation": 1}
        self._store(NODES, {"metadata": metadata, "spec": {}, "status": {"conditions": [ready]}})

    # ---- inside
    def _call(self, verb: str, kind: Kind, name: str, do: Callable[[], Any]) -> Any:
        self.before(verb, kind, name)
        self.calls.append((verb, kind, name))
        answer = copied(do())
        self.after(verb, kind, name)
        return answer

    def _known(self, kind: Kind, name: str) -> Doc:
        if (kind, name) not in self.objects:
            raise ApiError(404, "NotFound", f"{kind.plural} {name!r} not found")
        return self.objects[kind, name]

    def _check(self, old: Doc, version: str, uid: str = "") -> None:
        metadata = old["metadata"]
        if (version and version != metadata["resourceVersion"]) or (uid and uid != metadata["uid"]):
            raise ApiError(409, "Conflict", f"{metadata['name']!r} has changed")

    def _store(self, kind: Kind, document: Doc) -> Doc:
        name = document["metadata"]["name"]
        old = self.objects.get((kind, name))
        if old is not None and plain(old) == plain(document):
            return old
        document = copied(document)
        document["metadata"]["resourceVersion"] = str(next(self._numbers))
        self.objects[kind, name] = document
        return document


def _version(document: Doc) -> str:
    return str(document["metadata"].get("resourceVersion", 0))


def own(new: Doc, old: Doc, manager: str) -> None:
    """The writer of another number of workers owns the field, and nobody else does."""
    if new["spec"].get("workers") != old["spec"].get("workers"):
        new["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:spec": {"f:workers": {}}}}]


def plain(document: Doc) -> Doc:
    metadata = {key: value for key, value in document["metadata"].items() if key != "resourceVersion"}
    return {**document, "metadata": metadata}


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch."""
    if not isinstance(patch, dict):
        return copied(patch)
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return copied(new)


def copied(value: Any) -> Any:
    """A copy of plain values; much quicker than `copy.deepcopy`. Go writes 1.0 as 1."""
    return json.loads(json.dumps(value), parse_float=_of_go)


def _of_go(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number
