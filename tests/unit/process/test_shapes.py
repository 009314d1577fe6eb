"""Processes as they travel: those that come with Ferry are made anew from what they are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.descriptors import OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.process.aggregator import Functions
from ferry.process.interval import IntervalJoin
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from ferry.process.sessions import SessionAggregate, SessionJoin
from ferry.process.shapes import process_of, shape_of
from ferry.process.window_join import WindowJoin
from ferry.process.windowed import KeyAggregate, WindowAggregate
from tests.unit.process.test_aggregator import Joined

ROWS = pa.schema([("k", pa.int64()), ("t", pa.string()), ("ts", pa.int64())])
KEY = pa.schema([("k", pa.int64())])
TEXT = Functions({"n": ferry.count(), "last": ferry.max("t")})
ONE: list[Any] = [
    SessionAggregate(10, TEXT), SessionAggregate(10, Joined("t")), RowWindows(3, TEXT, {"at": "ts"}, 2, ["ts"], "row"),
    RunningAggregate(TEXT, {"at": "ts"}, ["ts"]), WindowAggregate(20, 10, Joined("t")), KeyAggregate(TEXT, "end"),
]  # fmt: skip
TWO: list[Any] = [
    SessionJoin(10, {"a": "t"}, {"b": "t"}, "left"), WindowJoin(20, 10, {"a": "t"}, {"b": "t"}, "full"),
    IntervalJoin({"a": "t"}, {"b": "t"}, -5, 5, [["a", "<", "b"]]), IntervalJoin({"a": "t"}, {"b": "t"}),
]  # fmt: skip


@pytest.mark.parametrize("process", [*ONE, *TWO], ids=lambda p: type(p).__name__)
def test_a_process_is_made_anew(process: Any) -> None:
    shape = shape_of("p", process, KEY, [ROWS] * (1 if process in ONE else 2), None)
    descriptor = OperatorDescriptor("p", 0, "process", (("k", "int"),), Window(1, 1), process=shape)
    made = process_of(OperatorDescriptor.from_wire(descriptor.to_wire()))
    assert made == process and made is not process
    assert made.tables == process.tables and made.output == process.output


@dataclass
class Holder(ferry.Process):
    held: Any
    output = ROWS

    def process(self, work: ferry.Work) -> None: ...


def test_a_field_that_no_instance_could_make_is_refused() -> None:
    @dataclass
    class Hidden:
        x: int = 1

    for held, message in (
        (Hidden(), "cannot be found by instances"),
        ({1, 2}, "neither that nor a dataclass"),
        (Hidden, "neither that nor a dataclass"),
        ({"made_of": "os:system", "arguments": {}}, "os:system is no dataclass"),
        ([(1, 2)], "would come back from JSON"),
    ):
        with pytest.raises(SpecRefused, match=message):
            shape_of("p", Holder(held), KEY, [ROWS], None)
    shape = shape_of("p", Holder([1]), KEY, [ROWS], None)
    foreign = replace(shape, arguments='{"held": {"made_of": "no.such:Class", "arguments": {}}}')
    with pytest.raises(SpecRefused, match=r"there is no no\.such:Class here"):
        process_of(OperatorDescriptor("p", 0, "process", (("k", "int"),), Window(1, 1), process=foreign))
