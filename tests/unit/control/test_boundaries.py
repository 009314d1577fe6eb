"""What moves without its state, and what does no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.plans import Boundary, Plan
from ferry_operator.control import boundaries
from ferry_operator.control import decide as d
from ferry_operator.control.observed import Observed, Submitted, Wanted
from ferry_operator.job.size import Size
from ferry_operator.placement.strategies import HandoverPolicy
from tests.unit.control.test_decide import ALIVE, BASIS, GROUPS, PLACEMENTS, REST, submitted, worker
from tests.unit.statuses import status_of

THREE: Any = [*ALIVE, "2.0"]
LOADS = [(1.0, 1e9)] * 6
COSTS = (1e-8, 0.01)
"""A copy of all virtual nodes takes a minute."""


def grows(windows_end_in: float | None = 5.0, policy: HandoverPolicy | None = None, **told: Any) -> Observed:
    """A scale to three workers, of six virtual nodes of 1 GB each."""
    seen = {"vnodes": LOADS, "costs": COSTS, "windows_end_in": windows_end_in} | told
    return replace(
        REST, wanted=Wanted(Size(3, 1), 1, policy or HandoverPolicy()), workers=(*REST.workers, worker(2)),
        status=status_of(GROUPS * 3, THREE, **seen), submitted=Submitted(Plan(1, PLACEMENTS * 3), 1, BASIS),
    )  # fmt: skip


def moved(observed: Observed) -> tuple[int, ...]:
    """Virtual nodes that get a leader who has nothing yet."""
    groups = observed.status.groups if observed.status is not None else []
    placements = submitted(observed).plan.placements
    return tuple(v for v, (in_sync, _) in enumerate(groups) if placements[v][0] not in in_sync)


def test_windows_end_where_they_are_when_that_is_sooner_than_a_copy() -> None:
    plan = submitted(grows()).plan
    assert plan.at_window == moved(grows()) != ()


@pytest.mark.parametrize("measured", [(None, None), (1e-12, 0.01)])
def test_a_copy_is_not_faster_than_its_bandwidth(measured: tuple[float | None, float | None]) -> None:
    slow, fast = (submitted(grows(costs=measured, bandwidth=rate)).plan for rate in (10_000_000, 10_000_000_000))
    assert slow.at_window and not fast.at_window


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param(grows(windows_end_in=1e3), id="windows are longer than a copy takes"),
        pytest.param(grows(windows_end_in=None), id="it is not known when they end"),
        pytest.param(grows(costs=(None, None)), id="nor how long a copy takes"),
        pytest.param(grows(unbounded="operator n has no window"), id="they never end"),
        pytest.param(grows(policy=HandoverPolicy(at_window="never")), id="the job does not want it"),
        pytest.param(grows(policy=HandoverPolicy(warm=False)), id="it wants epochs to be held back"),
        pytest.param(grows(members_gone=1), id="something has to be repaired"),
    ],
)
def test_else_state_moves(observed: Observed) -> None:
    assert moved(observed) and submitted(observed).plan.at_window == ()


def test_a_worker_that_is_to_be_emptied_does_not_wait() -> None:
    assert submitted(replace(grows(), drains=(1,))).plan.at_window == ()


def waits(seconds: float, **told: Any) -> Observed:
    """It was told, and so long ago a group changed last."""
    before = submitted(grows())
    found = grows().status
    assert found is not None
    open_ = tuple(Boundary(v, found.groups[v][0][0], "2.0", None) for v in before.plan.at_window)
    seen = {"desired": 2, "settled": False, "boundaries": open_, "quiet_seconds": seconds} | told
    return replace(grows(**seen), submitted=before.accepted())


def test_what_waits_for_much_longer_than_a_copy_takes_is_copied() -> None:
    patience = boundaries.PATIENCE * boundaries.copy_seconds(grows().status, moved(grows()))  # type: ignore[arg-type]
    assert patience > boundaries.PATIENCE_SECONDS_MIN
    assert d.decide(waits(patience - 1)) == []
    found = submitted(waits(patience + 1, windows_end_in=None))
    before = submitted(grows()).plan
    assert found.plan.placements == before.placements and found.plan.at_window == () and found.plan.number == 3
    again = replace(waits(patience + 1, desired=3), submitted=found.accepted())
    assert d.decide(again) == [], "it was told, and is not chosen once more"


def test_what_somebody_has_asked_for_waits_as_long_as_it_takes() -> None:
    (vnode, *_) = moved(grows())
    asked = replace(grows(windows_end_in=None), pins=((vnode, "2.0"),), at_window=(vnode,))  # type: ignore[arg-type]
    found = submitted(asked)
    assert found.plan.at_window == (vnode,)
    told = replace(
        asked, submitted=found.accepted(),
        status=status_of(
            GROUPS * 3, THREE, desired=2, settled=False, boundaries=(Boundary(vnode, "0.0", "2.0", None),),
            quiet_seconds=1e6, vnodes=LOADS, costs=COSTS,
        ),
    )  # fmt: skip
    assert d.decide(told) == []


def test_what_is_overdue_is_not_put_off_by_a_date_that_later_plans_have() -> None:
    late = waits(1e6)
    dated = replace(late, wanted=replace(late.wanted, handover=HandoverPolicy(at_time=4 * 10**12)))
    plan = submitted(dated).plan
    assert plan.at_window == () and (plan.at_epoch, plan.at_time) == (0, None)
