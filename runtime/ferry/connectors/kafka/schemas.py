"""Schemas of a Confluent schema registry by number. Each schema is requested once; an answer that may change expires.

    a schema                       cached; requested again when a value does not fit it, at most once a minute
    "not found" by the registry    retried for a time, then cached for a minute: a follower may learn of the schema later
    an unusable schema             cached for a minute
    any other answer               unknown: retried

Must never accept an answer of another server (a proxy, a login page) as the registry's answer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ferry.contract.errors import Unreachable

ANSWER_SECONDS = 10.0
"""Timeout of a connection, and of each part of an answer."""

WHOLE_SECONDS = 30.0
"""Timeout of a whole answer."""

ANSWER_BYTES_MAX = 64 << 20
"""Greatest size of an answer."""

SCHEMAS_MAX = 1000
"""Greatest number of schemas in a process's cache."""

MISSING_SECONDS = 30.0
"""Time for which an unknown schema is requested again, because a follower of the registry may learn of it later."""

BELIEVED_SECONDS = 60.0
"""Lifetime of the cached answer for an unknown or unusable schema."""

NOT_FOUND = {40401, 40402, 40403}
"""Error codes of registries: unknown subject, version, schema."""

NAMED = {"record", "error", "enum", "fixed"}
"""Kinds of named Avro types."""

NOWHERE = "_"
"""Namespace for names without a namespace in an assembled schema."""

Key = tuple[str, int]


class Unfit(ValueError):
    """A value that cannot be read."""


class _Missing(Unreachable):
    """The registry does not have the schema, but may have it soon."""


_known: dict[Key, tuple[float, str, str]] = {}
"""By schema: (monotonic time of the request, kind, text)."""

_missing: dict[Key, float] = {}
"""By unknown schema: monotonic time of the first such answer."""

_unfit: dict[Key, tuple[float, str]] = {}
"""By unusable schema: (monotonic time at which the answer expires, reason)."""


def fetch(url: str, numbers: Iterable[int]) -> dict[int, tuple[str, str] | Unfit]:
    """By number: (kind, text) of a schema, or the reason why it is unusable. Raises Unreachable while one is unknown."""
    schemas: dict[int, tuple[str, str] | Unfit] = {}
    missing: _Missing | None = None
    for number in numbers:
        try:
            schemas[number] = _schema(url, number)
        except Unfit as wrong:
            schemas[number] = wrong
        except _Missing as late:  # The wait is shared by all missing schemas.
            missing = late
    if missing is not None:
        raise Unreachable(str(missing)) from missing
    return schemas


def doubt(url: str, number: int) -> bool:
    """Forget a schema that a value does not fit, at most once a minute. Returns whether to request it again."""
    known = _known.get((url, number))
    if known is None or time.monotonic() - known[0] < BELIEVED_SECONDS:
        return False
    del _known[url, number]
    return True


def forget() -> None:
    """Empty the caches of this process."""
    for cache in (_known, _missing, _unfit):
        cache.clear()


def _schema(url: str, number: int) -> tuple[str, str]:
    key = url, number
    if key in _known:
        return _known[key][1:]
    until, why = _unfit.get(key, (0.0, ""))
    if time.monotonic() < until:
        raise Unfit(why)
    try:
        kind, text = _fetched(url, number)
    except Unfit as wrong:
        _note(_unfit, key, (time.monotonic() + BELIEVED_SECONDS, str(wrong)))
        raise
    _missing.pop(key, None)
    _note(_known, key, (time.monotonic(), kind, text))
    return kind, text


def _note(notes: dict[Key, Any], key: Key, about: Any) -> None:
    if len(notes) >= SCHEMAS_MAX:
        notes.clear()
    notes[key] = about


def _fetched(url: str, number: int) -> tuple[str, str]:
    """(kind, text) of a schema, from the registry."""
    label = f"schema {number}"
    about = _get(url, f"schemas/ids/{number}", label)
    if about is None:
        if (url, number) not in _missing:
            _note(_missing, (url, number), time.monotonic())
        if time.monotonic() - _missing[url, number] < MISSING_SECONDS:
            raise _Missing(f"schema registry: it has no {label}; requested again for {MISSING_SECONDS:g} s")
        raise Unfit(f"the registry has no {label}")
    kind = about.get("schemaType") or "AVRO"
    if kind not in ("AVRO", "JSON"):
        raise Unfit(f"{label} is {kind}; Avro and JSON can be read")
    if kind == "JSON" or not about.get("references"):
        return kind, str(about["schema"])
    others: dict[str, Any] = {}
    _collect(url, about["references"], label, others, set())
    return kind, json.dumps(_Whole(others).of(json.loads(about["schema"]), NOWHERE))


def _collect(url: str, references: Any, label: str, types: dict[str, Any], seen: set[tuple[str, int]]) -> None:
    """Add the types of referenced schemas to `types` by full name, recursively."""
    try:
        wanted = [(str(reference["subject"]), int(reference["version"])) for reference in references]
    except (TypeError, KeyError, ValueError) as wrong:
        raise Unreachable(f"schema registry: the references of {label} are invalid") from wrong
    for subject, version in wanted:
        if (subject, version) in seen:
            continue
        seen.add((subject, version))
        other = f"version {version} of subject {subject!r}, to which {label} refers"
        about = _get(url, f"subjects/{quote(subject, safe='')}/versions/{version}", other)
        if about is None:
            raise Unreachable(f"schema registry: it has no {other}")
        _collect(url, about.get("references") or (), other, types, seen)
        _define(json.loads(about["schema"]), NOWHERE, types)


def _get(url: str, path: str, label: str) -> dict[str, Any] | None:
    """The registry's answer with the text of a schema. None if the registry does not have it.

    Raises Unreachable for any other answer.
    """
    status, data = _answer(f"{url}/{path}")
    try:
        about = json.loads(data)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        about = {}
    if status == 404 and about.get("error_code") in NOT_FOUND:
        return None
    if status != 200:
        message = str(about.get("message", ""))[:200]
        raise Unreachable(f"schema registry: status {status} for {label}" + (f": {message}" if message else ""))
    try:
        json.loads(about["schema"]) if (about.get("schemaType") or "AVRO") == "AVRO" else str(about["schema"])
    except (ValueError, TypeError, KeyError, RecursionError) as wrong:
        raise Unreachable(f"schema registry: its answer for {label} is not a schema") from wrong
    return about


def _answer(address: str) -> tuple[int, bytes]:
    """(status, body). Raises Unreachable, also for an endless body."""
    import httpx

    data, end = bytearray(), time.monotonic() + WHOLE_SECONDS
    try:
        with httpx.stream("GET", address, timeout=ANSWER_SECONDS, follow_redirects=True) as answer:
            for part in answer.iter_bytes():
                data += part
                if len(data) > ANSWER_BYTES_MAX or time.monotonic() > end:
                    raise Unreachable(
                        f"schema registry: an answer of more than {ANSWER_BYTES_MAX} bytes, or {WHOLE_SECONDS:g} s"
                    )
            return answer.status_code, bytes(data)
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise Unreachable(f"schema registry: {type(error).__name__}: {error}") from error


def _full(name: str, namespace: str) -> str:
    return name if "." in name else f"{namespace}.{name}"


def _names(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """(full name, namespace of the inner types) of a named type."""
    full = _full(str(schema.get("name", "")), str(schema.get("namespace", namespace)) or NOWHERE)
    return full, full.rpartition(".")[0]


def _parts(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(key, schema) of the inner schemas, without fields."""
    if schema.get("type") in NAMED:
        return []
    return [(key, schema[key]) for key in ("type", "items", "values") if key in schema]


def _define(schema: Any, namespace: str, types: dict[str, Any]) -> None:
    """Add all named types of a schema to `types` by full name."""
    if isinstance(schema, list):
        for branch in schema:
            _define(branch, namespace, types)
    elif isinstance(schema, dict):
        inside = namespace
        if schema.get("type") in NAMED:
            full, inside = _names(schema, namespace)
            types.setdefault(full, {**schema, "name": full.rpartition(".")[2], "namespace": inside})
        for _, part in _parts(schema):
            _define(part, namespace, types)
        for field in schema.get("fields", ()):
            _define(field["type"], inside, types)


class _Whole:
    """Assembles a schema: replaces the first use of a referenced name by its type. All names become full names."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._defined: set[str] = set()

    def of(self, schema: Any, namespace: str) -> Any:
        """The assembled schema. `namespace`: the namespace around the schema."""
        if isinstance(schema, list):
            return [self.of(branch, namespace) for branch in schema]
        if isinstance(schema, str):
            for full in (_full(schema, namespace), _full(schema, NOWHERE)):
                if full in self._defined:
                    return full
                if full in self._known:
                    return self.of(self._known[full], namespace)
            return schema
        if schema.get("type") not in NAMED:
            whole = {**schema, **{key: self.of(part, namespace) for key, part in _parts(schema)}}
            bare = not isinstance(whole["type"], str) or whole["type"] in self._defined
            return whole["type"] if bare else whole  # required by fastavro
        full, inside = _names(schema, namespace)
        if full in self._defined:
            return full
        self._defined.add(full)
        whole = {**schema, "name": full}
        whole.pop("namespace", None)
        if "fields" in schema:
            whole["fields"] = [{**field, "type": self.of(field["type"], inside)} for field in schema["fields"]]
        return whole
