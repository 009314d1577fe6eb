"""Converts values of messages to and from plain msgpack values: lists, numbers, texts, bytes."""

from __future__ import annotations

import types
import typing
from dataclasses import fields
from typing import Any

from ferry.contract.names import Attempt, CommitId, Fragment, InstanceId, Step, Term
from ferry.contract.results import StepResult
from ferry.contract.routing import Table, Version


def plain(value: Any) -> Any:
    """A field's value as msgpack takes it."""
    if isinstance(value, Table):
        return value.to_wire()
    return [getattr(value, f.name) for f in fields(value)]


def built(hint: Any, value: Any) -> Any:
    """A field's value from msgpack's: lists become the tuples and named values of `hint`."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        return None if value is None else built(next(h for h in typing.get_args(hint) if h is not type(None)), value)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(value) if args[0] in _SCALARS else tuple(built(args[0], v) for v in value)
        return tuple(built(a, v) for a, v in zip(args, value, strict=True))
    if hint is Table:
        return Table.from_wire(value)
    if hint is CommitId:
        return CommitId(Step(*value[0]), Attempt(*value[1]))
    if hint is StepResult:
        return StepResult(Attempt(*value[0]), *value[1:])
    if hint is Fragment:
        return Fragment(Step(*value[0]), *value[1:])
    if hint in (Step, Attempt, Term, Version):
        return hint(*value)
    return value


_SCALARS = (int, str, bytes, InstanceId)
