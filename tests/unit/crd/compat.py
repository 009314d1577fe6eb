"""Whether objects and programs made for one version of the custom resource definition still work with another.

Pure: two documents in, complaints out. A test holds the present definitions against those of every release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

ACCEPTED = {
    "[has(self.module), has(self.file), has(self.configMap)].filter(given, given).size() == 1": "configMap is new, so an "
    "object of 0.1.0 has exactly one of module and file, as before"
}
"""Rules that came after a release and refuse nothing that it allowed, each with the reason."""

WITHDRAWN: dict[str, str] = {}
"""Fields that are no more, and why no object that has them is the worse for it: the API server drops them."""

CHANGED_DEFAULTS: dict[str, str] = {}
"""Fields with another default, and why no job is the worse for it: pods of a job that names no value are made anew."""

_LOWER = ("minimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
_EXACT = ("pattern", "format", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")
_FREE = "x-kubernetes-preserve-unknown-fields"


def breaks(old: Schema, new: Schema) -> list[str]:
    """What the new definition takes away or refuses that the old one had or allowed; one line each."""
    before, after = old["spec"], new["spec"]
    out = [f"{key} changed" for key in ("group", "scope") if before[key] != after[key]]
    out += [f"names.{key} changed" for key in ("kind", "plural") if before["names"][key] != after["names"][key]]
    for key in ("shortNames", "categories"):
        out += [f"names.{key}: {one} is gone" for one in _missing(before["names"], after["names"], key)]
    versions = {version["name"]: version for version in after["versions"]}
    for version in before["versions"]:
        name = version["name"]
        if version["served"] and not versions.get(name, {}).get("served"):
            out.append(f"{name} is no longer served")
        elif version["served"]:
            out += [f"{name}: {one}" for one in _version(version, versions[name])]
    return out


def _version(old: Schema, new: Schema) -> Iterator[str]:
    for name, paths in old.get("subresources", {}).items():
        if new.get("subresources", {}).get(name) != paths:
            yield f"the subresource {name} is gone or has other paths"
    columns = [column["name"] for column in new.get("additionalPrinterColumns", ())]
    for column in old.get("additionalPrinterColumns", ()):
        if column["name"] not in columns:
            yield f"the column {column['name']} is gone"
    yield from _schema(old["schema"]["openAPIV3Schema"], new["schema"]["openAPIV3Schema"], "")


def _schema(old: Schema, new: Schema, path: str) -> Iterator[str]:
    where = path or "object"
    yield from (f"{where}: {one}" for one in _narrower(old, new))
    if "properties" not in old and old.get("default") != new.get("default") and path not in CHANGED_DEFAULTS:
        yield f"{where}: the default was {_default(old)}, is {_default(new)}"
    for name in new.get("required", ()):
        if name not in old.get("required", ()):
            yield f"{where}: {name} is required now"
    for name, field in new.get("properties", {}).items():
        if name not in old.get("properties", {}) and "default" in field:
            yield f"{f'{path}.{name}'.removeprefix('.')}: is new and has a default: an older operator refuses the field"
    for name, field in old.get("properties", {}).items():
        below = f"{path}.{name}".removeprefix(".")
        if name in new.get("properties", {}):
            yield from _schema(field, new["properties"][name], below)
        elif not new.get(_FREE) and below not in WITHDRAWN:
            yield f"{below}: is gone"
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in old and key in new:
            yield from _schema(old[key], new[key], path + mark)
        elif key in old and not new.get(_FREE):
            yield f"{where}: {key} is gone"
    for one in new.get("x-kubernetes-validations", ()):
        rules = [rule["rule"] for rule in old.get("x-kubernetes-validations", ())]
        if one["rule"] not in rules and one["rule"] not in ACCEPTED:
            yield f"{where}: a new rule: {one['rule']}"


def _narrower(old: Schema, new: Schema) -> Iterator[str]:
    """What one schema refuses, by itself, that the other allowed."""
    if _kind(old) != _kind(new) and not (_kind(new) == "int-or-string" and _kind(old) in ("integer", "string")):
        yield f"was {_kind(old)}, is {_kind(new)}"
    if old.get("nullable") and not new.get("nullable"):
        yield "may not be null any more"
    if old.get(_FREE) and not new.get(_FREE):
        yield "does not take any field any more"
    if "enum" in new and ("enum" not in old or _missing(old, new, "enum")):
        yield f"allows only {', '.join(map(str, new['enum']))} now"
    for key in _LOWER:
        if key in new and (key not in old or new[key] > old[key]):
            yield f"{key} is {new[key]} now"
    for key in _UPPER:
        if key in new and (key not in old or new[key] < old[key]):
            yield f"{key} is {new[key]} now"
    for key in _EXACT:
        if key in new and new[key] != old.get(key):
            yield f"{key} is {new[key]} now"


def _kind(schema: Schema) -> str:
    return "int-or-string" if schema.get("x-kubernetes-int-or-string") else str(schema.get("type", "anything"))


def _default(schema: Schema) -> str:
    return json.dumps(schema["default"]) if "default" in schema else "none"


def _missing(old: Schema, new: Schema, key: str) -> list[Any]:
    return [one for one in old.get(key, ()) if one not in new.get(key, ())]
