"""How fast a move may go, and when it is given up: counted in epochs and by the driver's clock."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.plans import Plan, PlanStep
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from tests.unit.protocol.table_top import A, B, C, Top


def changes(top: Top) -> list[tuple[int, str]]:
    """(virtual node, what happened to it) since the last look."""
    made = [(x.vnode, x.kind) for note in top.done if isinstance(note, c.Note) for x in note.changes]
    top.done.clear()
    return made


@pytest.mark.parametrize(("gap", "second"), [(0, 3), (1, 3), (2, 4), (4, 6)])
def test_after_a_cut_no_other_virtual_node_begins_for_some_epochs(gap: int, second: int) -> None:
    top = Top([(A,), (A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,), (B,)), (PlanStep((), (0,)), PlanStep((), (1,))), gap))
    changes(top)
    seen = {}
    for epoch in range(1, second + 3):
        assert top.driver.moves.pending(), "in the gap, too: without data a tick has to make its epochs"
        top.epoch(epoch)
        seen[epoch] = changes(top)
    assert seen[1] == [(0, "joined")]
    assert (0, "switched") in seen[2]
    assert [epoch for epoch, made in seen.items() if (1, "joined") in made] == [second]
    assert (0, "cleaned") in seen[3], "the gap holds up no move that has begun"
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]
    top.epoch(second + 3)
    assert not changes(top) and not top.driver.moves.pending()


def test_a_move_to_which_nothing_comes_is_given_up_and_begun_again_after_a_while() -> None:
    top = Top([(A,)], (A, B), c.CoordinatorSettings(warm_ms=1000, retry_ms=5000, retry_max_ms=8000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,),)))
    changes(top)
    top.epoch(1)
    assert changes(top) == [(0, "joined")]
    top.wait(1000)
    top.epoch(2)
    assert changes(top) == []
    epoch = 2
    for wait in (5000, 8000, 8000):
        top.wait(1)
        epoch += 1
        top.epoch(epoch)
        assert [x.text for x in top.done if isinstance(x, c.Note) and x.kind == "given-up"] == [
            f"1 copies on 1.0 are abandoned, and begin again in {wait // 1000} s: no data from 0.0 for 1 s"
        ]
        assert changes(top) == [(0, "aborted")]
        assert top.driver.table.groups[0].members == (A,)
        assert list(top.driver.moves.given_up()) == [(B, 0)]
        top.wait(wait - 1)
        assert not top.driver.moves.pending()
        top.wait(1)
        assert top.driver.moves.pending(), "without data a tick has to make an epoch"
        epoch += 1
        top.epoch(epoch)
        assert changes(top) == [(0, "joined")]
        top.wait(1000)
    top.deaf = set()
    top.tell(Plan(2, ((A,),)))
    top.epoch(epoch + 1)
    epoch += 1
    top.tell(Plan(3, ((B,),)))
    made = []
    for _ in range(6):
        epoch += 1
        top.epoch(epoch)
        made += [kind for _, kind in changes(top)]
    assert made[-3:] == ["in-sync", "switched", "cleaned"] and not top.driver.moves.given_up()


def test_a_move_that_comes_along_has_the_time_that_it_needs() -> None:
    top = Top([(A,)], (A, B), c.CoordinatorSettings(warm_ms=1000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,),)))
    for epoch in range(1, 20):
        top.epoch(epoch)
        assert top.driver.table.groups[0].learners == (B,)
        top.wait(900)
        top.tell(m.Learned(B, A, epoch))
    top.wait(1001)
    top.epoch(20)
    assert top.driver.table.groups[0].learners == ()


def test_the_time_of_a_move_begins_anew_with_every_move() -> None:
    top = Top([(A,)], (A, B), c.CoordinatorSettings(warm_ms=1000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    for number, (wished, wait) in enumerate([(B, 900), (A, 900), (B, 900), (B, 101)], 1):
        top.tell(Plan(number, ((wished,),)))
        top.epoch(number)
        top.wait(wait)
    assert top.driver.table.groups[0].learners == (B,)
    top.epoch(5)
    assert top.driver.table.groups[0].learners == ()


def test_who_is_too_late_for_the_first_table_is_taken_in_when_nobody_plans() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A,), c.CoordinatorSettings(start_ms=15_000))
    top.wait(15_000)
    assert [g.members for g in top.driver.table.groups] == [(A,), (A,)]
    top.epoch(0)
    top.members[B] = i.Instance(B, i.InstanceRecord())
    top.tell(c.Connected(B))
    assert top.driver.moves.pending(), "without data a tick has to make an epoch"
    for epoch in (1, 2):
        top.epoch(epoch)
    assert [g.in_sync for g in top.driver.table.groups] == groups, "and leads again what it should"
    assert top.driver.table.groups[0].learners == () and not top.driver.moves.pending()


def test_a_copy_that_was_lost_is_made_again_by_the_next_driver_too() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A, B))
    top.epoch(0)
    top.crash(B)
    top.epoch(1)
    assert [g.members for g in top.driver.table.groups] == [(A,), (A,)]
    top.members[B] = i.Instance(B, i.InstanceRecord())
    top.new_driver()
    for epoch in (2, 3):
        top.epoch(epoch)
    assert [g.in_sync for g in top.driver.table.groups] == groups


def test_groups_that_somebody_has_placed_stay_as_they_are_while_nobody_says_more() -> None:
    top = Top([(A, B), (A, B)], (A, B, C))
    top.epoch(0)
    top.tell(Plan(1, ((C,), (B, A))))
    for epoch in range(1, 5):
        top.epoch(epoch)
    placed = [(C,), (B, A)]
    assert [g.in_sync for g in top.driver.table.groups] == placed
    top.new_driver()
    assert not top.driver.moves.pending()
    for epoch in range(5, 8):
        top.epoch(epoch)
    assert [g.in_sync for g in top.driver.table.groups] == placed


def test_at_the_boundary_of_a_window_the_target_waits_without_a_snapshot_and_holds_up_nobody() -> None:
    top = Top([(A, C), (A, C)], (A, B, C), c.CoordinatorSettings(warm_ms=1000))
    top.epoch(0)
    steps = (PlanStep((), (0,)), PlanStep((), (1,)))
    top.tell(Plan(1, ((B, A), (B, A)), steps, warm=False, at_window=(0,)))
    changes(top)
    top.epoch(1)
    assert changes(top) == [(0, "joined")]
    assert top.driver.table.at_window == ((0, B),) and not top.driver.moves.holds_epochs()
    made: list[tuple[int, str]] = []
    for epoch in (2, 3, 4, 5):
        top.epoch(epoch)
        made += changes(top)
    assert made == [(1, kind) for kind in ("joined", "in-sync", "switched", "cleaned")]
    assert not top.driver.moves.pending(), "no epoch without data: it would end no window"
    for epoch in range(6, 12):
        top.wait(900)
        top.tell(m.Learned(B, A, epoch))  # chunks without rows come all the time
        top.epoch(epoch)
    assert changes(top) == [] and top.driver.table.groups[0].members == (A, C, B)
    top.end_windows()
    assert top.driver.moves.pending()
    top.epoch(12)
    assert changes(top) == [(0, "in-sync"), (0, "switched")]
    assert top.driver.table.at_window == (), "to make it again would be a repair"
    top.epoch(13)
    assert top.driver.table.groups[0].in_sync == (B, A)


def test_who_dies_before_the_boundary_begins_again_and_the_next_driver_knows_of_it() -> None:
    top = Top([(A, C)], (A, B, C))
    top.epoch(0)
    top.tell(Plan(1, ((B, A),), at_window=(0,)))
    top.epoch(1)
    former = top.waiting.pop()
    files = top.crash(B)
    top.give(A, i.PeerLost(B))
    top.waiting.clear()
    top.epoch(2)
    assert top.driver.table.groups[0].members == (A, C)
    top.back(B, files)
    top.epoch(3)
    assert top.driver.table.groups[0].learners == (B,) and top.waiting
    top.give(*former)
    top.epoch(4)
    assert top.driver.table.groups[0].learners == (B,), "what the session before was told counts for nothing"
    top.new_driver()
    top.epoch(5)
    assert top.driver.table.at_window == ((0, B),) and top.driver.table.groups[0].in_sync == (A, C)
    top.epoch(6)
    assert top.waiting, "begun once more, or gone on with"
    top.end_windows()
    top.epoch(7)
    top.epoch(8)
    assert top.driver.table.groups[0].leader == B


def test_a_group_that_loses_a_copy_waits_for_no_window() -> None:
    top = Top([(A, C)], (A, B, C))
    top.epoch(0)
    top.tell(Plan(1, ((B, A),), at_window=(0,)))
    top.epoch(1)
    assert top.driver.table.at_window == ((0, B),)
    top.crash(C)
    for epoch in (2, 3, 4, 5):
        top.epoch(epoch)
    assert top.driver.table.at_window == () and top.driver.table.groups[0].in_sync[:1] == (B,)
    assert top.waiting, "and the windows have not ended"


def test_a_copy_at_a_window_is_made_at_once_when_another_plan_wants_it() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,),), at_window=(0,)))
    top.epoch(1)
    top.epoch(2)
    assert top.driver.table.groups[0].in_sync == (A,)
    top.tell(Plan(2, ((B,),)))
    for epoch in (3, 4, 5, 6):
        top.epoch(epoch)
    assert top.driver.table.groups[0].in_sync == (B,)
