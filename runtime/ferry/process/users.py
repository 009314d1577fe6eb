"""Calls of the user's own code by a process: what it raises, or gives and may not, is told with its place.

An aggregator or processor of the user's is called by a process of Ferry's: whose code a call is says the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused, UserCodeFailed
from ferry.contract.user_code import calling, line_of, place_of
from ferry.process.classes import class_of

OURS = ("ferry.contract.", "ferry.process.", "ferry.kernels.", "ferry.spark.", "ferry.store.")


def is_users_class(name: str) -> bool:
    """Whether a class of this name (`process.classes`) is not Ferry's own."""
    return not f"{name.partition(':')[0]}.".startswith(OURS)


def calls_users(descriptor: OperatorDescriptor) -> bool:
    """Whether a class of an operator is the user's own."""
    return descriptor.kind == "process" and any(map(is_users_class, descriptor.shape.classes))


def users_classes(descriptor: OperatorDescriptor) -> list[str]:
    """Classes of an operator that are the user's own, each with its place. Raises SpecRefused for one that is not here."""
    if descriptor.kind != "process":
        return []
    found = {name: class_of(name) for name in descriptor.shape.classes if is_users_class(name)}
    return [f"{one.__qualname__} ({place_of(one)})" for one in found.values()]


def is_users(code: Any) -> bool:
    """Whether this function, class or instance is not Ferry's own."""
    code = getattr(code, "__self__", code)
    made = code if hasattr(code, "__qualname__") else type(code)
    return is_users_class(str(made.__module__))


@contextmanager
def users_code(what: str, code: Any, key: object = None) -> Iterator[None]:
    """Around a call of it, and around what makes of its results what they have to be.

    What it gives and may not, such as other columns, is refused by Ferry where it is given: a failure as any other. Of
    Ferry's own code all errors go through.

    Raises UserCodeFailed.
    """
    if not is_users(code):
        yield
        return
    try:
        with calling(what, code, key):
            yield
    except SpecRefused as refused:
        raise UserCodeFailed(line_of(refused, what, code, key)) from refused
