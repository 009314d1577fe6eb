"""What a learner applies comes by its snapshot or by a delta, never by both: rows that are appended would count twice."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, Term
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.instance.io import BeginSnapshot, Effect, InstanceRecord, Save
from ferry.protocol.instance.learning import Learning, Teaching
from ferry.protocol.instance.state import InstanceState
from ferry.protocol.io import Send
from ferry.protocol.rules import Rules
from ferry.protocol.view import TableView

A, B = InstanceId("0.0"), InstanceId("1.0")


def commit_id(epoch: int) -> CommitId:
    return CommitId(Step(epoch, 0), Attempt(1, epoch))


def delta(epoch: int, vnodes: tuple[int, ...]) -> m.Delta:
    return m.Delta(Step(epoch, 0), Attempt(1, epoch), Version(1, 1), A, (), vnodes, 0, 0)


class Learner:
    """A learner from A of virtual nodes 1 and 2, or others, and what it did."""

    def __init__(self, vnodes: tuple[int, ...] = (1, 2), session_vnodes: int = 32) -> None:
        self.state = InstanceState(B, InstanceRecord(), Rules())
        self.learning = Learning(self.state, 1000, session_vnodes)
        self.learning.keep(dict.fromkeys(vnodes, A), Version(1, 1))
        self.learning.begin(A, vnodes)

    def committed(self, epoch: int) -> None:
        self.state.saved = self.state.saved.changed(committed=commit_id(epoch))

    def applied(self, epoch: int, *vnodes: int) -> None:
        self.learning.applied(Step(epoch, 0), [delta(epoch, vnodes)] if vnodes else [])
        self.committed(epoch)
        self.learning.report()

    def chunk(
        self, base: int, committed: int, number: int = 0, last: bool = True, session: int = 1, leader: InstanceId = A
    ) -> None:
        self.committed(committed)
        self.learning.on_chunk(m.Chunk(leader, session, number, commit_id(base), last, 0, 0))

    def done(self) -> list[Effect]:
        """What it did since the last call, besides its commit record."""
        return [e for e in self.state.take_effects() if not isinstance(e, Save)]

    def said(self) -> list[str]:
        """The names of that; of sent messages, theirs."""
        return [type(e.message).__name__ if isinstance(e, Send) else type(e).__name__ for e in self.done()]

    def asked(self) -> list[tuple[int, ...]]:
        """The virtual nodes that it has asked for since then."""
        return [e.message.vnodes for e in self.done() if isinstance(e, Send) and isinstance(e.message, m.Fetch)]

    def told(self) -> list[int]:
        """At the next tick: how many chunks have come, as the driver hears it."""
        self.state.now = 100
        self.learning.tick()
        return [e.message.chunks for e in self.done() if isinstance(e, Send) and isinstance(e.message, m.Learned)]


def test_what_was_applied_before_a_snapshot_that_has_it_is_dropped_first() -> None:
    learner = Learner()
    learner.applied(5, 1, 2)
    learner.said()
    learner.chunk(base=5, committed=5)
    assert learner.said() == ["Drop", "LoadChunk", "Warm"]
    learner.applied(6, 1, 2)
    assert learner.said() == ["Warm"]


def test_a_delta_of_only_one_of_the_virtual_nodes_counts_too() -> None:
    learner = Learner()
    learner.applied(5, 2, 7)
    learner.said()
    learner.chunk(base=5, committed=5)
    assert learner.said()[:2] == ["Drop", "LoadChunk"]


def test_a_snapshot_older_than_what_was_applied_begins_again() -> None:
    learner = Learner()
    learner.applied(5, 1, 2)
    learner.applied(6, 1, 2)
    learner.said()
    learner.chunk(base=5, committed=6)
    assert learner.said() == ["Drop", "Fetch"]
    learner.chunk(base=6, committed=6, session=2)
    assert learner.said() == ["LoadChunk", "Warm"]


def test_a_snapshot_older_than_what_was_applied_before_it_was_asked_for_begins_again_at_once() -> None:
    learner = Learner()
    learner.said()
    learner.chunk(base=5, committed=6, last=False)
    assert learner.said() == ["Drop", "Fetch"], (
        "the delta of 6 came before: at the end of the snapshot it would be missed"
    )


def test_a_leader_that_is_ahead_is_asked_again_after_the_commit() -> None:
    learner = Learner()
    learner.said()
    learner.chunk(base=6, committed=5, last=False)
    learner.chunk(base=6, committed=5, number=1)
    assert learner.said() == []
    learner.applied(6, 1, 2)
    assert learner.said() == ["Drop", "Fetch"]


def test_the_delta_of_the_committed_step_may_come_after_its_commit() -> None:
    learner = Learner()
    learner.said()
    learner.chunk(base=5, committed=5, last=False)
    learner.applied(6)
    learner.chunk(base=5, committed=6, number=1)
    assert learner.said() == ["LoadChunk", "LoadChunk"], "neither warm nor again: it is on its way"
    late = delta(6, (1, 2))
    assert learner.learning.wants(late)
    learner.applied(6, 1, 2)
    assert learner.said() == ["Warm"]
    assert not learner.learning.wants(late), "twice is once too often"
    learner.applied(7, 1, 2)
    assert learner.said() == ["Warm"]


def test_a_delta_that_never_came_makes_the_snapshot_begin_again() -> None:
    learner = Learner()
    learner.chunk(base=5, committed=5)
    learner.applied(6)
    learner.said()
    learner.applied(7, 1, 2)
    assert learner.said() == ["Drop", "Fetch"]


def test_a_late_delta_that_the_snapshot_has_is_not_applied() -> None:
    learner = Learner()
    learner.applied(6)
    learner.chunk(base=6, committed=6, last=False)
    assert not learner.learning.wants(delta(6, (1, 2)))


def test_nothing_is_dropped_when_nothing_was_applied() -> None:
    learner = Learner()
    learner.applied(5)
    learner.said()
    learner.chunk(base=5, committed=5, last=False)
    learner.applied(6, 1, 2)
    learner.chunk(base=5, committed=6, number=1)
    assert learner.said() == ["LoadChunk", "LoadChunk", "Warm"]


def test_a_late_delta_is_applied_as_a_whole_or_not_at_all() -> None:
    learner, other = Learner(), InstanceId("2.0")
    learner.chunk(base=5, committed=5)
    learner.applied(6)
    learner.learning.keep({1: A, 2: other}, Version(1, 2))
    learner.learning.begin(other, (2,))
    learner.chunk(base=6, committed=6, session=2, leader=other)
    assert not learner.learning.wants(delta(6, (1, 2))), "the snapshot of 2 from its new leader has it"
    assert learner.learning.wants(delta(6, (1,)))


def test_many_virtual_nodes_come_in_pieces_and_what_has_come_stays_when_the_leader_is_lost() -> None:
    wanted = tuple(range(7))
    learner = Learner(wanted, session_vnodes=2)
    assert learner.asked() == [(0, 1), (2, 3)], "so many at a time"
    learner.chunk(base=5, committed=5)
    assert learner.asked() == [(4, 5)]
    learner.learning.peer_lost(A)
    assert sorted(learner.asked()) == [(2, 3), (4, 5)], "what is whole is not asked for again"
    for session in (4, 5, 6):
        learner.chunk(base=5, committed=5, session=session)
    assert learner.asked() == [(6,)]
    assert learner.learning.warm == dict.fromkeys(wanted, True)


def test_the_driver_hears_of_a_snapshot_only_when_there_is_more_of_it_than_ever() -> None:
    learner = Learner()
    assert learner.told() == []
    learner.chunk(base=5, committed=5, last=False)
    learner.chunk(base=5, committed=5, number=1, last=False)
    assert learner.told() == [2] and learner.told() == []
    learner.chunk(base=5, committed=5, number=9)  # a gap: it begins again
    for number, expected in ((0, []), (1, []), (2, [3])):
        learner.chunk(base=5, committed=5, number=number, last=False, session=2)
        assert learner.told() == expected


def test_a_large_snapshot_that_is_over_does_not_hide_that_a_small_one_comes_along() -> None:
    learner = Learner(session_vnodes=1)

    def told(session: int, number: int, last: bool) -> list[int]:
        learner.chunk(base=5, committed=5, number=number, last=last, session=session)
        return learner.told()

    assert [told(1, number, number == 8) for number in range(9)][-1] == [9]
    assert told(2, 0, False) == [10]
    learner.learning.keep({2: A}, Version(1, 2))  # virtual node 1 is in sync
    assert told(2, 1, False) == [2], "else its move would be given up"


def at_window(*vnodes: int) -> TableView:
    table = Table(Version(1, 1), (Group(Term(1, 1), (A,), (B,)),) * 6, at_window=tuple((v, B) for v in vnodes))
    return TableView(table)


def test_what_waits_for_windows_is_asked_for_by_itself_and_holds_up_no_snapshot() -> None:
    learner = Learner(())
    learner.state.view = at_window(1, 2, 3)
    learner.learning.keep(dict.fromkeys(range(6), A), Version(1, 1))
    learner.learning.begin(A, tuple(range(6)))
    assert sorted(learner.asked()) == [(0, 4, 5), (1, 2, 3)]
    learner = Learner((), session_vnodes=1)
    learner.state.view = at_window(1, 2, 3)
    learner.learning.keep(dict.fromkeys(range(6), A), Version(1, 1))
    learner.learning.begin(A, tuple(range(6)))
    assert sorted(learner.asked()) == [(0,), (1,), (2,), (3,), (4,)], "two snapshots at a time, beside these"
    learner.chunk(base=5, committed=5)
    assert learner.asked() == [(5,)]


def test_who_waits_for_windows_and_misses_a_change_begins_again_at_once() -> None:
    learner = Learner(())
    learner.state.view = at_window(1)
    learner.learning.keep({1: A}, Version(1, 1))
    learner.learning.begin(A, (1,))
    learner.said()
    learner.chunk(base=5, committed=5, last=False)
    learner.applied(6, 1)
    learner.applied(7)
    assert learner.said() == ["LoadChunk"], "it may come late"
    learner.applied(8, 1)
    assert learner.said() == ["Drop", "Fetch"], "else it would wait in vain for the end of the window"


def test_who_waits_for_windows_begins_again_when_it_need_not_wait_any_more() -> None:
    learner = Learner(())
    learner.state.view = at_window(1)
    learner.learning.keep({1: A}, Version(1, 1))
    learner.learning.begin(A, (1,))
    assert learner.learning.keep({1: A}, Version(1, 2)) == []
    learner.state.view = at_window()
    assert learner.learning.keep({1: A}, Version(1, 3)) == [1]


def test_a_leader_sends_nothing_only_to_whom_the_table_says() -> None:
    def begun(view: TableView | None) -> list[bool]:
        state = InstanceState(A, InstanceRecord(), Rules())
        state.view = view
        Teaching(state).begin(m.Fetch(B, Version(1, 1), 1, (1, 2)))
        return [effect.at_window for effect in state.take_effects() if isinstance(effect, BeginSnapshot)]

    assert begun(at_window(1, 2)) == [True]
    assert begun(at_window(1)) == [False], "a snapshot is as good"
    assert begun(None) == [False]


def test_what_waits_for_windows_is_heard_of_soon_after_it_has_begun_again() -> None:
    learner = Learner((), session_vnodes=4)
    learner.state.view = at_window(1, 2)
    learner.learning.keep({1: A, 2: A}, Version(1, 1))
    learner.learning.begin(A, (1, 2))
    for number in range(50):
        learner.chunk(base=5, committed=5, number=number, last=False)
        assert learner.told()
    learner.chunk(base=5, committed=5, number=99, last=False)  # a gap: it begins again
    learner.chunk(base=5, committed=5, number=0, last=False, session=2)
    assert learner.told(), "else its move would be given up while it waits"


def test_what_has_waited_for_windows_and_is_whole_stays_so_when_there_is_nothing_to_wait_for_any_more() -> None:
    learner = Learner((), session_vnodes=4)
    learner.state.view = at_window(1, 2)
    learner.learning.keep({1: A, 2: A}, Version(1, 1))
    learner.learning.begin(A, (1, 2))
    learner.chunk(base=5, committed=5)
    learner.chunk(base=5, committed=5, number=1)
    learner.state.view = at_window(2)
    assert learner.learning.keep({1: A, 2: A}, Version(1, 2)) == [], "the driver may count on it by now"
    learner = Learner((), session_vnodes=1)
    learner.state.view = at_window(1, 2)
    learner.learning.keep({1: A, 2: A}, Version(1, 1))
    learner.learning.begin(A, (1, 2))
    learner.state.view = at_window(2)
    assert learner.learning.keep({1: A, 2: A}, Version(1, 2)) == [1], "a snapshot is sent of what has waited"
