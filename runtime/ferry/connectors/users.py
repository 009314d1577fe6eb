"""Calls of code that users bring for sources and sinks.

a method raises, exits, or returns something else -> UserCodeFailed: a line with the method and its place
a system cannot be reached                         -> Unreachable, or the error itself: Ferry tries again
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
"""Names of errors by which clients of databases and services say that the other end is away or busy."""


ANSWERS: dict[str, Callable[[Any], Any]] = {"plan": list, "flows": dict, "lag": int, "ended": bool}
"""What methods of sources give; a position may be any JSON value."""


def require_arguments(what: str, function: object, *names: str) -> None:
    """Refuse what cannot be called with so many arguments. Raises SpecRefused."""
    wanted = f"is no function of ({', '.join(names)})"
    if not callable(function):
        raise SpecRefused(f"{what}{function!r} {wanted}")
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise SpecRefused(f"{what}{function_name(function)} ({place_of(function)}) {wanted}: {error}") from error
    except ValueError:  # A function of C need not have a signature.
        return


@contextmanager
def source_code(what: str, source: Any) -> Iterator[None]:
    """Around a call of a source. Raises UserCodeFailed for what a user's own raises, Unreachable if something is away."""
    with nullcontext() if is_ferrys(source) else asked_code(what, type(source)):
        yield


@contextmanager
def asked_code(what: str, code: object) -> Iterator[None]:
    """The same around a call of the user's code that answers what there is to read."""
    try:
        with calling(what, code):
            yield
    except UserCodeFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, Fault):
            raise cause from None
        if cause is not None and is_away(cause):
            raise Unreachable(f"{what}: {type(cause).__name__}: {words_of(cause)}") from cause
        raise


def as_kept(answer: Any, method: str) -> Any:
    """What a source of the user's answers, as it is kept and compared. Raises TypeError or ValueError for what is not."""
    try:
        plain = json.loads(json.dumps(ANSWERS.get(method, lambda position: position)(answer)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{method}() gave {type(answer).__name__}, which is no such JSON value: {error}") from error
    if method == "plan" and not all(isinstance(split, dict) for split in plain):
        raise TypeError("plan() gave a split that is no JSON object; give dicts")
    return plain


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Around a call while the program is built: whatever is raised there is about the program. Raises SpecRefused."""
    try:
        yield
    except FerryError:
        raise
    except BaseException as error:
        raise refusal_of(error, what) from error


def refusal_of(error: BaseException, what: str, hint: str = "") -> SpecRefused:
    """The refusal of a program that fails; where a system is away, a job that has begun waits for it."""
    kind = InputAway if is_away(error) else SpecRefused
    return kind(f"{what} failed: {reason(error)}{hint}")


def is_ferrys(value: object) -> bool:
    """Whether a source or a sink is one that comes with Ferry."""
    return type(value).__module__.split(".")[0] == "ferry"


def is_away(error: BaseException) -> bool:
    """Whether an error says that a system cannot be reached, as a network, a disk or a database that is down does.

    These are OSError with its kinds, Ferry's faults, and errors that a client names so, as psycopg's OperationalError.
    """
    if isinstance(error, OSError | Fault | fl.FlightError):
        return True
    return any(AWAY.search(kind.__name__) for kind in type(error).__mro__[:-2])
