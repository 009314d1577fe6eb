"""An error of the user's own code as one line of text, the same in every process on the way to the user.

    UserCodeFailed raised by `calling` -> its text in a receipt, an answer, a message or Spark's exception -> `line_in`

The text begins with USER_CODE and has no line end, so it can be cut out of a longer text. Every error has a line, also
one whose `__str__` or attributes fail.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import mmap
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import SourceLoader
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import NoReturn, TypeVar
from weakref import WeakKeyDictionary

from ferry.contract.errors import Refusal, UserCodeFailed
from ferry.contract.one_line import one_line
from ferry.contract.program_text import PACKAGE, PREFIX, without_text

T = TypeVar("T")

_PLACES: WeakKeyDictionary[type, str] = WeakKeyDictionary()
"""Of classes: Python parses a whole file to find the line, and each call of a user's source names it."""

USER_CODE = "user code: "
"""Beginning of the line, wherever it stands."""

STATEMENT_MAX, MESSAGE_MAX, KEY_MAX = 120, 400, 120
"""Longest part of a statement, of the error's own words and of a key in the line, in characters."""

FATAL = "Fatal Python error: "
"""Beginning of Python's report before a signal ends it."""

_FERRY = os.path.realpath(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_BENEATH = ("_pytest", "cloudpickle", "numba", "numpy", "pandas", "pluggy", "py4j", "pyarrow", "pyspark")
"""Installed packages between Ferry and the user's functions, or below them: never the user's own."""

_COMPILED = (".pyx", ".pxi")
"""Sources of Cython; tracebacks name them as if they were in the working directory."""

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)\n(?:[ \t]+(?P<statement>(?!File ")[^\n]+))?'
)
_RAISED = re.compile(r'^([A-Za-z_][\w.]*(?:: [^\n]*(?:\n(?!\tat | SQLSTATE|  File ")[^\n]+)*)?)$', re.MULTILINE)
"""A frame of a printed traceback, and the error after the last one, whose message may have several lines."""
_CAUSE = re.compile(_RAISED.pattern + r"\n\nThe above exception was the direct cause of the following", re.MULTILINE)
"""The cause of the next error of a printed traceback."""
_DUMPED = re.compile(r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d+) in (?P<name>\S+)', re.MULTILINE)
"""A frame as Python writes it when a signal ends it."""


RUNNING: ContextVar[str] = ContextVar("RUNNING", default="")
"""The user's code that runs in this thread; empty: none."""


def _package(path: str) -> str:
    """The installed package of a file; empty: it is in none."""
    found = next((one for one in _INSTALLED if one in path), None)
    return path.split(found, 1)[1].split(os.sep)[0] if found is not None else ""


def _rank(file: str) -> int:
    """2: the user's file; 1: of an installed package, which may hold the user's pipeline; 0: of Ferry or a library."""
    if file.startswith("<") or (file.endswith(_COMPILED) and not os.path.isabs(file)):
        return 0
    path = os.path.realpath(file)
    if path.startswith(_FERRY) and not path.startswith(os.path.join(_FERRY, "workloads")):
        return 0
    if package := _package(path):
        return int(package not in _BENEATH)
    archive = Path(path.partition(".zip" + os.sep)[0]).name if ".zip" + os.sep in path else ""
    return 0 if path.startswith(_STANDARD) or archive.startswith(("py4j", "pyspark", "python")) else 2


def _innermost(frames: Sequence[tuple[str, T]]) -> T | None:
    """The user's innermost one of (file, frame). If all files are installed, the first one counts as the user's
    package."""
    highest = max((_rank(file) for file, _ in frames), default=0)
    mine = [(file, frame) for file, frame in frames if _rank(file) == highest > 0]
    if highest == 1:
        mine = [one for one in mine if _package(os.path.realpath(one[0])) == _package(os.path.realpath(mine[0][0]))]
    return mine[-1][1] if mine else None


def where(error: BaseException) -> str:
    """Place of the user's innermost statement in a traceback, `job.py:13 in price: "return 1 / n"`; empty: none."""
    if isinstance(error, SyntaxError) and error.filename and _rank(error.filename):
        return f"{Path(error.filename).name}:{error.lineno}"
    if isinstance(error, BaseExceptionGroup) and (place := where(error.exceptions[0])):
        return place
    if isinstance(error, RuntimeError) and isinstance(
        error.__cause__, StopIteration
    ):  # as Python raises in a generator
        return where(error.__cause__)
    for at in _frames(error):
        _know_own_lines(at.tb_frame)
    return _place(traceback.extract_tb(error.__traceback__))


def know_lines(file: str, text: str) -> None:
    """Make Python show these lines of the file, whatever the file contains by now."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def _know_own_lines(frame: FrameType) -> None:
    """Python remembers the lines of one text for a file: have it remember the text of the frame's own program."""
    name, loader = (frame.f_globals.get(key) for key in ("__name__", "__loader__"))
    if isinstance(name, str) and name.startswith((PREFIX, PACKAGE)) and isinstance(loader, SourceLoader):
        know_lines(frame.f_code.co_filename, loader.get_source(name) or "")


def here(frame: FrameType | None = None) -> str:
    """Place of the user's innermost statement that runs now, or in this frame; empty: no such statement runs."""
    return _place(traceback.extract_stack(frame))


def line_of_crash(log: Sequence[str]) -> str | None:
    """The signal that ended a process, from the dump in its log, and the user's statement that ran; None: no signal."""
    begins = [i for i, line in enumerate(log) if line.startswith(FATAL)]
    if not begins:
        return None
    threads = re.split(r"^(?=(?:Current t|T)hread 0x)", "\n".join(log[begins[-1] + 1 :]), flags=re.MULTILINE)
    # The thread that has failed or, if the signal was sent to the process, the thread that may have sent it.
    for thread in sorted(threads, key=lambda dump: not dump.startswith("Current")):
        frames = list(_DUMPED.finditer(thread))
        inner = frames if thread.startswith("Current") else frames[:1]
        for frame in takewhile(lambda one: not one["file"].startswith(_FERRY), inner):
            if _rank(frame["file"]) == 2:
                place = f"{Path(frame['file']).name}:{frame['line']} in {frame['name']}"
                return f"{USER_CODE}{log[begins[-1]]} ({place})"
    return log[begins[-1]]


def line_of_exit(code: int, stack: traceback.StackSummary, then: str) -> str | None:
    """The line for a call of `os._exit`, and its consequence; None: the innermost caller is not the user's code."""
    callers = [frame for frame in stack[:-1] if _rank(frame.filename) == 2]
    inner = [frame for frame in stack[:-1] if frame.filename.startswith(_FERRY)]
    if not callers or (inner and stack.index(inner[-1]) > stack.index(callers[-1])):
        return None
    return f"{USER_CODE}os._exit({code}) ({_place(callers)}): {then}"


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    last = _innermost([(frame.filename, frame) for frame in frames])
    if last is None:
        return ""
    statement = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    inside = "" if last.name == "<module>" else f" in {last.name}"
    cut = f': "{_plain(statement, STATEMENT_MAX)}"' if statement else ""
    return f"{Path(last.filename).name}:{last.lineno}{inside}{cut}"


def text_of(error: BaseException) -> str:
    """The message of an error, also of an error whose `__str__` raises."""
    try:
        return str(error)
    except BaseException as failed:
        return f"unknown message: its __str__ raises {type(failed).__name__}"


def words_of(error: BaseException) -> str:
    """The message of an error in one plain line, cut."""
    return _plain(" ".join(text_of(error)[: 10 * MESSAGE_MAX].split()), MESSAGE_MAX)


def shown(value: object, most: int = KEY_MAX) -> str:
    """A value of the user's in a message; also a value whose `__repr__` fails."""
    try:
        return _plain(repr(value), most)
    except BaseException as failed:
        return f"<{type(value).__name__}, whose __repr__ raises {type(failed).__name__}>"


def _summary(error: BaseException) -> str:
    """Type and message, the same of its cause, or of the first error of a group, in short."""
    words = words_of(error)
    summary = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if isinstance(error, BaseExceptionGroup):
        return f"{summary}, the first is {_cut(_summary(error.exceptions[0]), MESSAGE_MAX)}"
    cause = error.__cause__
    if cause is None or cause is error or ((why := words_of(cause)) and why in words):
        return summary
    return f"{summary} (from {_cut(f'{type(cause).__name__}: {why}' if why else type(cause).__name__, KEY_MAX)})"


def reason(error: BaseException) -> str:
    """Type, message and the user's statement of an error that is a refusal: `KeyError: 'x' (job.py:13 in price:
    "row[x]")`."""
    at = where(error)
    return f"{_summary(error)} ({at})" if at else _summary(error)


def place_of(function: object) -> str:
    """File and line where a function or class of the user's is defined; empty: unknown."""
    try:
        return _defined(function)
    except Exception:  # the attributes may be the user's
        return ""


def function_name(function: object) -> str:
    """How a message names a user's function, or an object that is called."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def at(function: object) -> str:
    """File and line of a definition in brackets, for a message behind the name; empty if unknown."""
    place = place_of(function)
    return f" ({place})" if place else ""


def _defined(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if isinstance(code, CodeType):
        return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    kind = function if isinstance(function, type) else type(function)
    if kind not in _PLACES:
        _PLACES[kind] = _place_of_class(kind)
    return _PLACES[kind]


def _place_of_class(kind: type) -> str:
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):  # it was pickled by value, without its module
        codes = (getattr(method, "__code__", None) for method in vars(kind).values())
        file, line = next((one.co_filename, one.co_firstlineno) for one in codes if isinstance(one, CodeType))
    return f"{Path(file).name}:{line}" if file is not None and _rank(file) else ""


def line_of(error: BaseException, noun: str, function: object = None, key: object = None) -> str:
    """The line for an error of a function of the user's; `noun` names it, as in "map_batches behind source
    'orders'"."""
    if isinstance(error, UserCodeFailed):
        return str(error)
    place = where(error) or (place_of(function) if function is not None else "")
    at = f" ({place})" if place else ""
    of = f", key {shown(key)}" if key is not None else ""
    return f"{USER_CODE}{_summary(error)}{at}, {one_line(noun)}{of}"


def line_of_thread(error: BaseException | None, name: str) -> str | None:
    """The line for an error that has ended a thread of the user's own; None: the thread is Ferry's."""
    frames = [frame.tb_frame.f_code.co_filename for frame in _frames(error)]
    begun = next((file for file in frames if not os.path.realpath(file).startswith(_STANDARD)), "")
    if error is None or not begun or not _rank(begun):
        return None
    return line_of(error, f"thread {shown(name)}, which ends")


def _frames(error: BaseException | None) -> Iterator[TracebackType]:
    at = error.__traceback__ if error is not None else None
    while at is not None:
        yield at
        at = at.tb_next


def signal_in(text: str) -> str | None:
    """The signal and the user's statement, from Python's report of a signal; None: the text holds no such report.

    Example:
        >>> signal_in("Fatal Python error: Bus error\\n\\nCurrent thread 0x1 (most recent call first):\\n  <no frame>")
        'Bus error'
    """
    signal = re.search(r"Fatal Python error: ([^\n]+)", text)
    if signal is None:
        return None
    place = place_in(text[signal.end() :])
    return f"{signal[1]} ({place})" if place else signal[1]


def place_in(text: str) -> str:
    """Place of the user's innermost statement in Python's report of a signal; empty: none ran."""
    crashed = text.partition("Current thread ")[2].split("\n\n")[0]
    frames = re.findall(r'File "([^"\n]+)", line (\d+) in (\S+)', crashed)
    return _place([traceback.FrameSummary(file, int(line), name) for file, line, name in reversed(frames)])


def line_in(text: str) -> str | None:
    """The line inside a longer text, such as a traceback of Spark's; None: there is none."""
    found = re.search(rf"{re.escape(USER_CODE)}[^\n]*", text)
    return found[0].rstrip() if found else None


def line_in_traceback(text: str, noun: str) -> str | None:
    """The line for a traceback inside a longer text, such as Spark's for a user function; None: it holds no user
    error."""
    last = _innermost([(one["file"], one) for one in _FRAME.finditer(text)])
    if last is None:
        return None
    error = _RAISED.search(text, last.end())
    inside = "" if last["name"] == "<module>" else f" in {last['name']}"
    statement = f': "{_plain(last["statement"].strip(), STATEMENT_MAX)}"' if last["statement"] else ""
    at = f"{Path(last['file']).name}:{last['line']}{inside}{statement}"
    raised = _plain(" ".join(error[1].split()) if error else "an error", MESSAGE_MAX)
    causes = [" ".join(one.split()) for one in _CAUSE.findall(text, 0, last.start())]
    if causes and ((why := causes[-1].partition(": ")[2]) == "" or why not in raised):
        raised = f"{raised} (from {_plain(causes[-1], KEY_MAX)})"
    return f"{USER_CODE}{raised} ({at}), {noun}"


@contextmanager
def calling(noun: str, function: object = None, key: object = None) -> Iterator[None]:
    """Around a call of the user's code: an error becomes UserCodeFailed, except a Refusal (SpecRefused, Final).

    SystemExit and KeyboardInterrupt, too: the user's code must not end a process of Ferry. A forked child that returns
    from the call is ended: two processes must not answer as one.

    Raises UserCodeFailed, also for such a child, as soon as it is known.
    """
    process, running = os.getpid(), RUNNING.set(noun)
    children, ended = _children(process), 1
    try:
        yield
    except (UserCodeFailed, Refusal):
        raise
    except BaseException as error:
        ended = 0 if isinstance(error, SystemExit) else 1
        raise UserCodeFailed(line_of(error, noun, function, key)) from error
    finally:
        RUNNING.reset(running)
        if os.getpid() != process:
            _end_child(children if ended else None, noun, function)
    if children[0]:
        line = children[: children.find(b"\0")].decode(errors="replace")
        children[0] = 0
        raise UserCodeFailed(line)


_CHILD_BYTES = 4096

_known: tuple[int, mmap.mmap] | None = None


def _children(process: int) -> mmap.mmap:
    """Memory in which forked children report their return."""
    global _known
    if _known is None or _known[0] != process:
        _known = process, mmap.mmap(-1, _CHILD_BYTES)
    return _known[1]


def _end_child(children: mmap.mmap | None, noun: str, function: object) -> NoReturn:
    """Ends the child itself; `children`: memory for its report, None: the child asked to end."""
    if children is not None:
        at = f" ({place})" if (place := place_of(function)) else ""
        line = (
            f"{USER_CODE}os.fork(): a child process comes back{at}, and is ended; call os._exit in it, {one_line(noun)}"
        )
        text = line.encode(errors="replace")[: _CHILD_BYTES - 1] + b"\0"
        os.write(2, text[:-1] + b"\n")
        children[1 : len(text)], children[0] = text[1:], text[0]
    os._exit(1 if children is not None else 0)


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 3] + "..."


def _plain(text: str, characters: int) -> str:
    return _cut(without_text(one_line(text[: 2 * characters])), characters)
