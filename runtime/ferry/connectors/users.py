"""Calls of users' code in sources and sinks.

a method raises, exits or returns a wrong type -> UserCodeFailed: one line with the method and its place
a system cannot be reached                     -> Unreachable, or the error itself: Ferry retries
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pyarrow.flight as fl

from ferry.contract.errors import Fault, FerryError, InputAway, SpecRefused, Unreachable, UserCodeFailed
from ferry.contract.user_code import calling, function_name, place_of, reason, words_of

AWAY = re.compile(
    r"operational|interfaceerror|connect|timeout|timed_?out|unavailable|network|socket|transport|broker|throttl|retri|"
    r"toomanyrequests|http|unreachable|dns|ssl",
    re.IGNORECASE,
)
"""Names of client libraries' errors that mean that a database or service is unreachable or busy."""


ANSWERS: dict[str, Callable[[Any], Any]] = {"plan": list, "flows": dict, "lag": int, "ended": bool}
"""Types of the results of sources' methods. A position may be any JSON value."""


def require_arguments(place: str, function: object, *names: str) -> None:
    """Raise SpecRefused if `function` cannot be called with these arguments."""
    wanted = f"is not a function of ({', '.join(names)})"
    if not callable(function):
        raise SpecRefused(f"{place}{function!r} {wanted}")
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise SpecRefused(f"{place}{function_name(function)} ({place_of(function)}) {wanted}: {error}") from error
    except ValueError:  # Functions written in C may lack a signature.
        return


@contextmanager
def source_code(call: str, source: Any) -> Iterator[None]:
    """Around a call of a source. Errors of a user's source become UserCodeFailed, or Unreachable for an absent system."""
    with nullcontext() if is_ferrys(source) else reading_code(call, type(source)):
        yield


@contextmanager
def reading_code(call: str, code: object) -> Iterator[None]:
    """Around a call of a user's code that reads a system. Raises UserCodeFailed, or Unreachable for an absent system."""
    try:
        with calling(call, code):
            yield
    except UserCodeFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, Fault):
            raise cause from None
        if cause is not None and is_away(cause):
            raise Unreachable(f"{call}: {type(cause).__name__}: {words_of(cause)}") from cause
        raise


def as_kept(answer: Any, method: str) -> Any:
    """The result of a user's source as a plain JSON value. Raises TypeError for any other value."""
    try:
        plain = json.loads(json.dumps(ANSWERS.get(method, lambda position: position)(answer)))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{method}() gave {type(answer).__name__}, which is not a JSON value of the right type: {error}"
        ) from error
    if method == "plan" and not all(isinstance(split, dict) for split in plain):
        raise TypeError("plan() gave a split that is not a JSON object; give dicts")
    return plain


@contextmanager
def refused(call: str) -> Iterator[None]:
    """Around a call while the program is built: every error is an error of the program. Raises SpecRefused."""
    try:
        yield
    except FerryError:
        raise
    except BaseException as error:
        raise refusal_of(error, call) from error


def refusal_of(error: BaseException, call: str, hint: str = "") -> SpecRefused:
    """The refusal of a program whose call failed. InputAway for an absent system, for which a running job waits."""
    kind = InputAway if is_away(error) else SpecRefused
    return kind(f"{call} failed: {reason(error)}{hint}")


def is_ferrys(value: object) -> bool:
    """Whether a source or a sink is part of Ferry."""
    return type(value).__module__.split(".")[0] == "ferry"


def is_away(error: BaseException) -> bool:
    """Whether an error means that a system (network, disk, database) cannot be reached.

    These errors are OSError and its subclasses, Ferry's faults, and clients' errors with such a name, such as psycopg's
    OperationalError.
    """
    if isinstance(error, OSError | Fault | fl.FlightError):
        return True
    return any(AWAY.search(kind.__name__) for kind in type(error).__mro__[:-2])
