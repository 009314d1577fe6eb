"""Why a process ends, as the last line of its log: written by the process, found by whoever looks after it.

    ends: refused: spec.pipeline.file: no file sales.py

A process that is killed, or that ends before it can write the line, has other last words: `last_words` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ferry.contract.one_line import one_line
from ferry.contract.user_code import line_in, line_of_crash

ENDS = "ends: "
"""What the line begins with."""

WORDS_MAX = 1000
"""Characters of a reason that are shown."""

_LOOKED_AT = 40
"""Lines of the end of a log, without what is left out, in which an error of the user's code is looked for."""

_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+ (?:\S+ ){0,3}?(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\S+: )?"
)
"""How a log record of Ferry's begins."""

_REDIS = re.compile(r"\d+:[A-Z] \d\d \w{3} \d{4} [\d:.]+ ([*#.-]) ")
"""How a log record of Redis begins."""

_NOISE = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d |WARNING: |SLF4J|log4j|Picked up |Using Spark's |Setting default log level"
    r"|To adjust logging level |WARN |INFO |Caused by: |Driver stacktrace:|JVM stacktrace:|During handling of the above"
    r"|The above exception was |Current thread 0x|Thread 0x|Extension modules: |Exception ignored in"
    r"|resource_tracker|[^ ]*resource_tracker\.py"
)
"""How lines begin that Java, Spark and Python write around a reason."""

_REASON = re.compile(r"(refused|Halted|Refusal|StateUnavailable): ")
"""How the last line of a driver began before it began with `ENDS`: jobs keep the image they have."""

NO_JAVA = "JAVA_GATEWAY_EXITED"
"""In the error of PySpark when Java ends at its start."""

_TRACEBACK = "Traceback (most recent call last):"


def words_of(error: BaseException) -> str:
    """Why this error ends a process, in one line: the line about the user's code, if one is in it or behind it.

    Example:
        >>> words_of(ValueError("no\\nnumber"))
        'ValueError: no number'
    """
    seen = list[BaseException]()
    one: BaseException | None = error
    while one is not None and one not in seen:
        if (of_user := line_in(str(one))) is not None:
            return of_user
        seen.append(one)
        one = one.__cause__ or one.__context__
    if _TRACEBACK in str(error):  # of another process: its error is the one
        whole = str(error).replace(_TRACEBACK, f"\n{_TRACEBACK}").split("\n")
        if inner := [text for kind, text in _messages(whole) if kind == "error"]:
            return inner[-1]
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    java = next((i for i, line in enumerate(lines) if line.startswith(("at ", "JVM stacktrace:"))), len(lines))
    text = " ".join(lines[:java])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(reason: str) -> str:
    """The line that a process ends its log with."""
    return ENDS + one_line(" ".join(part.strip() for part in reason.splitlines()))


def last_words(lines: Iterable[str]) -> str | None:
    """Why the process ended that has written these lines at last; None: nothing says so.

    The line of `line_of` says it; else what Python says of a signal; else an error of the user's code among the last
    lines; else the last error or, when there is none, the last warning. What Java and Spark write around it is left out.
    """
    kept = [line.rstrip() for line in lines if line.strip()]
    for line in reversed(kept):
        if line.startswith(ENDS):
            return _shown(_of_java(kept) if NO_JAVA in line else line[len(ENDS) :])
    if (crash := line_of_crash(kept)) is not None:
        return _shown(crash)
    messages = list(_messages(kept))
    for _, text in reversed(messages[-_LOOKED_AT:]):
        if (of_user := line_in(text)) is not None:
            return _shown(of_user)
    for level in ("reason", "error", "WARNING"):
        if found := [text for kind, text in messages if kind == level]:
            return _shown(found[-1])
    return None


def _of_java(lines: list[str]) -> str:
    """What Java said before it did not start, which PySpark does not pass on."""
    others = (" ", "\t", ENDS, _TRACEBACK)
    found = [line for line in lines if not line.startswith(others) and not _RECORD.match(line) and NO_JAVA not in line]
    return f"Java did not start: {found[-1] if found else 'it says nothing; is JAVA_HOME right?'}"


def _messages(lines: list[str]) -> Iterable[tuple[str, str]]:
    """(what it is, text) of the lines that say something: of a traceback, its error."""
    traceback: int | None = None  # how far in it stands
    message = False
    for line in lines:
        margin = len(line) - len(line.lstrip())
        if (match := _RECORD.match(line)) is not None:
            traceback, message = None, False
            level = "error" if match[1] in ("ERROR", "CRITICAL") else match[1]
            yield level, line[match.end() :]
        elif (match := _REDIS.match(line)) is not None:
            yield "error" if match[1] == "#" else "INFO", line[match.end() :]
        elif line.strip().startswith(_TRACEBACK):
            traceback, message = margin, False
        elif traceback == margin and not _NOISE.match(line.lstrip()):
            traceback, message = None, True
            yield "error", line.strip()
        elif line.startswith((" ", "\t")):
            if line_in(line) is not None:
                yield "error", line.strip()
        elif _NOISE.match(line):
            continue
        elif _REASON.match(line):
            yield "reason", line
        elif not message:
            yield "error", line


def _shown(text: str) -> str:
    text = one_line(text.strip())
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 3] + "..."
