"""Schemas that a registry of the Confluent kind knows by number: asked for once, and what may be another answer tomorrow
never kept.

    a schema                                  kept; asked for again when a value does not fit it, once a minute
    the registry's own word that there is none   waited for, then believed for a minute: a follower knows it later
    a schema that cannot be read              believed for a minute
    anything else                             nobody knows: waited for
Must never take the word of whatever stands in a registry's place (a proxy, a login page) for the registry's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ferry.contract.errors import Unreachable

ANSWER_SECONDS = 10.0
"""For a connection, and for each part of an answer."""

WHOLE_SECONDS = 30.0
ANSWER_BYTES_MAX = 64 << 20
"""A whole answer takes no longer, and is no larger."""

SCHEMAS_MAX = 1000
"""Schemas of registries that a process remembers."""

MISSING_SECONDS = 30.0
"""A schema that the registry does not know is waited for so long: a follower knows it later than who has written it."""

BELIEVED_SECONDS = 60.0
"""After so long the registry is asked again for a schema that it did not have, or that could not be used."""

NOT_FOUND = {40401, 40402, 40403}
"""Error codes of registries: no such subject, version, schema."""

NAMED = {"record", "error", "enum", "fixed"}
NOWHERE = "_"
"""Namespace of names that have none, in a schema that is put together."""

Key = tuple[str, int]


class Unfit(ValueError):
    """A value that cannot be read."""


class _Missing(Unreachable):
    """The registry says that it has no such schema, and may have it soon."""


_known: dict[Key, tuple[float, str, str]] = {}
"""When it was asked for, kind and text."""

_missing: dict[Key, float] = {}
"""Schemas that registries do not know, and since when this process is told so."""

_unfit: dict[Key, tuple[float, str]] = {}
"""Until when it is believed that values of a schema cannot be read, and why."""


def ask(url: str, numbers: Iterable[int]) -> dict[int, tuple[str, str] | Unfit]:
    """(kind, text) of each schema, or why values of it cannot be read. Raises Unreachable while nobody can say of one."""
    found: dict[int, tuple[str, str] | Unfit] = {}
    missing: _Missing | None = None
    for number in numbers:
        try:
            found[number] = _schema(url, number)
        except Unfit as wrong:
            found[number] = wrong
        except _Missing as late:  # All that are missing are waited for together.
            missing = late
    if missing is not None:
        raise Unreachable(str(missing)) from missing
    return found


def doubt(url: str, number: int) -> bool:
    """A value does not fit this schema: whether to ask again, as the registry may have been set up anew since."""
    known = _known.get((url, number))
    if known is None or time.monotonic() - known[0] < BELIEVED_SECONDS:
        return False
    del _known[url, number]
    return True


def forget() -> None:
    """All that this process remembers."""
    for one in (_known, _missing, _unfit):
        one.clear()


def _schema(url: str, number: int) -> tuple[str, str]:
    key = url, number
    if key in _known:
        return _known[key][1:]
    until, why = _unfit.get(key, (0.0, ""))
    if time.monotonic() < until:
        raise Unfit(why)
    try:
        kind, text = _asked(url, number)
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


def _asked(url: str, number: int) -> tuple[str, str]:
    """As the registry says it now."""
    what = f"schema {number}"
    about = _get(url, f"schemas/ids/{number}", what)
    if about is None:
        if (url, number) not in _missing:
            _note(_missing, (url, number), time.monotonic())
        if time.monotonic() - _missing[url, number] < MISSING_SECONDS:
            raise _Missing(f"schema registry: it has no {what}; for {MISSING_SECONDS:g} s it is asked again")
        raise Unfit(f"the registry has no {what}")
    kind = about.get("schemaType") or "AVRO"
    if kind not in ("AVRO", "JSON"):
        raise Unfit(f"{what} is {kind}; Avro and JSON can be read")
    if kind == "JSON" or not about.get("references"):
        return kind, str(about["schema"])
    others: dict[str, Any] = {}
    _collect(url, about["references"], what, others, set())
    return kind, json.dumps(_Whole(others).of(json.loads(about["schema"]), NOWHERE))


def _collect(url: str, references: Any, what: str, found: dict[str, Any], seen: set[tuple[str, int]]) -> None:
    """Definitions of what a schema refers to, and these in their turn, by full name."""
    try:
        wanted = [(str(one["subject"]), int(one["version"])) for one in references]
    except (TypeError, KeyError, ValueError) as wrong:
        raise Unreachable(f"schema registry: the references of {what} are none") from wrong
    for subject, version in wanted:
        if (subject, version) in seen:
            continue
        seen.add((subject, version))
        other = f"version {version} of subject {subject!r}, to which {what} refers"
        about = _get(url, f"subjects/{quote(subject, safe='')}/versions/{version}", other)
        if about is None:
            raise Unreachable(f"schema registry: it has no {other}")
        _collect(url, about.get("references") or (), other, found, seen)
        _define(json.loads(about["schema"]), NOWHERE, found)


def _get(url: str, path: str, what: str) -> dict[str, Any] | None:
    """What a registry has there, with the text of a schema; None: its own word is that there is nothing.

    Raises Unreachable for whatever else it answers.
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
        raise Unreachable(f"schema registry: status {status} for {what}" + (f": {message}" if message else ""))
    try:
        json.loads(about["schema"]) if (about.get("schemaType") or "AVRO") == "AVRO" else str(about["schema"])
    except (ValueError, TypeError, KeyError, RecursionError) as wrong:
        raise Unreachable(f"schema registry: what it answers for {what} is no schema") from wrong
    return about


def _answer(address: str) -> tuple[int, bytes]:
    """(status, body). Raises Unreachable, also for a body that has no end."""
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
    """(full name, namespace of what is inside) of a type with a name."""
    full = _full(str(schema.get("name", "")), str(schema.get("namespace", namespace)) or NOWHERE)
    return full, full.rpartition(".")[0]


def _parts(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(key, schema) inside of one, but for fields."""
    if schema.get("type") in NAMED:
        return []
    return [(key, schema[key]) for key in ("type", "items", "values") if key in schema]


def _define(schema: Any, namespace: str, found: dict[str, Any]) -> None:
    """Put all types with names in a schema into `found`, each as text of its own."""
    if isinstance(schema, list):
        for one in schema:
            _define(one, namespace, found)
    elif isinstance(schema, dict):
        inside = namespace
        if schema.get("type") in NAMED:
            full, inside = _names(schema, namespace)
            found.setdefault(full, {**schema, "name": full.rpartition(".")[2], "namespace": inside})
        for _, one in _parts(schema):
            _define(one, namespace, found)
        for field in schema.get("fields", ()):
            _define(field["type"], inside, found)


class _Whole:
    """Puts in the place of a name, where it comes first, the type that it names. All names are full ones then."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known
        self._defined: set[str] = set()

    def of(self, schema: Any, namespace: str) -> Any:
        """`namespace`: the one around the schema."""
        if isinstance(schema, list):
            return [self.of(one, namespace) for one in schema]
        if isinstance(schema, str):
            for full in (_full(schema, namespace), _full(schema, NOWHERE)):
                if full in self._defined:
                    return full
                if full in self._known:
                    return self.of(self._known[full], namespace)
            return schema
        if schema.get("type") not in NAMED:
            made = {**schema, **{key: self.of(one, namespace) for key, one in _parts(schema)}}
            bare = not isinstance(made["type"], str) or made["type"] in self._defined
            return made["type"] if bare else made  # as fastavro wants it
        full, inside = _names(schema, namespace)
        if full in self._defined:
            return full
        self._defined.add(full)
        made = {**schema, "name": full}
        made.pop("namespace", None)
        if "fields" in schema:
            made["fields"] = [{**field, "type": self.of(field["type"], inside)} for field in schema["fields"]]
        return made
