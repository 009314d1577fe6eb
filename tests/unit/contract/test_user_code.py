"""The line that says what went wrong in the user's own code, and where."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import pickle
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ferry.contract.errors import Final, SpecRefused, UserCodeFailed
from ferry.contract.user_code import (
    USER_CODE,
    calling,
    line_in,
    line_in_traceback,
    line_of,
    place_of,
    reason,
    signal_in,
)


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


class Mute(Exception):
    """Nobody can ask what it says, and no other process can have it."""

    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(one)

    def __str__(self) -> str:
        raise ValueError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


def raised(error: BaseException) -> Callable[[], None]:
    def raises() -> None:
        raise error

    return raises


def recurses() -> None:
    recurses()


def causes() -> None:
    try:
        {}["x"]
    except KeyError as missing:
        raise RuntimeError("no price") from missing


def stops() -> list[int]:
    def numbers() -> Iterator[int]:
        yield next(iter(()))

    return list(numbers())


def groups() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    asyncio.run(both())


def warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("old", DeprecationWarning, stacklevel=1)


def evaluates() -> None:
    eval("1 +")


class Called:
    def __call__(self) -> None:
        raise KeyError("x")


def decorated(function: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(function)
    def inner() -> None:
        function()

    return inner


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raised(SystemExit(3)), 'SystemExit: 3 (test_user_code.py:LINE in raises: "raise error")'),
        (raised(KeyboardInterrupt()), "KeyboardInterrupt (test_user_code.py:LINE"),
        (raised(GeneratorExit()), "GeneratorExit (test_user_code.py:LINE"),
        (raised(StopIteration(3)), "StopIteration: 3 (test_user_code.py:LINE"),
        (raised(asyncio.CancelledError()), "CancelledError (test_user_code.py:LINE"),
        (raised(Mute(1, two=2)), "Mute: unknown message: its __str__ raises ValueError (test_user_code.py:LINE"),
        (raised(ValueError("x" * 10_000_000)), "ValueError: xxx"),
        (raised(ValueError("\x1b[2J\nline\u2028two\r")), "ValueError: \\x1b[2J line two (test_user_code.py:LINE"),
        (recurses, 'RecursionError: maximum recursion depth exceeded (test_user_code.py:LINE in recurses: "recurses()")'),
        (causes, "RuntimeError: no price (from KeyError: 'x') (test_user_code.py:LINE in causes"),
        (stops, "RuntimeError: generator raised StopIteration (from StopIteration) (test_user_code.py:LINE in numbers"),
        (groups, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception), the first is KeyError: 'x' (test_user_code.py:LINE in fails"),
        (warns, "DeprecationWarning: old (test_user_code.py:LINE in warns"),
        (evaluates, "SyntaxError: invalid syntax (<string>, line 1) (test_user_code.py:LINE in evaluates"),
        (Called(), "KeyError: 'x' (test_user_code.py:LINE in __call__"),
        (functools.partial(divides, 0), "ZeroDivisionError: division by zero (test_user_code.py:LINE in divides"),
        (lambda: {}["x"], "KeyError: 'x' (test_user_code.py:LINE in <lambda>"),
        (decorated(recurses), "RecursionError: maximum recursion depth exceeded (test_user_code.py:LINE in recurses"),
    ],
)  # fmt: skip
def test_there_is_one_line_of_every_error(function: Callable[[], Any], said: str) -> None:
    with pytest.raises(UserCodeFailed) as failed, calling("f in map_batches", function):
        function()
    line = str(failed.value)
    assert re.match(re.escape(f"{USER_CODE}{said}").replace("LINE", r"\d+"), line) and line.endswith(
        ", f in map_batches"
    ), line
    assert len(line) < 900 and line.isprintable() and line_in(f"x\n{line}\ny") == line
    assert str(pickle.loads(pickle.dumps(failed.value))) == line
    assert said.split(" (test_user")[0][:50] in reason(failed.value.__cause__ or failed.value)


class Strange:
    """A key, or a function, of which nobody can know anything."""

    def __repr__(self) -> str:
        raise KeyError("no")

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


def test_a_key_or_a_function_that_cannot_be_shown_is_no_error_of_its_own() -> None:
    with pytest.raises(UserCodeFailed, match=r"ValueError: 1 \(.*, key <Strange, whose __repr__ raises KeyError>"):
        with calling("f", Strange(), Strange()):
            raise ValueError(1)
    with (
        pytest.raises(UserCodeFailed, match=r"key 'a\\x1b\[2J") as failed,
        calling("f", key="a\x1b[2J" + "b" * 10_000_000),
    ):
        raise ValueError(1)
    assert len(str(failed.value)) < 500


def of_file(file: str, then: str = "raise ValueError(1)") -> Callable[..., None]:
    made: dict[str, Any] = {}
    exec(compile(f"def made(inner=None):\n    {then}", file, "exec"), made)
    return made["made"]  # type: ignore[no-any-return]


PACKAGES = sysconfig.get_path("purelib")
CALLS = "inner()"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["/home/me/job.py", f"{PACKAGES}/requests/api.py"], "job.py:2"),
        ([f"{PACKAGES}/mine/job.py", f"{PACKAGES}/mine/parts.py", f"{PACKAGES}/requests/api.py"], "parts.py:2"),
        ([f"{PACKAGES}/pyspark/worker.py", f"{PACKAGES}/mine/job.py", f"{PACKAGES}/numpy/core.py"], "job.py:2"),
        (["/home/me/job.py", "<string>"], "job.py:2"),
        (["/home/me/job.py", "/home/me/lib.zip/parts.py", "/opt/spark/pyspark.zip/pyspark/sql.py"], "parts.py:2"),
        (["/home/me/job.py", "/home/me/fast.pyx", json.__file__], "fast.pyx:2"),
    ],
)  # fmt: skip
def test_the_place_is_the_users_innermost_statement(files: list[str], place: str) -> None:
    inner = of_file(files[-1])
    for file in reversed(files[:-1]):
        inner = functools.partial(of_file(file, CALLS), inner)
    with pytest.raises(ValueError, match="1") as failed:
        inner()
    error = failed.value.with_traceback(failed.tb.tb_next)  # without this test
    assert line_of(error, "f").startswith(f"{USER_CODE}ValueError: 1 ({place} in made")
    frames = "\n".join(f'  File "{file}", line 2, in made\n    inner()' for file in files)
    text = f"org.apache.spark: Traceback (most recent call last):\n{frames}\nValueError: 1\n\tat x.java"
    line = line_in_traceback(text, "a task")
    assert line is not None and line.startswith(f"{USER_CODE}ValueError: 1 ({place} in made"), line


@pytest.mark.parametrize("after", [" SQLSTATE: 38000\n\tat x.java", "\tat x.java", "\nDriver stacktrace:", ""])
def test_a_printed_error_of_several_lines_is_named_whole(after: str) -> None:
    try:
        raise TypeError("two\n  lines\x1b[2J")
    except TypeError as error:
        text, known = traceback.format_exc(), line_of(error, "a task")
    assert line_in_traceback(f"org.apache.spark: {text}{after}", "a task") == known
    assert "TypeError: two lines" in known


@pytest.mark.parametrize("words", ["inner", "", "1", "in\nner"])
def test_a_printed_traceback_names_what_the_error_came_from(words: str) -> None:
    try:
        try:
            raise ValueError(words)
        except ValueError as error:
            raise KeyError(1) from error
    except KeyError as error:
        text, known = traceback.format_exc(), line_of(error, "a task")
    assert line_in_traceback(f"org.apache.spark: {text}\tat x.java", "a task") == known
    assert ("(from ValueError" in known) == (words != "1")


@pytest.mark.parametrize(
    "made", [functools.partial(functools.partial(divides, 0)), decorated(recurses), Called, Called().__call__]
)
def test_where_a_function_is_defined_is_known_of_every_kind(made: Any) -> None:
    assert place_of(made).startswith("test_user_code.py:") and place_of(Path) == place_of(Strange()) == ""


def test_where_a_class_is_defined_is_known_where_its_module_is_not() -> None:
    class Sent(Called):
        def method(self) -> None: ...

    Sent.__module__ = "not_here"
    assert place_of(Sent()) == f"test_user_code.py:{Sent.method.__code__.co_firstlineno}"


def test_a_file_is_searched_once_for_a_class_which_may_be_named_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known: ...

    place = place_of(Known)
    monkeypatch.setattr(inspect, "getsourcelines", lambda _: pytest.fail("searched again"))
    assert place_of(Known()) == place_of(Known) == place != ""


def test_a_crash_is_named_with_the_users_innermost_statement() -> None:
    here = divides.__code__
    crash = (
        "Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\n"
        'Thread 0x00007f (most recent call first):\n  File "/home/me/other.py", line 3 in waits\n\n'
        f'Current thread 0x00007e (most recent call first):\n  File "{json.decoder.__file__}", line 9 in scan\n'
        f'  File "{here.co_filename}", line {here.co_firstlineno + 1} in divides\n'
        '  File "/home/me/job.py", line 20 in price\n\nExtension modules: numpy\n\tat java.base/x'
    )
    at = f"test_user_code.py:{here.co_firstlineno + 1} in divides"
    assert signal_in(crash) == f'Segmentation fault ({at}: "return 1 / n")'
    assert signal_in("Fatal Python error: Aborted\n\n<no Python frame>") == "Aborted"
    assert signal_in("Python worker exited unexpectedly (crashed)") is None


def test_a_module_of_a_program_has_the_name_that_its_user_knows() -> None:
    """And not the name that it is imported under, with the hash of the program."""
    error = ImportError("cannot import name 'PRICE' from 'ferry_program_e1569b4501d9.helper' (/jobs/helper.py)")
    assert reason(error) == "ImportError: cannot import name 'PRICE' from 'helper' (/jobs/helper.py)"
