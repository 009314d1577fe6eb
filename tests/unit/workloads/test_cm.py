"""The events of cluster monitoring are the reference's, and look like the public sample."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.errors import SpecRefused
from ferry_workloads.cm import CmGenerator, CmSplits
from tests.unit.workloads.options import ORDER, assert_same, quick


@quick
@given(
    st.fixed_dictionaries({**ORDER, "jobs": st.sampled_from([1, 2, 240, 10_000])}),
    st.lists(st.integers(0, 3000), max_size=3),
)
def test_events_of_tasks_are_the_references(reference: Any, options: dict[str, Any], cuts: list[int]) -> None:
    tables, disorder = reference("cm", **options)
    generator = CmGenerator(**options)
    assert_same(generator, tables, ["cm"], cuts)
    assert disorder <= generator.disorder_bound_ms()


@pytest.mark.parametrize("options", [{"seed": 1}, {"rate": 500.0, "group": 500, "delay_prob": 0.1}])
def test_a_long_stream_of_events_is_the_references(reference: Any, options: dict[str, Any]) -> None:
    tables, _ = reference("cm", events=200_000, **options)
    assert_same(CmGenerator(events=200_000, **options), tables, ["cm"], [1, 65_536, 65_537, 150_000])


def test_events_look_like_the_public_sample() -> None:
    made = CmGenerator().read("cm", 0, 100_000)
    types = Counter(made["event_type"].to_pylist())
    assert [v for v, _ in types.most_common()] in ([0, 1, 4, 5, 2, 3], [1, 0, 4, 5, 2, 3])
    jobs = Counter(made["job_id"].to_pylist())
    assert jobs.most_common(1)[0][0] == min(jobs) == 6_000_000_000 and max(jobs) < 6_000_000_240
    assert 0.15 < jobs[6_000_000_000] / 100_000 < 0.25
    for name, top in (("cpu", 0.4), ("ram", 0.3), ("disk", 0.01)):
        steps = made[name].to_numpy().astype(np.float64) * 65536
        assert np.array_equal(steps, np.floor(steps)) and steps.min() >= 0 and steps.max() < top * 65536


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("jobs", 0, "from 1"),
        ("jobs", 10**8 + 1, "to 100000000"),
        ("jobs", 2.5, "whole number"),
        ("rate", -1, "events per"),
    ],
)
def test_bad_arguments_are_refused(argument: str, value: object, allowed: str) -> None:
    with pytest.raises(SpecRefused, match=f"CmGenerator: {argument}=.*{allowed}"):
        CmGenerator(**{argument: value})


def test_there_is_one_stream_and_no_choice_of_keys() -> None:
    assert CmSplits(CmGenerator()).schema().names[:3] == ["seq", "ts", "job_id"]
    with pytest.raises(SpecRefused, match="CM has no stream 'jobs'; it must be one of cm"):
        CmSplits(CmGenerator(), "jobs")
    with pytest.raises(TypeError, match="keys"):
        CmGenerator(keys="uniform")
