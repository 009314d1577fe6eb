"""Pins and the planner, together."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferry.contract.names import InstanceId
from ferry_operator.control import placing
from ferry_operator.control.placing import Placements

ZERO, ONE = InstanceId("0.0"), InstanceId("1.0")
MOVED = range(0, 32, 2)


def placed(groups: list[list[str]], pins: dict[int, InstanceId], replicas: int = 0) -> Placements:
    over = placing.slots([ZERO, ONE], {})
    return placing.place(groups, [(100.0, 1000.0)] * len(groups), over, replicas, pins.items())


def leaders(placements: Placements) -> list[str]:
    return [members[0] for members in placements]


def test_who_moves_by_hand_moves_nothing_else() -> None:
    groups = [[ZERO]] * 32 + [[ONE]] * 32
    there = leaders(placed(groups, dict.fromkeys(MOVED, ONE)))
    assert [v for v, leader in enumerate(there) if leader != groups[v][0]] == list(MOVED)


@pytest.mark.parametrize("replicas", [0, 1])
def test_what_is_moved_back_leaves_nothing_to_level(replicas: int) -> None:
    """Levelled as if nothing was pinned, as many again would have followed it."""
    groups = [[ONE if v in MOVED or v >= 32 else ZERO] for v in range(64)]
    if replicas:
        groups = [[*group, ZERO if group[0] == ONE else ONE] for group in groups]
    back = leaders(placed(groups, dict.fromkeys(MOVED, ZERO), replicas))
    assert [v for v, leader in enumerate(back) if leader != groups[v][0]] == list(MOVED)
    assert Counter(back) == {ZERO: 32, ONE: 32}


def test_what_is_uneven_beside_a_pin_is_levelled() -> None:
    groups = [[ONE]] * 64
    even = leaders(placed(groups, {0: ONE, 1: ONE}))
    assert even[:2] == [ONE, ONE] and abs(Counter(even)[ZERO] - 32) <= 2


def test_a_pin_holds_where_the_leader_is_gone() -> None:
    groups = [["2.0", ZERO], ["2.0", ZERO], [ONE, ZERO], [ONE, ZERO]]
    assert leaders(placed(groups, {0: ONE}, 1))[:2] == [ONE, ZERO]


def test_a_copy_that_is_there_stays_beside_a_pin() -> None:
    """And not the leader that was planned, which holds nothing yet."""
    fresh, kept, pin = InstanceId("3.0"), ZERO, InstanceId("2.0")
    assert placing.with_pins([(fresh, kept)], [(0, pin)], [[kept]]) == ((pin, kept),)
    assert placing.with_pins([(kept, fresh)], [(0, pin)], [[kept]]) == ((pin, kept),)


def test_a_pin_counts_where_nothing_is_placed_yet() -> None:
    names = [InstanceId(f"{k}.0") for k in range(4)]
    placements = placing.place([[]] * 64, [], placing.slots(names, {}), 0, dict.fromkeys(range(16), names[0]).items())
    assert set(Counter(leaders(placements)).values()) == {16}


@example(led=[(0, 1.0), (0, 2.0), (0, 2.0), *[(0, 0.0)] * 5], pinned={0: 0, 1: 0}, replicas=0)
@example(  # copies planned for other leaders than these: a copy moved to and fro
    led=[
        (0, 59),
        (0, 0),
        (0, 428),
        (1, 631),
        (0, 2),
        (0, 0),
        (0, 879),
        (0, 17),
        (1, 105),
        (1, 178),
        (1, 748),
        (1, 905),
        (2, 186),
    ],
    pinned={0: 1, 1: 0, 2: 0, 4: 1, 6: 1},
    replicas=1,
)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1000)), min_size=8, max_size=32),
    st.dictionaries(st.integers(0, 7), st.integers(0, 2)),
    st.integers(0, 1),
)
def test_what_was_carried_out_is_left_alone_in_the_end(
    led: list[tuple[int, float]], pinned: dict[int, int], replicas: int
) -> None:
    names = [ZERO, ONE, InstanceId("2.0")]
    over, pins = placing.slots(names, {}), [(v, names[i]) for v, i in pinned.items()]
    groups: Placements = tuple((names[i], *[names[i - 1]][:replicas]) for i, _ in led)
    for _ in range(16):
        before, groups = groups, placing.place(groups, [(rate, 10 * rate) for _, rate in led], over, replicas, pins)
        if before == groups:
            break
    assert before == groups and all(groups[v][0] == instance for v, instance in pins)
