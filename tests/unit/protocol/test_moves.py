"""How fast a move may go, and when it is given up: counted in epochs and by the driver's clock."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.protocol import coordinator as c
from ferry.protocol.groups import Pace
from tests.unit.protocol.table_top import A, B, Top


def changes(top: Top) -> list[tuple[int, str]]:
    """(virtual node, what happened to it) since the last look."""
    made = [(x.vnode, x.kind) for note in top.done if isinstance(note, c.Note) for x in note.changes]
    top.done.clear()
    return made


@pytest.mark.parametrize(("gap", "second"), [(0, 3), (1, 3), (2, 4), (4, 6)])
def test_after_a_cut_no_other_virtual_node_begins_for_some_epochs(gap: int, second: int) -> None:
    top = Top([(A,), (A,)], (A, B), c.Settings(pace=Pace(batch=1, gap=gap)))
    top.epoch(0)
    top.tell(c.Desired(1, ((B,), (B,))))
    changes(top)
    seen = {}
    for epoch in range(1, second + 3):
        assert top.driver.pending(), "in the gap, too: without data a tick has to make its epochs"
        top.epoch(epoch)
        seen[epoch] = changes(top)
    assert seen[1] == [(0, "joined")]
    assert (0, "cut") in seen[2]
    assert [epoch for epoch, made in seen.items() if (1, "joined") in made] == [second]
    assert (0, "cleaned") in seen[3], "the gap holds up no move that has begun"
    assert [g.in_step for g in top.driver.table.groups] == [(B,), (B,)]
    top.epoch(second + 3)
    assert not changes(top) and not top.driver.pending()


def test_a_move_that_is_not_warm_in_time_is_aborted_and_not_begun_again_until_there_is_another_wish() -> None:
    top = Top([(A,)], (A, B), c.Settings(warm_ms=1000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(c.Desired(1, ((B,),)))
    changes(top)
    top.epoch(1)
    assert changes(top) == [(0, "joined")]
    top.tell(c.Tick(1000))
    top.epoch(2)
    assert changes(top) == []
    top.tell(c.Tick(1001))
    top.epoch(3)
    assert changes(top) == [(0, "aborted")]
    assert top.driver.table.groups[0].members == (A,)
    top.deaf = set()
    top.epoch(4)
    assert changes(top) == [] and not top.driver.pending()
    top.tell(c.Desired(2, ((B,),)))
    for epoch in range(5, 8):
        top.epoch(epoch)
    assert changes(top) == [(0, kind) for kind in ("joined", "in-step", "cut", "cleaned")]


def test_the_time_of_a_move_begins_anew_with_every_move() -> None:
    top = Top([(A,)], (A, B), c.Settings(warm_ms=1000, silence_ms=10_000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    for number, (wished, now) in enumerate([(B, 0), (A, 900), (B, 1800), (B, 2700)], 1):
        top.tell(c.Tick(now))
        top.tell(c.Desired(number, ((wished,),)))
        top.epoch(number)
    assert top.driver.table.groups[0].learners == (B,)
    top.tell(c.Tick(2801))
    top.epoch(5)
    assert top.driver.table.groups[0].learners == ()
