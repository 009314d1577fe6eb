"""Why a process ends, as the last line of its log: written by the process, read by its parent or by the operator.

    ends: refused: spec.pipeline.file: no file sales.py

A process that is killed, or ends before it can write the line, leaves other last words: `last_words` finds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ferry.contract.one_line import one_line
from ferry.contract.user_code import line_in, line_of_crash

ENDS = "ends: "
"""Beginning of the line."""

WORDS_MAX = 1000
"""Characters of a reason that are shown."""

_LOOKED_AT = 40
"""Lines at the end of a log that are searched for an error of the user's code; noise lines do not count."""

_RECORD = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+ (?:\S+ ){0,3}?(DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\S+: )?"
)
"""Beginning of a log record of Ferry."""

_REDIS = re.compile(r"\d+:[A-Z] \d\d \w{3} \d{4} [\d:.]+ ([*#.-]) ")
"""Beginning of a log record of Redis."""

_NOISE = re.compile(
    r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d |WARNING: |SLF4J|log4j|Picked up |Using Spark's |Setting default log level"
    r"|To adjust logging level |WARN |INFO |Caused by: |Driver stacktrace:|JVM stacktrace:|During handling of the above"
    r"|The above exception was |Current thread 0x|Thread 0x|Extension modules: |Exception ignored in"
    r"|resource_tracker|[^ ]*resource_tracker\.py"
)
"""Beginnings of lines that Java, Spark and Python write around a reason."""

_REASON = re.compile(r"(refused|Halted|Refusal|StateUnavailable): ")
"""Beginning of a driver's last line before there was `ENDS`: jobs keep their image."""

NO_JAVA = "JAVA_GATEWAY_EXITED"
"""PySpark's error when Java ends at its start."""

_TRACEBACK = "Traceback (most recent call last):"


def words_of(error: BaseException) -> str:
    """Why this error ends a process, in one line: the line about the user's code, if the error or its cause holds one.

    Example:
        >>> words_of(ValueError("no\\nnumber"))
        'ValueError: no number'
    """
    seen = list[BaseException]()
    link: BaseException | None = error
    while link is not None and link not in seen:
        if (of_user := line_in(str(link))) is not None:
            return of_user
        seen.append(link)
        link = link.__cause__ or link.__context__
    if _TRACEBACK in str(error):  # of another process, whose error is the reason
        whole = str(error).replace(_TRACEBACK, f"\n{_TRACEBACK}").split("\n")
        if inner := [text for kind, text in _messages(whole) if kind == "error"]:
            return inner[-1]
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    java = next((i for i, line in enumerate(lines) if line.startswith(("at ", "JVM stacktrace:"))), len(lines))
    text = " ".join(lines[:java])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def line_of(reason: str) -> str:
    """The last line of the log of a process that ends for this reason."""
    return ENDS + one_line(" ".join(part.strip() for part in reason.splitlines()))


def last_words(lines: Iterable[str]) -> str | None:
    """Why the process that wrote these lines has ended; None: no line says it.

    Looks for, in this order: the line of `line_of`, Python's report of a signal, an error of the user's code among the
    last lines, the last error, the last warning. Lines of Java and Spark around a reason are left out.
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
    """Java's message before it failed to start; PySpark does not pass it on."""
    others = (" ", "\t", ENDS, _TRACEBACK)
    found = [line for line in lines if not line.startswith(others) and not _RECORD.match(line) and NO_JAVA not in line]
    return f"Java did not start: {found[-1] if found else 'it says nothing; is JAVA_HOME right?'}"


def _messages(lines: list[str]) -> Iterable[tuple[str, str]]:
    """(kind, text) of the lines with a message; of a traceback, its error."""
    traceback: int | None = None  # its indentation
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
