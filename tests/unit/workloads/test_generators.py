"""The random-access generators give what the reference gives, value for value and type for type."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.errors import RowsGone, SpecRefused
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits
from ferry_workloads.ysb import YsbGenerator, YsbSplits
from tests.unit.workloads.options import KEYS, ORDER, assert_same, quick

NEXMARK: dict[str, st.SearchStrategy[Any]] = {
    "proportions": st.sampled_from(["1,3,46", "0,0,1", "1,0,4", "1,4,0", "0,3,5", "2,5,7", "1,0,0", "0,1,0"]),
    "in_flight": st.sampled_from([0, 1, 100]),
    "active_people": st.sampled_from([1, 10, 1000]),
    "lead": st.sampled_from([0, 10]),
    "hot_auction": st.sampled_from([1, 2, 5]),
    "hot_seller": st.sampled_from([1, 4]),
    "hot_bidder": st.sampled_from([1, 4]),
    "valid_refs": st.booleans(),
}


@quick
@given(st.fixed_dictionaries(ORDER), st.lists(st.integers(0, 3000), max_size=8))
def test_order_of_arrival_is_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("nexmark", **options)
    generator = NexmarkGenerator(**options)
    assert_same(generator, tables, ["bid"], cuts)
    assert disorder <= generator.disorder_bound_ms()


@quick
@given(st.fixed_dictionaries({**ORDER, **KEYS, **NEXMARK}), st.lists(st.integers(0, 3000), max_size=3))
def test_nexmark_is_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("nexmark", **options)
    generator = NexmarkGenerator(**options)
    assert_same(generator, tables, ["person", "auction", "bid"], cuts)
    assert disorder <= generator.disorder_bound_ms()


@quick
@given(
    st.fixed_dictionaries(
        {**ORDER, **KEYS, "campaigns": st.sampled_from([1, 3, 100]), "ads_per_campaign": st.sampled_from([1, 10])}
    ),
    st.lists(st.integers(0, 3000), max_size=3),
)
def test_ysb_is_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("ysb", **options)
    generator = YsbGenerator(**options)
    assert_same(generator, tables, ["ysb"], cuts)
    assert generator.ads().equals(tables["ysb_ads"])
    assert disorder <= generator.disorder_bound_ms()


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 1000.0},
        {"rate": 1e6, "group": 1000, "delay_prob": 0.1, "delay_ms": 20},
        {"rate": 500.0, "group": 500, "delay_prob": 0.1, "keys": "zipf", "domain": 100_000},
        {"rate": 20_000.0, "group": 953, "delay_prob": 0.01, "keys": "pareto"},
    ],
)
def test_a_long_stream_is_the_references(reference: Any, options: dict[str, Any]) -> None:
    tables, disorder = reference("nexmark", events=200_000, **options)
    generator = NexmarkGenerator(events=200_000, **options)
    assert_same(generator, tables, ["person", "auction", "bid"], [1, 65_536, 65_537, 150_000])
    assert disorder <= generator.disorder_bound_ms()


def test_every_chunk_boundary_is_right(reference: Any) -> None:
    options: dict[str, Any] = {"rate": 2000.0, "group": 13, "delay_prob": 0.3, "delay_ms": 9, "events": 400}
    tables, _ = reference("ysb", **options)
    assert_same(YsbGenerator(**options), tables, ["ysb"], list(range(400)))


def test_a_bounded_stream_without_a_cut_group_is_a_prefix_of_the_endless_one() -> None:
    options: dict[str, Any] = {"rate": 1e5, "group": 100, "delay_prob": 0.2, "delay_ms": 50}
    endless, bounded = NexmarkGenerator(**options), NexmarkGenerator(events=100_000, **options)
    assert endless.read("bid", 30_000, 60_000).equals(bounded.read("bid", 30_000, 60_000))
    assert endless.read("bid", 10**12, 10**12 + 50).num_rows > 0


@pytest.mark.parametrize(("group", "bound"), [(1, 0), (2, 0), (50, 47), (953, 0)])
def test_the_bound_of_disorder_is_tight(reference: Any, group: int, bound: int) -> None:
    generator = YsbGenerator(rate=1000.0, group=group)
    assert generator.disorder_bound_ms() == bound
    for option in (2, 7, 50, 500, 1906):
        _, disorder = reference("ysb", rate=1000.0, group=option, events=4 * option)
        assert YsbGenerator(rate=1000.0, group=option).disorder_bound_ms() == disorder


def test_delays_bound_the_disorder_whatever_the_shuffle() -> None:
    assert YsbGenerator(delay_prob=0.1, delay_ms=700, group=10_000).disorder_bound_ms() == 700
    assert YsbGenerator(delay_prob=1.0, delay_ms=700).disorder_bound_ms() == 0
    assert YsbGenerator(group=10_000, events=9_999).disorder_bound_ms() == 0


def test_columns_come_in_the_order_asked_for() -> None:
    generator = NexmarkGenerator(events=1000)
    assert generator.read("bid", 0, 1000, ["price", "ts"]).schema.names == ["price", "ts"]
    assert generator.read("bid", 0, 1000, ["price"])["price"].equals(generator.read("bid", 0, 1000)["price"])
    assert generator.read("bid", 0, 1000, []).num_rows == 920
    with pytest.raises(SpecRefused, match=r"unknown columns \['nope'\].*seq, ts, auction"):
        generator.read("bid", 0, 1000, ["nope"])


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("seed", -1, "whole number"),
        ("seed", True, "whole number"),
        ("rate", 0, "events per second"),
        ("rate", 2e6, "below 2,000,000"),
        ("rate", float("nan"), "events per second"),
        ("rate", "1000", "events per second"),
        ("group", 0, "at least 1"),
        ("group", 2.0, "whole number"),
        ("delay_prob", 1.5, "0.0 to 1.0"),
        ("delay_ms", -1, "at least 0"),
        ("keys", "normal", "nexmark, uniform, zipf, pareto"),
        ("domain", 0, "from 1"),
        ("events", -1, "at least 0"),
        ("events", 2**62, "overflow"),
        ("proportions", "1,3", "three whole numbers"),
        ("proportions", "0,0,0", "not all 0"),
        ("proportions", "1,-3,46", "three whole numbers"),
        ("lead", -1, "from 0"),
        ("hot_auction", 0, "from 1"),
        ("active_people", 0, "from 1"),
        ("valid_refs", 1, "True or False"),
    ],
)
def test_wrong_arguments_are_refused_by_name(argument: str, value: Any, allowed: str) -> None:
    with pytest.raises(SpecRefused, match=f"NexmarkGenerator: {argument}=.*{allowed}"):
        NexmarkGenerator(**{argument: value})


def test_unknown_streams_and_missing_arrivals_are_refused() -> None:
    with pytest.raises(SpecRefused, match="one of person, auction, bid"):
        NexmarkSplits(NexmarkGenerator(), "bids")
    with pytest.raises(SpecRefused, match=r"ads\(\)"):
        YsbGenerator().read("ysb_ads", 0, 10)
    with pytest.raises(RowsGone, match="events=10"):
        NexmarkGenerator(events=10).read("bid", 5, 11)
    with pytest.raises(RowsGone):
        NexmarkGenerator(group=5).read("bid", -1, 3)


@pytest.mark.parametrize("options", [{}, {"group": 100, "delay_prob": 0.1}])
def test_splits_cover_the_input_exactly_once(options: dict[str, Any]) -> None:
    generator = NexmarkGenerator(events=600_000, rate=1e5, **options)
    source = NexmarkSplits(generator, "auction")
    middle = source.latest(source.start(), 350_001)
    end = source.latest(middle, 10**9)
    assert (middle, end) == (350_001, 600_000)
    assert source.latest(end, 1000) == end
    assert source.ended(end) and not source.ended(middle)
    splits = source.plan(0, middle, 3) + source.plan(middle, end, 3)
    assert len(splits) == 6 and {s["stop"] - s["start"] for s in splits[:3]} == {116_667}
    batches = [b for s in splits for b in source.read(s, ["seq", "seller"])]
    assert pa.Table.from_batches(batches).equals(
        pa.Table.from_batches([generator.read("auction", 0, 600_000, ["seq", "seller"])])
    )


def test_a_source_without_end_goes_on() -> None:
    source = YsbSplits(YsbGenerator())
    assert source.latest(10**9, 500) == 10**9 + 500
    assert not source.ended(10**15)
    assert source.plan(5, 5, 4) == []
    assert len(source.plan(5, 7, 4)) == 2
    assert sum(b.num_rows for b in source.read({"start": 10**9, "stop": 10**9 + 500}, None)) == 500
