"""What one definition of a custom resource has, and another one lacks. Pure: two documents in, paths out.

Definitions only widen from release to release, so a definition that lacks fields of another one is older.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_FREE = "x-kubernetes-preserve-unknown-fields"


def lacking(definition: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, ...]:
    """Versions, subresources, fields and values that `other` has and `definition` lacks."""
    mine, wanted = ({version["name"]: version for version in each["spec"]["versions"]} for each in (definition, other))
    return tuple(path for name, version in wanted.items() for path in _of_version(mine.get(name), version))


def _of_version(mine: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> Iterator[str]:
    if mine is None:
        yield f"version {wanted['name']}"
        return
    yield from (name for name in wanted.get("subresources") or {} if name not in (mine.get("subresources") or {}))
    yield from _of_schema(mine["schema"]["openAPIV3Schema"], wanted["schema"]["openAPIV3Schema"], "")


def _of_schema(mine: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> Iterator[str]:
    if mine.get(_FREE):
        return
    yield from (f"{path}={value}" for value in wanted.get("enum") or () if value not in (mine.get("enum") or [value]))
    for name, field in (wanted.get("properties") or {}).items():
        where, present = f"{path}.{name}".removeprefix("."), (mine.get("properties") or {}).get(name)
        if present is None:
            yield where
        else:
            yield from _of_schema(present, field, where)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        inside, present = wanted.get(key), mine.get(key)
        if isinstance(inside, Mapping) and isinstance(present, Mapping):
            yield from _of_schema(present, inside, path + mark)
