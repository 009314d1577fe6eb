"""Reading documents of another release: the operator and the images of its jobs are released, and updated, apart."""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, TypeVar

T = TypeVar("T")

Reader = Callable[[Any], Any]


def known(kind: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """The fields of a document that a dataclass has; fields that are new to this release are left out."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in doc.items() if key in names}


def read(kind: type[T], doc: Mapping[str, Any]) -> T:
    """A dataclass from plain maps and lists, by the types of its fields. Fields that it does not have are left out.

    Raises TypeError or ValueError for a document of another form.
    """
    if not isinstance(doc, Mapping):
        raise TypeError(f"{kind.__name__} is a map")
    readers = _readers(typing.cast(Hashable, kind))
    return kind(**{name: read(doc[name]) if read else doc[name] for name, read in readers.items() if name in doc})


@cache
def _readers(kind: Hashable) -> dict[str, Reader | None]:
    assert isinstance(kind, type) and is_dataclass(kind)
    hints = typing.get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _reader(hint: Any) -> Reader | None:
    """From a plain value to one of this type; None: they are the same."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(read, hint)
    if origin is UnionType:
        (inner,) = (_reader(one) for one in args if one is not type(None))
        return None if inner is None else lambda value: None if value is None else inner(value)
    if origin is list and (item := _reader(args[0])) is not None:
        return lambda values: [item(value) for value in values]
    if origin is tuple and args[1:] == (...,):
        each = _reader(args[0])
        return lambda values: tuple(values if each is None else map(each, values))
    return partial(_tuple, [_reader(one) for one in args]) if origin is tuple else None


def _tuple(readers: list[Reader | None], values: Any) -> tuple[Any, ...]:
    if len(values) != len(readers):
        raise ValueError(f"{len(readers)} values are expected, and there are {len(values)}")
    return (
        tuple(read(value) if read else value for read, value in zip(readers, values)) if any(readers) else tuple(values)
    )
