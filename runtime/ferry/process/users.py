"""Calls of the user's own code by a process: errors and invalid results are reported with their place.

A process of Ferry's may call a user's aggregator or processor: the module of a class says whose code it is.
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
    """Whether the class of this name (`process.classes`) is the user's."""
    return not f"{name.partition(':')[0]}.".startswith(OURS)


def calls_users(descriptor: OperatorDescriptor) -> bool:
    """Whether an operator has a class of the user's."""
    return descriptor.kind == "process" and any(map(is_users_class, descriptor.shape.classes))


def users_classes(descriptor: OperatorDescriptor) -> list[str]:
    """The user's classes of an operator, each with its place. Raises SpecRefused for one that does not exist here."""
    if descriptor.kind != "process":
        return []
    found = {name: class_of(name) for name in descriptor.shape.classes if is_users_class(name)}
    return [f"{one.__qualname__} ({place_of(one)})" for one in found.values()]


def is_users(code: Any) -> bool:
    """Whether this function, class or instance is the user's."""
    code = getattr(code, "__self__", code)
    made = code if hasattr(code, "__qualname__") else type(code)
    return is_users_class(str(made.__module__))


@contextmanager
def users_code(noun: str, code: Any, key: object = None) -> Iterator[None]:
    """Around a call of the code, and the checks of its results.

    An invalid result, such as other columns, is refused by Ferry at the call, and counts as a failure of the code.
    Errors of Ferry's own code pass through.

    Raises UserCodeFailed.
    """
    if not is_users(code):
        yield
        return
    try:
        with calling(noun, code, key):
            yield
    except SpecRefused as refused:
        raise UserCodeFailed(line_of(refused, noun, code, key)) from refused
