"""Rows that a join keeps: columns of every type that has a name, through state and wire; others are refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.spark.tasks import warmup
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.rows import RowState

COLUMNS = [
    pa.array([Decimal("1.25"), None], pa.decimal128(38, 2)),
    pa.array([Decimal("-7.5"), Decimal("0.1")], pa.decimal128(5, 1)),
    pa.array([1, None], pa.timestamp("us", "UTC")),
    pa.array([1, -1], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([1, 2], pa.timestamp("ms")),
    pa.array([1, None], pa.date32()),
    pa.array([True, None]),
    pa.array([0.5, None], pa.float32()),
    pa.array([b"x", None]),
    pa.array(["x", None]),
]


def joined(kind: pa.DataType) -> OperatorDescriptor:
    """A join of two streams, of which it keeps a column of this type each."""
    build = Build(lambda function, schema, where: schema)
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", kind)])
    left, right = (Stream(build, Input(n, (), schema, None, 0)).event_time("t").key_by("k") for n in ("left", "right"))
    left.window(ferry.tumbling("10ms")).join("both", right, {"a": "x"}, {"b": "x"})
    return OperatorDescriptor.from_wire(build.operators[0].descriptor.to_wire())


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_a_join_keeps_columns_of_every_type(tmp_path: Path, column: pa.Array) -> None:
    one, parts = joined(column.type), []
    warmup.load([(one, None)])
    for side in (0, 1):
        f = Fragmenter(one, side)
        f.add(pa.record_batch({"k": [1, 2], "t": [3, 4], "x": column}), ["k"], "t")
        parts += f.drain()
    state = RowState(one, 4, tmp_path)
    state.apply(state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0], 0, "leader")
    found = pa.Table.from_batches(state.fired(EpochTimes(9, 10), np.arange(4)))
    assert found.schema.types[2:] == [column.type] * 2
    expected = column.to_pylist()
    assert sorted(found["a"].to_pylist(), key=str) == sorted(expected, key=str)
    assert found["a"].to_pylist() == found["b"].to_pylist()


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.binary(4)], ids=str)
def test_what_a_join_cannot_keep_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(SpecRefused, match=r"join 'both': column 'x' is .*, which a join cannot keep; leave it out"):
        joined(kind)
