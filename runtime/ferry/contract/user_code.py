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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from types import CodeType

from ferry.contract.errors import Refusal, UserCodeFailed

USER_CODE = "user code: "
"""What the line begins with, wherever it stands."""

STATEMENT_MAX, MESSAGE_MAX, KEY_MAX = 120, 400, 120
"""Characters of a statement, of the error's own words and of a key that are shown."""

FATAL = "Fatal Python error: "
"""With which Python begins what it says before a signal ends it."""

_FERRY = os.path.realpath(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_BENEATH = ("_pytest", "cloudpickle", "numba", "numpy", "pandas", "pluggy", "py4j", "pyarrow", "pyspark")
"""Installed packages between Ferry and the user's functions, or below them: never the user's own."""

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)\n(?:[ \t]+(?P<statement>(?!File ")[^\n]+))?'
)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:: [^\n]*)?)$", re.MULTILINE)
"""A frame of a printed traceback, and the line with the error behind the last one."""
_DUMPED = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
"""A frame as Python writes it when a signal ends it."""


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
    return _place(traceback.extract_tb(error.__traceback__))


def line_of_crash(log: Sequence[str]) -> str | None:
    """What Python said at last before a signal ended it, with the user's statement if that was under way; None: nothing."""
    begins = [i for i, line in enumerate(log) if line.startswith(FATAL)]
    if not begins:
        return None
    threads = re.split(r"^(?=(?:Current t|T)hread 0x)", "\n".join(log[begins[-1] + 1 :]), flags=re.MULTILINE)
    # The thread that has failed, or, if the signal was sent to the process, that which may have sent it.
    for thread in sorted(threads, key=lambda one: not one.startswith("Current")):
        frames = list(_DUMPED.finditer(thread))
        inner = frames if thread.startswith("Current") else frames[:1]
        for frame in takewhile(lambda one: not one["file"].startswith(_FERRY), inner):
            if _rank(frame["file"]) == 2:
                place = f"{Path(frame['file']).name}:{frame['line']} in {frame['name']}"
                return f"{USER_CODE}{log[begins[-1]]} ({place})"
    return log[begins[-1]]


def line_of_exit(code: int, stack: traceback.StackSummary) -> str | None:
    """The line for a call of `os._exit`; None: its innermost caller is not the user's code."""
    callers = [frame for frame in stack[:-1] if _rank(frame.filename) == 2]
    inner = [frame for frame in stack[:-1] if frame.filename.startswith(_FERRY)]
    if not callers or (inner and stack.index(inner[-1]) > stack.index(callers[-1])):
        return None
    return f"{USER_CODE}os._exit({code}) ({_place(callers)}): the driver's process would end with the job unfinished"


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    ranked = [(_rank(frame.filename), frame) for frame in frames]
    highest = max((rank for rank, _ in ranked), default=0)
    if not highest:
        return ""
    last = [frame for rank, frame in ranked if rank == highest][-1]
    statement = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    inside = "" if last.name == "<module>" else f" in {last.name}"
    cut = f': "{_cut(statement, STATEMENT_MAX)}"' if statement else ""
    return f"{Path(last.filename).name}:{last.lineno}{inside}{cut}"


def reason(error: BaseException) -> str:
    """Type, words and the user's statement of an error that is a refusal: `KeyError: 'x' (job.py:13 in price: "row[x]")`."""
    summary, at = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, where(error)
    return f"{summary} ({at})" if at else summary


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


def line_in_traceback(text: str, what: str) -> str | None:
    """The line for a traceback inside a longer text, as Spark's of a function of the user's; None: it has none of theirs."""
    frames = [one for one in _FRAME.finditer(text) if _rank(one["file"]) == 2]
    if not frames:
        return None
    last = frames[-1]
    error = _RAISED.search(text, last.end())
    inside = "" if last["name"] == "<module>" else f" in {last['name']}"
    statement = f': "{_cut(last["statement"].strip(), STATEMENT_MAX)}"' if last["statement"] else ""
    at = f"{Path(last['file']).name}:{last['line']}{inside}{statement}"
    return f"{USER_CODE}{_cut(error[1] if error else 'an error', MESSAGE_MAX)} ({at}), {what}"


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
