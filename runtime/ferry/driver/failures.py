"""Classifies failures of an epoch: lost instances, final errors, unavailable systems, and errors of the user's code.

    a function before or after an operator, or in a transform -> UserCodeFailed, retried a few times
    a user's sink raises a programming error (`PROGRAM`)      -> UserCodeFailed, too
    a user's sink raises another error                        -> retried until spec.sink.patience is over

Must never count an unavailable system as a programming error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from ferry.connectors.foreach.sink import ForeachEpoch
from ferry.connectors.sink import Sink
from ferry.connectors.users import is_away, is_ferrys
from ferry.contract.errors import (
    DOES_NOT_FIT,
    OVERFLOW,
    RECORDS_LOST,
    DataRefused,
    Fault,
    FerryError,
    Final,
    SpecRefused,
    UserCodeFailed,
)
from ferry.contract.user_code import (
    MESSAGE_MAX,
    USER_CODE,
    line_in,
    line_in_traceback,
    line_of,
    shown,
    text_of,
)
from ferry.spark.attempts import DIED

READ_ERRORS = re.compile(
    r"pyarrow\._flight\.Flight\w+|FlightUnavailable|RowsGone|rows gone|contract\.errors\.(?:Fault|Unreachable)|"
    r"[Jj]ob \d+ cancelled|ExecutorLost|FetchFailed"
)
"""In the text of a failed Spark job: an instance was lost, was unreachable or had dropped the rows; input could not be read;
or executors were lost with their tasks."""

FINAL_ERRORS = re.compile(r"ferry\.contract\.errors\.(Final|SpecRefused|DataRefused)\b")
"""In the text of a failed Spark job: its error is final."""

PROGRAM = (
    TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError, AssertionError, ImportError, SyntaxError,
    NotImplementedError, RecursionError, AnalysisException, PythonException,
)  # fmt: skip
"""Programming errors: the external system has no part in them."""


def is_passing(error: BaseException) -> bool:
    """Whether a Spark job may have failed because an instance died meanwhile."""
    return READ_ERRORS.search(text_of(error)) is not None


def is_final(error: Exception) -> bool:
    """Whether a retry of a sink is useless: by the class of its error, or of the error of a Spark task."""
    if isinstance(error, FerryError):
        return not isinstance(error, Fault)
    return is_final_text(text_of(error))


def is_final_text(text: str) -> bool:
    """Whether a task failed with an error that a retry cannot fix."""
    return FINAL_ERRORS.search(text) is not None


def refuse_final(error: Exception | str) -> None:
    """Raise DataRefused when rows cannot be read or built because of their content: another reader cannot help.

    A final error of a task is raised again: Final, SpecRefused or DataRefused.
    """
    text = error if isinstance(error, str) else text_of(error)
    refused = re.search(
        rf"(?:{OVERFLOW}|{RECORDS_LOST}|{DOES_NOT_FIT}).*?(?=\. Detail: |\n|$)", text
    )  # Flight appends the place of the error.
    if refused is not None:
        raise DataRefused(refused[0])
    if (raised := FINAL_ERRORS.search(text)) is not None:
        words = text[raised.end() :].removeprefix(": ").split("\n")[0]
        raise {"Final": Final, "SpecRefused": SpecRefused, "DataRefused": DataRefused}[raised[1]](words)


def last_words(text: str) -> str:
    """The last line of a Python traceback inside a longer text; for Spark's text of a dead process, that it died."""
    if DIED in text:
        return "the death of their process"
    errors = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b[^\n]*", text, re.MULTILINE)
    return errors[-1][:300] if errors else text.split("\n")[0][:300]


def has_died(error: Exception) -> bool:
    """Whether a Spark job failed because the processes of its tasks died while their executors lived."""
    return DIED in text_of(error) and not is_passing(error)


def user_error(error: BaseException, place: str) -> UserCodeFailed | None:
    """The error of the user's code that failed a step or a Spark job; None: the error has another cause."""
    if isinstance(error, UserCodeFailed):
        return error
    text = text_of(error)
    line = line_in(text) or (
        line_in_traceback(text, place) if isinstance(error, Py4JError | PySparkException) else None
    )
    return UserCodeFailed(line) if line is not None else None


def death(error: Exception, place: str) -> UserCodeFailed | None:
    """The error of a job whose tasks die repeatedly where no record can be left out; None: the job failed otherwise."""
    if not has_died(error):
        return None
    return UserCodeFailed(
        f"{USER_CODE}the process of a task dies: a crash of native code, an exit, or no memory, {place}"
    )


def sql_error(error: BaseException, place: str) -> UserCodeFailed | None:
    """The error of the user's Spark SQL, such as a division by zero, that failed a job; None: another error."""
    if not isinstance(error, Py4JError | PySparkException):
        return None
    condition = re.search(r"\[[A-Z][A-Z_.]+\][^\n]*", str(error))
    words = condition[0] if condition is not None else last_words(str(error))
    return UserCodeFailed(f"{USER_CODE}{words[:MESSAGE_MAX]}, {place}")


@contextmanager
def sink_code(sink: Sink) -> Iterator[None]:
    """Around a call of a sink. Turns an error of a user's sink into UserCodeFailed, unless a system is unavailable."""
    function: Any = sink.function if isinstance(sink, ForeachEpoch) else type(sink)
    users = isinstance(sink, ForeachEpoch) or not is_ferrys(sink)
    place = f"sink {shown(sink)}"
    try:
        yield
    except FerryError:
        raise
    except BaseException as error:
        if (failed := user_error(error, place)) is not None:
            raise failed from error
        if users and (_is_program(error) or not isinstance(error, Exception)):
            raise UserCodeFailed(line_of(error, place, function)) from error
        raise


def _is_program(error: BaseException) -> bool:
    """Whether an error of a sink is a programming error. Others, such as RuntimeError, may mean an unavailable system."""
    if not isinstance(error, Exception):
        return True
    return isinstance(error, PROGRAM) and not is_away(error) and not is_passing(error)
