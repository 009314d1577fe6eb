"""Whose failure it is: the user's code, a system that is away, an instance that is gone, or nobody's that would pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkTypeError, PythonException, SparkRuntimeException

from ferry.connectors.console.sink import console
from ferry.connectors.foreach.sink import foreach_epoch
from ferry.connectors.sink import Sink
from ferry.contract.errors import Final, SpecRefused, UserCodeFailed
from ferry.driver.failures import death, has_died, last_words, refuse_final, sink_code, sql_error, user_error

UDF = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 8 times, most recent failure:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "{spark}/worker.py", line 2044, in main
    process()
  File "/home/ann/shop/job.py", line 9, in price
    return 100 // n
           ~~~~^^~~
ZeroDivisionError: integer division or modulo by zero

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:581)
"""


def write(epoch: int, generation: int, rows: Any) -> None:
    """A function of a user's."""


class Store(Sink):
    def write(self, epoch: int, generation: int, rows: Any) -> None:
        pass


class OperationalError(Exception):
    """As of a client of a database."""


def test_a_traceback_of_a_job_becomes_the_users_line() -> None:
    import pyspark

    found = user_error(PythonException(UDF.format(spark=Path(pyspark.__file__).parent)), "a step before operator 'w'")
    assert str(found) == (
        'user code: ZeroDivisionError: integer division or modulo by zero (job.py:9 in price: "return 100 // n"), '
        "a step before operator 'w'"
    )
    line = "user code: KeyError: 'a' (job.py:3 in f), f in map_batches on source 's'"
    assert str(user_error(RuntimeError(f"Job aborted: x\nferry...UserCodeFailed: {line}\n\tat java"), "x")) == line
    assert user_error(RuntimeError("java.lang.OutOfMemoryError"), "x") is None


def test_an_error_of_sql_is_that_of_the_step() -> None:
    text = "Job aborted: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n\tat org"
    assert "user code: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`" in str(sql_error(Py4JError(text), "a step"))
    assert sql_error(RuntimeError(text), "a step") is None


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), ZeroDivisionError(), SystemExit(2), BaseException("x"), PySparkTypeError("x"),
                                   AnalysisException("no table")], ids=repr)  # fmt: skip
@pytest.mark.parametrize("sink", [foreach_epoch(write), Store()], ids=["function", "class"])
def test_errors_of_a_users_sink_are_the_users(error: BaseException, sink: Sink) -> None:
    with pytest.raises(UserCodeFailed, match=r"^user code: .*test_failures\.py"), sink_code(sink):
        raise error


@pytest.mark.parametrize("error", [ConnectionError("x"), OSError(28, "no room"), OperationalError("down"), Py4JError("io"),
                                   SparkRuntimeException("x"), RuntimeError("the database is away"), Exception("x")], ids=repr)  # fmt: skip
def test_a_users_sink_that_reaches_nothing_is_waited_for(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, sink_code(foreach_epoch(write)):
        raise error
    assert raised.value is error


def test_what_a_sink_of_ferrys_raises_is_left_as_it_is() -> None:
    for error, sink in ((TypeError("x"), console()), (Final("x"), Store()), (SpecRefused("x"), foreach_epoch(write))):
        with pytest.raises(type(error)) as raised, sink_code(sink):
            raise error
        assert raised.value is error


@pytest.mark.parametrize("kind", [Final, SpecRefused])
def test_what_a_task_says_is_final_is_final(kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^no column 'k'$"):
        refuse_final(
            f"Traceback (most recent call last):\n  File x\nferry.contract.errors.{kind.__name__}: no column 'k'\n\n"
        )


def test_the_death_of_a_process_is_told_from_that_of_an_executor() -> None:
    died = "Task 0 failed 8 times: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert has_died(RuntimeError(died)) and last_words(died) == "the death of their process"
    assert str(death(RuntimeError(died), "sink of epoch 3")) == (
        "user code: the process of a task dies: a crash of native code, an exit, or no memory, sink of epoch 3"
    )
    assert death(RuntimeError("KeyError"), "x") is None
    assert not has_died(RuntimeError(f"{died} ExecutorLostFailure")) and not has_died(RuntimeError("KeyError"))
