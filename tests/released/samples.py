"""A value of every type of the contract, made from its annotations, and what a value is as JSON."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan


class Samples:
    """Gives values that differ from each other and from every default."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count(1)

    def of(self, hint: Any) -> Any:
        """A value of this type, with two elements wherever there may be many."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Plan:
            return None  # has rules of its own, and travels in no message
        if origin in (types.UnionType, typing.Union):
            return self.of(next(one for one in arguments if one is not type(None)))
        if origin is typing.Literal:
            return arguments[-1]
        if origin is tuple and arguments[1:] == (...,):
            return (self.of(arguments[0]), self.of(arguments[0]))
        if origin is tuple:
            return tuple(map(self.of, arguments))
        if origin is list:
            return [self.of(arguments[0]), self.of(arguments[0])]
        if origin in (dict, Mapping):
            return {self.of(arguments[0]): self.of(arguments[1])}
        if is_dataclass(hint) or hasattr(hint, "_fields"):
            return typing.cast("Any", hint)(**{name: self.of(one) for name, one in typing.get_type_hints(hint).items()})
        return self._plain(hint)

    def _plain(self, hint: Any) -> Any:
        number = next(self._numbers)
        if hint is InstanceId:
            return InstanceId(f"{number}.0")
        values = {
            bool: True,
            int: number,
            float: number + 0.5,
            str: f"text {number}",
            bytes: f"bytes {number}".encode(),
        }
        return values[getattr(hint, "__supertype__", hint)]


def as_json(value: Any) -> Any:
    """Maps, lists and plain values; bytes as hexadecimal digits."""
    if is_dataclass(value):
        return {one.name: as_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def lacking(frozen: Any, present: Any, where: str = "") -> list[str]:
    """What the present document does not say as the frozen one does; it may say more."""
    if isinstance(frozen, dict) and isinstance(present, dict):
        gone = [f"{where}.{key} is gone" for key in frozen.keys() - present.keys()]
        return gone + [
            one
            for key in frozen.keys() & present.keys()
            for one in lacking(frozen[key], present[key], f"{where}.{key}")
        ]
    if isinstance(frozen, list) and isinstance(present, list) and len(frozen) == len(present):
        pairs = enumerate(zip(frozen, present, strict=True))
        return [one for i, (old, new) in pairs for one in lacking(old, new, f"{where}[{i}]")]
    return [] if frozen == present else [f"{where} was {frozen!r}, is {present!r}"]
