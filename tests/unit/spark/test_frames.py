"""What goes into Spark has types that Spark takes, and the same values as far as these have them."""

import datetime as dt

import pyarrow as pa
import pytest

from ferry.spark.frames import for_spark


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(("unit", "raw"), [("s", -5), ("ms", -5_000), ("us", -5_000_000), ("ns", -4_999_999_999)])
def test_timestamps_become_microseconds_rounded_down(unit: str, raw: int, zone: str | None) -> None:
    column = pa.array([raw, None], pa.int64()).cast(pa.timestamp(unit, zone))
    for rows in (pa.record_batch({"t": column, "n": [1, 2]}), pa.table({"t": column, "n": [1, 2]})):
        made = for_spark(rows)
        assert type(made) is type(rows) and made.schema.types == [pa.timestamp("us", zone and "UTC"), pa.int64()]
        assert made["t"].cast(pa.int64()).to_pylist() == [-5_000_000, None]


def test_what_spark_takes_is_left_alone() -> None:
    columns = {"d": pa.array([dt.date(2024, 2, 29)]), "m": pa.array([None], pa.decimal128(12, 2)), "t": ["x"]}
    rows = pa.record_batch({**columns, "at": pa.array([0], pa.timestamp("us", "UTC"))})
    assert for_spark(rows) is rows


def test_durations_are_rounded_down_to_microseconds() -> None:
    fine = pa.array([1_999, -1, -1_000, None, 0], pa.duration("ns"))
    made = for_spark(pa.record_batch({"d": fine})).column("d")
    assert made.cast(pa.int64()).to_pylist() == [1, -1, -1, None, 0]
