"""An error of the user's own code in one line of text, so that every process on the way to the user says the same.

    UserCodeFailed raised by `calling` -> its text in a receipt, an answer, a message or Spark's exception -> `line_in`

The text begins with USER_CODE and has no line end: whoever finds the line in a longer text has all of it.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from ferry.contract.errors import Refusal, UserCodeFailed

USER_CODE = "user code: "
"""What the line begins with, wherever it stands."""

STATEMENT_MAX, MESSAGE_MAX, KEY_MAX = 120, 400, 120
"""Characters of a statement, of the error's own words and of a key that are shown."""

_FERRY = os.path.realpath(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_BENEATH = ("_pytest", "cloudpickle", "numba", "numpy", "pandas", "pluggy", "py4j", "pyarrow", "pyspark")
"""Installed packages between Ferry and the user's functions, or below them: never the user's own."""


def _rank(file: str) -> int:
    """2: the user's file; 1: of an installed package, which may hold the user's pipeline; 0: Ferry's or a library's."""
    path = os.path.realpath(file)
    if file.startswith("<") or (path.startswith(_FERRY) and not path.startswith(os.path.join(_FERRY, "workloads"))):
        return 0
    for installed in _INSTALLED:
        if installed in path:
            return int(path.split(installed, 1)[1].split(os.sep)[0] not in _BENEATH)
    return 0 if path.startswith(_STANDARD) or ".zip" + os.sep in path else 2


def where(error: BaseException) -> str:
    """Place of the innermost statement of the user's in a traceback, `job.py:13 in price: "return 1 / n"`; empty: none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    ranked = [(_rank(frame.filename), frame) for frame in traceback.extract_tb(error.__traceback__)]
    highest = max((rank for rank, _ in ranked), default=0)
    if not highest:
        return ""
    last = [frame for rank, frame in ranked if rank == highest][-1]
    statement = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    inside = "" if last.name == "<module>" else f" in {last.name}"
    return f"{Path(last.filename).name}:{last.lineno}{inside}" + (
        f': "{_cut(statement, STATEMENT_MAX)}"' if statement else ""
    )


def place_of(function: object) -> str:
    """File and line where a function or class of the user's is defined; empty: nobody knows."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if isinstance(code, CodeType):
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    try:
        kind = function if isinstance(function, type) else type(function)
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return ""
    return f"{Path(file).name}:{line}" if file is not None and _rank(file) else ""


def line_of(error: BaseException, what: str, function: object = None, key: object = None) -> str:
    """The line for an error of a function of the user's; `what` says which, as in "map_batches behind source 'orders'"."""
    if isinstance(error, UserCodeFailed):
        return str(error)
    message = _cut(" ".join(str(error).split()), MESSAGE_MAX)
    summary = f"{type(error).__name__}: {message}" if message else type(error).__name__
    place = where(error) or (place_of(function) if function is not None else "")
    at = f" ({place})" if place else ""
    of = f", key {_cut(repr(key), KEY_MAX)}" if key is not None else ""
    return f"{USER_CODE}{summary}{at}, {what}{of}"


def line_in(text: str) -> str | None:
    """The line inside a longer text, such as a traceback of Spark's; None: it has none."""
    found = re.search(rf"{re.escape(USER_CODE)}[^\n]*", text)
    return found[0].rstrip() if found else None


@contextmanager
def calling(what: str, function: object = None, key: object = None) -> Iterator[None]:
    """Around a call of the user's code: what it raises becomes UserCodeFailed, but for a Refusal (SpecRefused, Final).

    SystemExit, too: what the user's code ends is no process of Ferry's.

    Raises UserCodeFailed.
    """
    try:
        yield
    except (UserCodeFailed, Refusal):
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeFailed(line_of(error, what, function, key)) from error


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."
