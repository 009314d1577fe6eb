"""Failures of an epoch: an instance is gone, no other try would help, a system is away, or it is the user's code.

    a function before an operator, behind one, or in a transform -> UserCodeFailed, tried again a few times
    a user's sink that raises an error of a program (`PROGRAM`)  -> UserCodeFailed, too
    a user's sink that raises anything else                      -> tried for as long as spec.sink.patience says

Must never count a system that is away as an error of a program.
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
"""In the text of a failed Spark job: it could not reach an instance, that one had no rows (any more), or was lost; input
could not be read; or its tasks were, with their executors."""

FINAL_ERRORS = re.compile(r"ferry\.contract\.errors\.(Final|SpecRefused|DataRefused)\b")
"""In the text of a failed Spark job."""

PROGRAM = (
    TypeError, ValueError, LookupError, AttributeError, NameError, ArithmeticError, AssertionError, ImportError, SyntaxError,
    NotImplementedError, RecursionError, AnalysisException, PythonException,
)  # fmt: skip
"""Errors that a program has of itself: what it writes to has no part in them."""


def is_passing(error: BaseException) -> bool:
    """Whether a failed Spark job may be due to an instance that died under it."""
    return READ_ERRORS.search(text_of(error)) is not None


def is_final(error: Exception) -> bool:
    """Whether a sink says that another try is of no use: by its class, or that of what failed in a task of Spark."""
    if isinstance(error, FerryError):
        return not isinstance(error, Fault)
    return is_final_text(text_of(error))


def is_final_text(text: str) -> bool:
    """Whether a task has failed so that another try is of no use."""
    return FINAL_ERRORS.search(text) is not None


def refuse_final(error: Exception | str) -> None:
    """Raise DataRefused when rows cannot be read, or made, for what they hold: no other reader or task would help.

    And what a task has raised that is final by its class: Final, SpecRefused or DataRefused.
    """
    text = error if isinstance(error, str) else text_of(error)
    found = re.search(
        rf"(?:{OVERFLOW}|{RECORDS_LOST}|{DOES_NOT_FIT}).*?(?=\. Detail: |\n|$)", text
    )  # Flight adds where it was raised.
    if found is not None:
        raise DataRefused(found[0])
    if (raised := FINAL_ERRORS.search(text)) is not None:
        words = text[raised.end() :].removeprefix(": ").split("\n")[0]
        raise {"Final": Final, "SpecRefused": SpecRefused, "DataRefused": DataRefused}[raised[1]](words)


def last_words(text: str) -> str:
    """The error with which a Python traceback inside a longer text ends, or how Spark says that a process has died."""
    if DIED in text:
        return "the death of their process"
    errors = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b[^\n]*", text, re.MULTILINE)
    return errors[-1][:300] if errors else text.split("\n")[0][:300]


def has_died(error: Exception) -> bool:
    """Whether a job of Spark's has failed because processes of its tasks died, on executors that are there."""
    return DIED in text_of(error) and not is_passing(error)


def user_error(error: BaseException, what: str) -> UserCodeFailed | None:
    """The error of the user's code that a step or a job of Spark has failed with; None: it is none of theirs."""
    if isinstance(error, UserCodeFailed):
        return error
    text = text_of(error)
    line = line_in(text) or (line_in_traceback(text, what) if isinstance(error, Py4JError | PySparkException) else None)
    return UserCodeFailed(line) if line is not None else None


def death(error: Exception, what: str) -> UserCodeFailed | None:
    """The error for a job whose tasks die again and again where no record can be left out; None: it failed otherwise."""
    if not has_died(error):
        return None
    return UserCodeFailed(
        f"{USER_CODE}the process of a task dies: a crash of native code, an exit, or no memory, {what}"
    )


def sql_error(error: BaseException, what: str) -> UserCodeFailed | None:
    """The error of the user's steps in Spark SQL that a job has failed with, as a division by zero; None: it is none."""
    if not isinstance(error, Py4JError | PySparkException):
        return None
    found = re.search(r"\[[A-Z][A-Z_.]+\][^\n]*", str(error))
    words = found[0] if found is not None else last_words(str(error))
    return UserCodeFailed(f"{USER_CODE}{words[:MESSAGE_MAX]}, {what}")


@contextmanager
def sink_code(sink: Sink) -> Iterator[None]:
    """Around a call of a sink. Raises UserCodeFailed for what a user's own raises, unless it cannot reach something."""
    function: Any = sink.function if isinstance(sink, ForeachEpoch) else type(sink)
    users = isinstance(sink, ForeachEpoch) or not is_ferrys(sink)
    what = f"sink {shown(sink)}"
    try:
        yield
    except FerryError:
        raise
    except BaseException as error:
        if (found := user_error(error, what)) is not None:
            raise found from error
        if users and (_is_program(error) or not isinstance(error, Exception)):
            raise UserCodeFailed(line_of(error, what, function)) from error
        raise


def _is_program(error: BaseException) -> bool:
    """Whether an error of a sink is about its code; any other one, as a RuntimeError, may say that something is away."""
    if not isinstance(error, Exception):
        return True
    return isinstance(error, PROGRAM) and not is_away(error) and not is_passing(error)
