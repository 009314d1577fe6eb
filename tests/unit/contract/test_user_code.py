"""The line that says what went wrong in the user's own code, and where."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest

from ferry.contract.errors import Final, SpecRefused, UserCodeFailed
from ferry.contract.user_code import USER_CODE, calling, line_in, place_of, reason


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


def test_the_users_statement_is_named_where_a_compiled_library_raises() -> None:
    beyond = pa.array([253_402_300_800], pa.timestamp("s"))
    with pytest.raises(UserCodeFailed, match=r"\(test_user_code\.py:\d+ in .*to_pylist"), calling("map_batches"):
        beyond.to_pylist()


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


class Base(BaseException):
    """Derived from no Exception."""


class Wordless(Exception):
    """Has no words."""

    def __str__(self) -> str:
        raise self


def test_an_error_that_is_no_exception_has_its_line() -> None:
    with pytest.raises(UserCodeFailed, match=r"Base: all \(test_user_code\.py"), calling("map_batches"):
        raise Base("all")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_what_no_code_of_the_users_raises_goes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind), calling("map_batches"):
        raise kind


def test_an_error_that_raises_when_it_is_asked_for_its_words_has_its_line() -> None:
    with pytest.raises(UserCodeFailed, match=r"user code: Wordless \(test_user_code\.py"), calling("map_batches"):
        raise Wordless
    assert reason(Wordless()).startswith("Wordless (test_user_code.py")
