"""What the user's own code raises in an instance, or gives and may not, is told in one line: what, where, key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.errors import OVERFLOW, DataRefused, SpecRefused, UserCodeFailed
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from ferry.process.sessions import SessionAggregate
from ferry.process.stateful_processor import hosted
from ferry.process.windowed import KeyAggregate, WindowAggregate
from tests.unit.process import spark_processors as sp
from tests.unit.process.broken import Product

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.int64())])
OPERATIONS = pa.schema([("k", pa.int64()), ("op", pa.string()), ("v", pa.int64()), ("ts", pa.int64())])
ROWS = [{"k": 1, "v": 2, "ts": 0}, {"k": 1, "v": 3, "ts": 1}, {"k": 2, "v": 3, "ts": 1}]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("update raises", 'user code: ZeroDivisionError: integer division or modulo by zero (broken.py:LINE in update: "1 // 0"), update of Product'),
        ("merge raises", 'user code: ZeroDivisionError: integer division or modulo by zero (broken.py:LINE in merge: "1 // 0"), merge of Product'),
        ("result raises", 'user code: ZeroDivisionError: integer division or modulo by zero (broken.py:LINE in result: "1 // 0"), result of Product'),
        ("result exits", 'user code: SystemExit: 3 (broken.py:LINE in result: "sys.exit(3)"), result of Product'),
        ("update column", "user code: SpecRefused: update: columns are other; they have to be product (broken.py:LINE), update of Product"),
        ("merge rows", "user code: SpecRefused: merge: 0 rows were given for LINE"),
        ("result type", "user code: SpecRefused: result: column 'product' cannot be double: "),
        ("result none", "user code: TypeError: 'NoneType' object is not iterable (broken.py:LINE), result of Product"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [lambda a: SessionAggregate(10, a), lambda a: RunningAggregate(a, {"k": "k"})])
def test_an_aggregator_of_the_users(broken: str, said: str, make: Any) -> None:
    harness = ProcessHarness(make(Product(broken)), SCHEMA, key="k")
    with pytest.raises(UserCodeFailed) as failed:
        harness.epoch(ROWS)
        harness.epoch([{**row, "ts": row["ts"] + 5} for row in ROWS])
        harness.end()
    begin, _, end = said.partition("LINE")
    assert str(failed.value).startswith(begin) and end in str(failed.value), str(failed.value)


def test_what_is_too_great_in_a_function_of_ferrys_is_not_the_users_code() -> None:
    functions = Functions({"s": ferry.sum("v")})
    harness = ProcessHarness(SessionAggregate(10, functions), SCHEMA, key="k")
    with pytest.raises(SpecRefused, match=OVERFLOW):
        harness.epoch([{"k": 1, "v": 2**62, "ts": t} for t in range(3)])
        harness.end()


@pytest.mark.parametrize(
    "make",
    [
        lambda sums: SessionAggregate(10, sums),
        lambda sums: RunningAggregate(sums, {"k": "k"}),
        lambda sums: RowWindows(3, sums, {"k": "k"}),
        lambda sums: KeyAggregate(sums),
        lambda sums: WindowAggregate(10, 10, sums),
        lambda sums: WindowAggregate(10, 1, sums),
    ],
    ids=["sessions", "running", "rows", "keys", "windows", "panes"],
)
def test_what_is_too_great_is_told_with_its_key(make: Any) -> None:
    harness = ProcessHarness(make(Functions({"s": ferry.sum("v")})), SCHEMA, key="k")
    with pytest.raises(DataRefused) as refused:
        for t in range(3):
            harness.epoch([{"k": 7, "v": 1, "ts": t}, {"k": 1000 + t, "v": 1, "ts": t}, {"k": 8, "v": 2**62, "ts": t}])
        harness.end()
    text = "too large: a sum is beyond 64-bit integers: s=sum('v'), key 8; make the column a double"
    assert str(refused.value).startswith(text), str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("raises", "ZeroDivisionError: integer division or modulo by zero (spark_processors.py:"),
        ("gives a tuple", "SpecRefused: (1, 2) is neither a Row nor a DataFrame of pandas (spark_processors.py:"),
        ("gives a text", "SpecRefused: a Row has the fields k; they have to be k, what, a, b (spark_processors.py:"),
        ("keeps a text", "SpecRefused: state 'value': "),
    ],
)  # fmt: skip
def test_a_processor_of_sparks_says_its_method_and_key(wrong: str, said: str) -> None:
    harness = ProcessHarness(hosted("it", sp.Wrong(wrong), sp.OUTPUT, "None", False), OPERATIONS, "k", time=None)
    with pytest.raises(UserCodeFailed) as failed:
        harness.epoch([{"k": 7, "op": "", "v": 1, "ts": 0}])
    assert str(failed.value).startswith(f"user code: {said}"), str(failed.value)
    if wrong != "keeps a text":  # known once all keys are written
        assert str(failed.value).endswith(", handleInputRows, key (7,)")
