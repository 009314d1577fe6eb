"""The streams of UniMiCo are the reference's."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.errors import RowsGone, SpecRefused
from ferry_workloads.unimico import UnimicoGenerator, UnimicoSplits
from tests.unit.workloads.options import ORDER, assert_same, quick


@quick
@given(
    st.fixed_dictionaries(
        {
            "seed": ORDER["seed"],
            "events": st.integers(50, 3000),  # the reference cannot make an empty stream
            "rate": st.sampled_from([0.001, 0.3, 7.0, 10.0, 333.0, 700.0, 1000.0]),
            "locations": st.sampled_from([1, 20, 120, 9999]),
            "same_streams": st.booleans(),
        }
    ),
    st.lists(st.integers(0, 3000), max_size=4),
)
def test_both_streams_are_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("unimico", **options)
    generator = UnimicoGenerator(**options)
    assert_same(generator, tables, ["s", "t"], cuts)
    assert disorder == generator.disorder_bound_ms() == 0


@pytest.mark.parametrize("same_streams", [False, True])
def test_an_input_of_few_arrivals_is_a_prefix(same_streams: bool) -> None:
    endless = UnimicoGenerator(same_streams=same_streams)
    for events in range(9):
        few = UnimicoGenerator(same_streams=same_streams, events=events)
        whole = events // 2 * 2 if same_streams else events
        for stream in few.schemas:
            assert few.read(stream, 0, events).equals(endless.read(stream, 0, whole))
            assert few.read(stream, whole, events).num_rows == 0


@pytest.mark.parametrize("options", [{}, {"same_streams": True}, {"seed": 3, "rate": 50.0}])
def test_long_streams_are_the_references(reference: Any, options: dict[str, Any]) -> None:
    tables, _ = reference("unimico", events=200_001, **options)
    cuts = [1, 65_536, 65_537, 150_000, 200_000]
    assert_same(UnimicoGenerator(events=200_001, **options), tables, ["s", "t"], cuts)


def test_the_reference_never_disorders_them(reference: Any) -> None:
    tables, disorder = reference("unimico", events=2000, group=50, delay_prob=0.5)
    assert disorder == 0
    assert_same(UnimicoGenerator(events=2000), tables, ["s", "t"], [7])


def test_every_arrival_is_of_one_stream_and_later_than_those_before() -> None:
    made = [UnimicoGenerator(rate=400.0).read(stream, 0, 10_000, ["seq", "ts"]) for stream in ("s", "t")]
    seq, ts = (np.concatenate([batch[name].to_numpy() for batch in made]) for name in ("seq", "ts"))
    order = np.argsort(seq)
    assert np.array_equal(seq[order], np.arange(10_000))
    assert (np.diff(ts[order]) > 0).all()
    assert abs(made[0].num_rows - 5000) < 300


def test_the_same_streams_differ_by_their_arrival_numbers_alone() -> None:
    generator = UnimicoGenerator(same_streams=True)
    s, t = (generator.read(stream, 1001, 2001) for stream in ("s", "t"))
    assert (s["seq"][0].as_py(), t["seq"][0].as_py()) == (1002, 1001)
    assert s.drop_columns(["seq"]).slice(0, 499).equals(t.drop_columns(["seq"]).slice(1, 499))


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("seed", -1, "from 0 to"),
        ("rate", 0, "from 0.000001 to 1000"),
        ("rate", 1000.5, "from 0.000001 to 1000"),
        ("rate", "10", "a number"),
        ("events", -1, "at least 0"),
        ("events", 2**50, "overflow"),
        ("locations", 0, "from 1 to 9999"),
        ("locations", 10_000, "from 1 to 9999"),
        ("same_streams", 1, "True or False"),
    ],
)
def test_bad_arguments_are_refused(argument: str, value: object, allowed: str) -> None:
    with pytest.raises(SpecRefused, match=f"UnimicoGenerator: {argument}=.*{allowed}"):
        UnimicoGenerator(**{argument: value})


def test_what_is_not_there_is_refused() -> None:
    assert UnimicoSplits(UnimicoGenerator(), "t").schema().names == ["seq", "ts", "l", "m", "x"]
    with pytest.raises(SpecRefused, match="UniMiCo has no stream 'S'; it must be one of s, t"):
        UnimicoSplits(UnimicoGenerator(), "S")
    with pytest.raises(RowsGone, match="events=10"):
        UnimicoGenerator(events=10).read("s", 5, 11)
    with pytest.raises(TypeError, match="group"):
        UnimicoGenerator(group=5)
