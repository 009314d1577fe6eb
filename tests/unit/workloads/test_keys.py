"""The keys of RO, hash-count and key-count are the reference's."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.errors import SpecRefused
from ferry_workloads.keys import KeysGenerator, KeysSplits, PreloadedKeysSplits
from tests.unit.workloads.options import KEYS, ORDER, assert_same, quick


@quick
@given(st.fixed_dictionaries({**ORDER, **KEYS}), st.lists(st.integers(0, 3000), max_size=3))
def test_keys_are_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("keys", **options)
    generator = KeysGenerator(**options)
    assert_same(generator, tables, ["keys"], cuts)
    assert disorder <= generator.disorder_bound_ms()


@pytest.mark.parametrize(
    "options",
    [
        {"domain": 10**8},
        {"rate": 1e6, "group": 1000, "delay_prob": 0.1, "delay_ms": 20, "domain": 2**53},
        {"keys": "zipf", "zipf_s": 0.2, "domain": 10**6},
        {"keys": "zipf", "zipf_s": 2.0, "domain": 10**6},
        {"keys": "pareto", "domain": 10**8},
    ],
)
def test_a_long_stream_of_keys_is_the_references(reference: Any, options: dict[str, Any]) -> None:
    tables, _ = reference("keys", events=200_000, **options)
    assert_same(KeysGenerator(events=200_000, **options), tables, ["keys"], [1, 65_536, 65_537, 150_000])


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"keys": "normal"}, "nexmark, uniform, zipf, pareto"),
        ({"domain": 0}, "from 1"),
        ({"domain": 2**53 + 1}, "from 1 to"),
        ({"domain": 10**8 + 1, "keys": "zipf"}, "kept in memory"),
        ({"zipf_s": -0.1}, "from 0 to 100"),
        ({"pareto_alpha": 0.0}, "from 0.001"),
        ({"pareto_alpha": float("nan")}, "from 0.001"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], allowed: str) -> None:
    with pytest.raises(SpecRefused, match=f"KeysGenerator: .*{allowed}"):
        KeysGenerator(**options)


def test_there_is_one_stream() -> None:
    assert KeysSplits(KeysGenerator()).schema().names == ["seq", "ts", "key"]
    with pytest.raises(SpecRefused, match="keys has no stream 'key'; it must be one of keys"):
        KeysSplits(KeysGenerator(), "key")


@pytest.mark.parametrize("steps", [[700], [100, 299, 300, 301, 699], [300, 301]])
@pytest.mark.parametrize("columns", [None, ["key"]])
def test_the_whole_domain_comes_before_the_keys(steps: list[int], columns: list[str] | None) -> None:
    generator = KeysGenerator(events=400, domain=300, group=7)
    source, found, position = PreloadedKeysSplits(generator), [], 0
    for step in (*steps, 1000):
        stop = source.latest(position, step - position)
        assert stop == min(step, 700) and source.ended(stop) == (stop == 700)
        for split in source.plan(position, stop, 3):
            found += [row for batch in source.read(split, columns) for row in batch.to_pylist()]
        position = stop
    loaded = [{"seq": k - 300, "ts": 1_436_918_400_000, "key": k} for k in range(300)]
    every = [*loaded, *generator.read("keys", 0, 400).to_pylist()]
    assert found == ([{"key": row["key"]} for row in every] if columns else every)
    assert not PreloadedKeysSplits(KeysGenerator(domain=3)).ended(10**9)


def test_generators_say_whether_they_end() -> None:
    assert not KeysSplits(KeysGenerator()).finite and KeysSplits(KeysGenerator(events=5)).finite
