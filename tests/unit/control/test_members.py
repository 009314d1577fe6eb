"""Which workers leave a job that gets smaller, and which numbers new workers get."""

from __future__ import annotations

import random

import pytest

from ferry.contract.names import InstanceId
from ferry.contract.status import LoadStatus
from ferry_operator.control.members import gaps_of, grown, shrunk
from ferry_operator.job.size import Size
from tests.unit.statuses import status_of

LED = [(["0.0", "1.0"], []), (["1.0", "2.0"], []), (["2.0", "0.0"], []), (["1.0", "0.0"], [])]


def test_a_growth_fills_the_lowest_free_numbers() -> None:
    assert grown((0, 2), 2) == (0, 2) and grown((0, 2), 3) == (0, 1, 2) and grown((0, 2), 5) == (0, 1, 2, 3, 4)
    assert grown((), 2) == (0, 1) and grown((1, 3, 4), 2) == (1, 3)
    assert gaps_of((0, 2)) == (1,) and gaps_of((1, 4)) == (0, 2, 3) and gaps_of((0, 1)) == gaps_of(()) == ()


@pytest.mark.parametrize(
    ("sizes", "first", "pinned", "wanted", "stay"),
    [
        pytest.param([9, 9, 1, 9], (), [], 2, (0, 1), id="the fewest bytes"),
        pytest.param([1, 9, 9, 9], (), [], 2, (1, 2), id="also the lowest number"),
        pytest.param([9, 1, 9, 1], (), [], 2, (0, 2), id="also one between"),
        pytest.param([2, 1, 2, 1], (), [], 2, (0, 1), id="the highest of several"),
        pytest.param([9, 1, 5, 1], (), [], 1, (0,), id="several"),
        pytest.param([], (), [], 2, (0, 1), id="bytes that are not known: the fewest virtual nodes"),
        pytest.param([1, 9, 9, 9], (1,), [], 2, (0, 2), id="one that leaves anyway"),
        pytest.param([1, 9, 9, 9], (), ["0.0"], 2, (0, 1), id="not one that is pinned"),
        pytest.param([9, 9, 9, 9], (0,), ["0.0"], 2, (1, 2), id="unless it leaves anyway"),
        pytest.param([9, 9, 9, 9], (0, 1, 2), [], 2, (0, 1), id="all leave anyway"),
    ],
)
def test_who_stays(sizes: list[int], first: tuple[int, ...], pinned: list[str], wanted: int, stay: tuple[int]) -> None:
    status = status_of(LED, ["0.0", "1.0", "2.0"])
    status.load = LoadStatus([(1.0, float(size)) for size in sizes])
    assert shrunk((0, 1, 2), wanted, status, first, map(InstanceId, pinned)) == stay


@pytest.mark.parametrize("seed", range(50))
def test_sizes_and_gaps_agree(seed: int) -> None:
    dice = random.Random(seed)
    members = tuple(sorted(dice.sample(range(12), dice.randint(1, 6))))
    gaps, size = gaps_of(members), Size(len(members), 2)
    assert tuple(size.members(gaps)) == members
    assert [k for k in range(20) if size.has(k, 1, gaps)] == list(members) and not size.has(members[0], 2, gaps)
    more = grown(members, len(members) + 3)
    assert {*members} < {*more} and len(more) == len(members) + 3
    added = [k for k in more if k not in members]
    assert all(k in more for k in range(max(added)))
