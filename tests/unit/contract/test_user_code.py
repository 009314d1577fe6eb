"""The line that says what went wrong in the user's own code, and where."""

from __future__ import annotations

import json
import sys

import pytest

from ferry.contract.errors import Final, SpecRefused, UserCodeFailed
from ferry.contract.user_code import USER_CODE, calling, line_in, place_of, signal_in


def divides(n: int) -> float:
    return 1 / n


def test_it_names_the_error_its_place_the_statement_and_the_operator() -> None:
    with pytest.raises(UserCodeFailed) as failed, calling("process 'fraud'", key=("a", 1)):
        divides(0)
    text = str(failed.value)
    assert text.startswith(f"{USER_CODE}ZeroDivisionError: division by zero (test_user_code.py:")
    assert "in divides: \"return 1 / n\"), process 'fraud', key ('a', 1)" in text


def test_the_users_statement_is_named_where_a_library_raises() -> None:
    with (
        pytest.raises(UserCodeFailed, match=r"JSONDecodeError.*test_user_code\.py.*json\.loads"),
        calling("map_batches"),
    ):
        json.loads("{")


def test_where_no_statement_of_the_users_is_left_the_function_is_named() -> None:
    assert place_of(divides).startswith("test_user_code.py:")
    with pytest.raises(UserCodeFailed, match=r"ValueError: no rows \(test_user_code.py:") as failed:
        error = ValueError("no\nrows")
        with calling("map_batches", divides):
            exec(compile("raise error", "<string>", "exec"), {"error": error})
    assert "\n" not in str(failed.value)


def test_it_is_found_inside_a_traceback_of_anybody() -> None:
    with pytest.raises(UserCodeFailed) as failed, calling("map_batches"):
        divides(0)
    line = str(failed.value)
    assert line_in(f"Traceback:\n  org.apache.spark: {line}\n\tat x.java") == line
    assert line_in("OSError: disk full") is None


@pytest.mark.parametrize("refusal", [SpecRefused("no column 'x'"), Final("the table has no column n")])
def test_a_refusal_goes_through(refusal: Exception) -> None:
    with pytest.raises(type(refusal)), calling("pipeline()"):
        raise refusal


def test_what_is_marked_once_is_not_marked_again() -> None:
    with pytest.raises(UserCodeFailed) as failed, calling("outer"), calling("inner"):
        divides(0)
    assert str(failed.value).count(USER_CODE) == 1 and str(failed.value).endswith(", inner")


def test_a_function_that_exits_has_failed() -> None:
    with pytest.raises(UserCodeFailed, match=r"SystemExit: 0 \(test_user_code\.py"), calling("pipeline()"):
        sys.exit(0)


def test_a_crash_is_named_with_the_users_innermost_statement() -> None:
    here = divides.__code__
    crash = (
        "Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f (most recent call first):\n  File "/home/me/other.py", line 3 in waits\n\n'
        'Current thread 0x00007e (most recent call first):\n  File "/usr/lib/python3.11/json/decoder.py", line 9 in scan\n'
        f'  File "{here.co_filename}", line {here.co_firstlineno + 1} in divides\n'
        '  File "/home/me/job.py", line 20 in price\n\nExtension modules: numpy\n\tat java.base/x'
    )
    at = f"test_user_code.py:{here.co_firstlineno + 1} in divides"
    assert signal_in(crash) == f'Segmentation fault ({at}: "return 1 / n")'
    assert signal_in("Fatal Python error: Aborted\n\n<no Python frame>") == "Aborted"
    assert signal_in("Python worker exited unexpectedly (crashed)") is None
