"""What the user's functions and sources do wrong in a task, and how the line reads that people see."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from ferry.api.pipeline import Transform
from ferry.api.user_batches import UserBatches
from ferry.connectors.splits import Flow, Malformed
from ferry.connectors.users import is_away
from ferry.contract.errors import Fault, Unreachable, UserCodeFailed
from ferry.contract.notes import Receipt
from ferry.contract.user_code import calling
from ferry.spark import cuts
from ferry.spark.frames import spark_schema
from ferry.spark.tasks import reading
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.ingest import Feed, IngestTask
from ferry.spark.transforms import transformed
from tests.unit.spark.test_ingest import task

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64())])


class Source:
    """Of a user's; `then` is what it gives, or raises."""

    def __init__(self, *then: Any) -> None:
        self.then = then

    def schema(self) -> pa.Schema:
        return SCHEMA

    def read(self, split: Any, columns: Any) -> Iterator[Any]:
        for one in self.then:
            if isinstance(one, Exception):
                raise one
            yield one


def batch(*keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys), "t": pa.array([1] * len(keys), pa.int64())})


def receipt(source: Source, *functions: Any) -> Receipt:
    made: IngestTask = task(None)
    made.fragmenters = {0: Fragmenter(made.work.descriptor)}
    maps = tuple(UserBatches(one, "map_batches on source 's'", SCHEMA, SCHEMA) for one in functions)
    feed: Any = Feed(0, maps, ("k",), "t", source, None)  # type: ignore[arg-type]
    made.work = replace(made.work, feeds={"s": (feed,)})
    return Receipt.load(made.run([[("s", "{}")]]))


def raises(batch: pa.RecordBatch) -> pa.RecordBatch:
    return [100 // n for n in batch["k"].to_pylist()] and batch


def leaves(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise SystemExit(3)


class Cancelled(BaseException):
    """As asyncio has one: no Exception."""


def cancels(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise Cancelled("the loop is closed")


def other_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["key", "t"])


def other_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"k": batch["k"].cast(pa.string()), "t": batch["t"]})


def nothing(batch: pa.RecordBatch) -> None:
    return None


def network(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ConnectionError("the service is away")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, 'ZeroDivisionError: integer division or modulo by zero (test_user_functions.py:LINE in '),
        (leaves, "SystemExit: 3 (test_user_functions.py:LINE in leaves"),
        (cancels, "Cancelled: the loop is closed (test_user_functions.py"),
        (other_columns, "returned columns (key int64, t int64), and (k int64, t int64) for an empty batch"),
        (other_types, "returned columns (k string, t int64), and (k int64, t int64)"),
        (nothing, "returned NoneType; a RecordBatch or a Table is needed"),
        (network, "ConnectionError: the service is away"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
def test_an_error_of_a_function_is_in_the_receipt(function: Any, words: str) -> None:
    error = str(receipt(Source(batch(0, 1)), function).error)
    words = words.replace("LINE", str(function.__code__.co_firstlineno + 1))
    assert error.startswith("user code: ") and words in error, error
    assert f"{function.__name__} in map_batches on source 's'" in error and "test_user_functions.py:" in error


def test_a_column_of_nothing_but_nulls_has_the_type_that_was_declared() -> None:
    made = UserBatches(lambda rows: batch(None, None), "map_batches", SCHEMA, SCHEMA)(batch(1))
    assert made.schema.equals(SCHEMA) and made["k"].null_count == 2


def frame_of(schema: pa.Schema) -> DataFrame:
    """Nothing but its columns."""
    return object.__new__(type("Frame", (DataFrame,), {"schema": spark_schema(schema)}))


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (pa.schema([("k", pa.string()), ("t", pa.int64())]), "it returned columns (k string, t bigint), and (k bigint, t bigint)"),
        (pa.schema([("k", pa.int64())]), "it returned columns (k bigint), and (k bigint, t bigint) where the pipeline was"),
        (None, "it returned NoneType; a DataFrame is needed"),
    ],
)  # fmt: skip
def test_a_transform_returns_what_it_did_where_the_pipeline_was_built(later: pa.Schema | None, words: str) -> None:
    frame = frame_of(pa.schema([pa.field("k", pa.int64(), nullable=False), ("t", pa.int64())]))
    assert transformed(Transform(lambda rows: rows, "transform on source 's'", SCHEMA), frame) is frame
    with pytest.raises(UserCodeFailed, match=re.escape(words)):
        transformed(Transform(lambda rows: later and frame_of(later), "transform", SCHEMA), frame)  # type: ignore[arg-type, return-value]


def test_records_that_pass_through_spark_keep_its_types() -> None:
    mine = UserBatches(lambda rows: rows, "map_batches", *[pa.schema([("t", pa.timestamp("ms"))])] * 2)
    through = pa.record_batch({"t": pa.array([1], pa.timestamp("us"))})
    assert mine(through).schema == through.schema


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (KeyError("offset"), "user code: KeyError: 'offset' (test_user_functions.py"),
        ({"k": 1}, "read() gave dict; it must give batches"),
        (None, "read() gave NoneType; it must give batches"),
        (Malformed(1, [b"x"]), "read() gave a Malformed with a value that is not a text"),  # type: ignore[list-item]
        (Malformed(-1), "whose count, records and reasons do not fit each other"),
        (Malformed(2, ["x", "y"], reasons=["no"]), "whose count, records and reasons do not fit each other"),
        (Flow(3), "read() gave a Flow with a value that is not a text"),  # type: ignore[arg-type]
        (batch("text"), "column 'k' is string; its schema() says int64"),
        (pa.record_batch({"t": [1]}), "column 'k' is missing"),
    ],
    ids=str,
)
def test_an_error_of_a_users_source_is_in_the_receipt(then: Any, words: str) -> None:
    error = str(receipt(Source(batch(1), then)).error)
    assert words in error and "source 's'" in error, error


def test_of_a_users_batches_the_columns_are_taken_that_are_wanted() -> None:
    rows = batch(1, 2)
    source: Any = Source(rows.select(["t", "k"]).append_column("more", rows["k"]))
    assert list(reading._read("s", source, {}, None)) == [rows]
    assert list(reading._read("s", source, {}, ["t"])) == [rows.select(["t"])]
    assert [one.num_rows for one in reading._read("s", source, {}, [])] == [2]


def test_a_source_that_reaches_nothing_is_not_the_users_code() -> None:
    error = str(receipt(Source(batch(1), ConnectionError("503"))).error)
    assert error == "Unreachable: source 's': ConnectionError: 503"


class OperationalError(Exception):
    """As clients of databases have it."""


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OSError("no room"), True), (TimeoutError(), True), (OperationalError("connection failed"), True),
        (Fault("x"), True), (Unreachable("x"), True), (KeyError("x"), False), (TypeError("x"), False),
        (RuntimeError("x"), False), (AssertionError(), False), (Exception("x"), False), (UserCodeFailed("x"), False),
    ],
    ids=repr,
)  # fmt: skip
def test_what_may_come_back_is_told_from_errors_of_a_program(error: Exception, away: bool) -> None:
    assert is_away(error) is away


def forks(then: Any) -> tuple[int, int]:
    """(Exit code of a child that a function of the user's leaves behind, how often code behind the function was run)."""
    read, write = os.pipe()
    made = []

    def function() -> None:
        if (child := os.fork()) == 0:
            then()
        made.append(child)

    with suppress(UserCodeFailed), calling("f in map_batches", function):
        function()
    os.write(write, b"!")
    _, status = os.waitpid(made[0], 0)
    os.close(write)
    behind = len(os.read(read, 100))
    os.close(read)
    return os.waitstatus_to_exitcode(status), behind


def test_a_child_that_a_function_leaves_behind_ends_and_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """It would be a second task that sends the same fragment."""
    told = []
    for then in (lambda: None, lambda: 1 // 0):
        assert forks(then) == (1, 1)
        with suppress(UserCodeFailed), calling("another function"):
            told.append(0)  # The first call may have been over before the child was.
        line = capfd.readouterr().err
        assert line.startswith("user code: os.fork(): a child process comes back (test_user_functions.py:"), line
        assert line.endswith("and is ended; call os._exit in it, f in map_batches\n") and line.count("user code") == 1


def test_the_process_that_has_forked_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def function() -> None:
        if (child := os.fork()) > 0:
            children.append(child)

    children: list[int] = []
    with pytest.raises(UserCodeFailed, match=r"os\.fork\(\): a child process comes back"):
        with calling("f", function):
            function()
        os.waitpid(children[0], 0)
        with calling("f", function):
            pass
    with calling("f", function):
        pass  # It is told once.


def test_a_child_that_asks_for_its_end_has_it() -> None:
    assert forks(lambda: sys.exit(0)) == (0, 1)
    with calling("f"):
        pass


def test_malformed_records_of_a_split_that_is_cut_are_counted_once() -> None:
    source: Any = Source(batch(1, 2, 3), Malformed(1, ["x"]), batch(4, 5), Malformed(1, ["y"]))
    for edges in ([0, 3, 5, None], [0, 1, 4, None], [0, 5, 64, None], [0, 2, 3, 4, 5, 512, None]):
        keys, bad = [], []
        for low, high in pairwise(edges):
            for one in reading.read("s", source, {cuts.CUT: [low, high, [3]], "split": {}}, None):
                if isinstance(one, Malformed):
                    bad += one.records
                elif isinstance(one, pa.RecordBatch):
                    keys += one["k"].to_pylist()
        assert (keys, bad) == ([1, 2, 3, 5], ["x", "y"]), edges
