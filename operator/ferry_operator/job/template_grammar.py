"""Words of a grammar for maps that users write and Kubernetes gets: what is not in the grammar is refused with its path.

Pure. `pod_template` has the grammar of a pod template; a rule yields the problems of a value at a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ferry_operator.job.models_base import PATH_PATTERN
from ferry_operator.job.quantities import Cpus, Quantity

Check = Callable[[Any, str], Iterator[str]]
"""(value, path) -> problems"""

Template = dict[str, Any]
"""A map in the form of Kubernetes."""

LIST_MAX = 64
TEXT_MAX = 4096


def text(pattern: str = r"[^\x00]*", wording: str = "text", longest: int = TEXT_MAX) -> Check:
    """A text that matches a pattern as a whole."""

    def check(value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, str) or len(value) > longest or not re.fullmatch(pattern, value, re.DOTALL):
            yield f"{path}: must be {wording}"

    return check


def choice(*values: str) -> Check:
    """One of these texts."""

    def check(value: Any, path: str) -> Iterator[str]:
        if value not in values:
            yield f"{path}: must be {' or '.join(map(repr, values))}"

    return check


def whole(low: int, high: int) -> Check:
    """A whole number."""

    def check(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            yield f"{path}: must be a whole number from {low} to {high}"

    return check


def flag(value: Any, path: str) -> Iterator[str]:
    """True or false."""
    if not isinstance(value, bool):
        yield f"{path}: must be true or false"


def free(value: Any, path: str) -> Iterator[str]:
    """A map that Kubernetes checks."""
    if not isinstance(value, dict):
        yield f"{path}: must be a map"


def size(value: Any, path: str) -> Iterator[str]:
    """A number of bytes."""
    yield from _parsed(Quantity, value, path)


def cpus(value: Any, path: str) -> Iterator[str]:
    """A share of CPUs."""
    yield from _parsed(Cpus, value, path)


def _parsed(kind: Callable[[str], Any], value: Any, path: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, str | int):
        yield f"{path}: must be text or a whole number"
        return
    try:
        kind(str(value))
    except ValueError as error:
        yield f"{path}: {error}"


def path_in_pod(value: Any, path: str) -> Iterator[str]:
    """An absolute path."""
    yield from text(PATH_PATTERN, "an absolute path without '.', '..', '//' or a '/' at its end")(value, path)


@dataclass(frozen=True)
class Map:
    """A map with known fields."""

    fields: Mapping[str, Check]
    needed: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    """exactly one of these fields is needed"""
    why: Mapping[str, str] = field(default_factory=dict)
    """for fields of Kubernetes that are not in the grammar: what to do"""
    more: Check | None = None
    """a check of the map as a whole"""

    def __call__(self, value: Any, path: str) -> Iterator[str]:
        """Yield the problems of a value."""
        if not isinstance(value, dict):
            yield f"{path}: must be a map of fields"
            return
        for name, item in value.items():
            where = f"{path}.{name}" if path else str(name)
            if name in self.fields:
                yield from self.fields[name](item, where)
            else:
                remedy = self.why.get(name) or f"allowed here: {', '.join(self.fields)}"
                yield f"{where}: a template may not set it; {remedy}"
        for name in self.needed:
            if name not in value:
                yield f"{path}.{name}: required"
        if self.one_of and sum(name in value for name in self.one_of) != 1:
            yield f"{path}: give exactly one of {', '.join(self.one_of)}"
        if self.more is not None:
            yield from self.more(value, path)


@dataclass(frozen=True)
class Items:
    """A list; with `keys`, no two items have the same values of these fields."""

    item: Check
    keys: tuple[str, ...] = ()

    def __call__(self, value: Any, path: str) -> Iterator[str]:
        """Yield the problems of a value."""
        if not isinstance(value, list) or len(value) > LIST_MAX:
            yield f"{path}: must be a list of at most {LIST_MAX} items"
            return
        seen = set[str]()
        for at, item in enumerate(value):
            yield from self.item(item, f"{path}[{at}]")
            if self.keys and isinstance(item, dict):
                key = " ".join(str(item.get(name)) for name in self.keys)
                if key in seen:
                    yield f"{path}[{at}]: {key!r} is there twice"
                seen.add(key)


@dataclass(frozen=True)
class TextMap:
    """A map from keys to texts."""

    key: Check
    value: Check

    def __call__(self, value: Any, path: str) -> Iterator[str]:
        """Yield the problems of a value."""
        if not isinstance(value, dict) or len(value) > LIST_MAX:
            yield f"{path}: must be a map of at most {LIST_MAX} texts"
            return
        for name, item in value.items():
            yield from self.key(name, f"{path}.{name}")
            yield from self.value(item, f"{path}.{name}")
