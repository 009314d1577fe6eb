"""The numbers of SMQ are the reference's."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.errors import RowsGone, SpecRefused
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator
from ferry_workloads.smq import SmqGenerator, SmqSplits
from tests.unit.workloads.options import ORDER, assert_same, quick


@quick
@given(
    st.fixed_dictionaries({name: ORDER[name] for name in ("seed", "rate", "events")}),
    st.lists(st.integers(0, 3000), max_size=8),
)
def test_numbers_are_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("smq", **options)
    generator = SmqGenerator(**options)
    assert_same(generator, tables, ["smq"], cuts)
    assert disorder == generator.disorder_bound_ms() == 0


def test_the_reference_never_disorders_them(reference: Any) -> None:
    tables, disorder = reference("smq", events=2000, group=50, delay_prob=0.5)
    assert disorder == 0
    assert_same(SmqGenerator(events=2000), tables, ["smq"], [7])


def test_splits_cover_the_numbers_exactly_once() -> None:
    source = SmqSplits(SmqGenerator(events=1_000_000, rate=1e6))
    splits = source.plan(0, 600_000, 3) + source.plan(600_000, source.latest(600_000, 10**9), 2)
    batches = [batch for split in splits for batch in source.read(split)]
    assert pa.Table.from_batches(batches)["seq"].to_pylist() == list(range(1_000_000))


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("seed", 2**64, "from 0 to"),
        ("rate", 0.0, "events per second"),
        ("rate", 2e6, "below 2,000,000"),
        ("events", -1, "at least 0"),
        ("events", 2**60, "overflow"),
    ],
)
def test_bad_arguments_are_refused(argument: str, value: object, allowed: str) -> None:
    with pytest.raises(SpecRefused, match=f"SmqGenerator: {argument}=.*{allowed}"):
        SmqGenerator(**{argument: value})


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(SpecRefused, match="SMQ has no stream 'numbers'; it must be one of smq"):
        SmqSplits(SmqGenerator(), "numbers")
    with pytest.raises(SpecRefused, match=r"unknown columns \['key'\].*seq, ts"):
        SmqGenerator().read("smq", 0, 10, ["key"])
    with pytest.raises(RowsGone, match="events=10"):
        SmqGenerator(events=10).read("smq", 10, 11)


def test_a_job_has_lateness_only_where_the_generator_has() -> None:
    assert arguments.generator(KeysGenerator, {"late_ms": 5, "delay_ms": 9}).delay_ms == 5
    assert arguments.generator(SmqGenerator, {"rate": 5.0, "delay_ms": 9}).rate == 5.0
    for name in ("late_ms", "group", "keys"):
        with pytest.raises(SpecRefused, match=f"args.{name}: unknown argument"):
            arguments.generator(SmqGenerator, {name: 5})
