"""Why a process ended: the line that it writes itself, and what is found of one that could write none."""

from __future__ import annotations

import sysconfig

import pytest

from ferry.contract.errors import SpecRefused, UserCodeFailed
from ferry.contract.last_words import WORDS_MAX, last_words, line_of, words_of
from ferry.contract.user_code import USER_CODE

USER = "user code: ZeroDivisionError: division by zero (job.py:13 in price: \"return 1 / n\"), map_batches behind source 'orders'"

SPARK = f"""26/11/27 00:58:31 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
ferry.contract.errors.UserCodeFailed: {USER}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.io.IOException: Broken pipe
\t... 22 more
2026-11-27 00:58:31,123 sales-1 driver INFO the query ends
"""

STDLIB = sysconfig.get_path("stdlib")
TRACEBACK = """2026-11-27 00:58:31,123 sales-1 driver CRITICAL ends
Traceback (most recent call last):
  File "/x/ferry/driver/__main__.py", line 90, in <module>
    code = main()
RuntimeError: the query ended unexpectedly: 'more'
and a second line of the message
26/11/27 00:58:32 WARN SparkEnv: Exception while deleting
"""
CRASH = f"""\
2026-11-27 00:00:00,1 s driver INFO up
Fatal Python error: Segmentation fault

Thread 0x00007fe38bfff6c0 (most recent call first):
  File "/home/u/job.py", line 15 in touch
  File "/home/u/job.py", line 9 in sink

Thread 0x00007fe3917fa6c0 (most recent call first):
  File "{STDLIB}/queue.py", line 171 in get

Current thread 0x00007fe3f3d2f040 (most recent call first):
  File "{STDLIB}/threading.py", line 324 in wait

Extension modules: msgpack._cmsgpack (total: 1)
26/11/27 07:42:31 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)
java.io.EOFException
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (f"2026-11-27 00:58:31,123 s driver ERROR other\nends: refused: no file\n{USER}\n", "refused: no file"),
        (SPARK, USER),
        (TRACEBACK, "RuntimeError: the query ended unexpectedly: 'more'"),
        ("2026-11-27 00:00:00,1 s driver INFO up\nrefused: no module 'x'\nTerminated\n", "refused: no module 'x'"),
        ("2026-11-27 00:00:00,1 s w0 ERROR no room\n2026-11-27 00:00:01,1 s w0 INFO bye\n", "no room"),
        ("2026-11-27 00:00:00,1 s w0 WARNING it is late\n", "it is late"),
        ("2026-11-27 00:00:00,1 s w0 INFO up\n", None),
        ("", None),
        ("7:M 27 Nov 2026 01:23:45.678 # Fatal error loading the DB\n7:M 27 Nov 2026 01:23:45.679 * bye\n", "Fatal error loading the DB"),
        ("Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n  File \"/x.py\", line 3 in f\n", f"{USER_CODE}Fatal Python error: Segmentation fault (x.py:3 in f)"),
        (CRASH, f"{USER_CODE}Fatal Python error: Segmentation fault (job.py:15 in touch)"),
        (CRASH.replace("/home/u/job.py", f"{STDLIB}/queue.py"), "Fatal Python error: Segmentation fault"),
        (CRASH + "2026-11-27 00:00:01,1 s driver ERROR later\n\nends: refused: no file\n", "refused: no file"),
        ("WARNING: Using incubator modules\nno library to start with\n", "no library to start with"),
    ],
)  # fmt: skip
def test_of_all_that_a_log_ends_with_one_line_says_why(log: str, words: str | None) -> None:
    assert last_words(log.split("\n")) == words


def test_java_that_does_not_start_speaks_for_itself() -> None:
    ends = (
        "ends: PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    )
    traceback = ["2026-11-27 00:00:00,1 s driver CRITICAL ends", "  Traceback (most recent call last):", ends]
    java = "library initialization failed - unable to allocate file descriptor table - out of memory"
    assert last_words([java, *traceback]) == f"Java did not start: {java}"
    assert last_words(traceback) == "Java did not start: it says nothing; is JAVA_HOME right?"


def test_a_long_stack_of_java_hides_no_error_of_a_user() -> None:
    assert (
        last_words([f"x {USER}", *["\tat java.base/x"] * 500, "org.apache.spark.SparkException: Job aborted"]) == USER
    )


def test_last_words_are_one_line_without_escapes_and_have_an_end() -> None:
    assert last_words(["ends: a\x1b[2Jb\rc"]) == r"a\x1b[2Jb\rc"
    found = last_words(["ends: " + "x" * 5000])
    assert found is not None and len(found) == WORDS_MAX
    assert line_of("a\n  b\x1b[0m\n") == r"ends: a b\x1b[0m"


def test_an_error_is_told_with_the_error_of_the_user_behind_it() -> None:
    try:
        try:
            raise UserCodeFailed(USER)
        except UserCodeFailed as inner:
            raise RuntimeError("an epoch failed") from inner
    except RuntimeError as outer:
        assert words_of(outer) == USER
    assert words_of(RuntimeError(SPARK)) == USER
    assert words_of(SpecRefused("no column\nanywhere")) == "SpecRefused: no column anywhere"
    assert words_of(RuntimeError("Job aborted.\n\tat java.base/x\n\tat y")) == "RuntimeError: Job aborted."
    assert words_of(KeyError()) == "KeyError"
    other = (
        'Traceback (most recent call last):\n  File "/x.py", line 1, in f\n    f()\n    ^^^\nOSError: no room\nmore\n'
    )
    assert words_of(RuntimeError(other)) == "OSError: no room"
    assert words_of(RuntimeError(f"a task failed: {other}\tat java.base/x")) == "OSError: no room"
