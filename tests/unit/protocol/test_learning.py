"""What a learner puts comes by its snapshot or by a delta, never by both: rows that are appended would count twice."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.protocol.instance_io import Effect
from ferry.protocol.learning import Learning
from ferry.protocol.rules import Rules
from ferry.protocol.sending import Send

A, B = InstanceId("0.0"), InstanceId("1.0")


def label(epoch: int) -> CommitId:
    return CommitId(Step(epoch, 0), Attempt(1, epoch))


def delta(epoch: int, vnodes: tuple[int, ...]) -> m.Delta:
    return m.Delta(Step(epoch, 0), Attempt(1, epoch), Version(1, 1), A, (), vnodes, 0, 0)


class Learner:
    """A learner of virtual nodes 1 and 2 from A, and what it did."""

    def __init__(self) -> None:
        self.done: list[Effect] = []
        self.learning = Learning(B, 1, Rules(), 1000, self.done.append)
        self.learning.keep({1: A, 2: A}, Version(1, 1))
        self.learning.begin(A, (1, 2))

    def put(self, epoch: int, *vnodes: int) -> None:
        self.learning.put(Step(epoch, 0), [delta(epoch, vnodes)] if vnodes else [])
        self.learning.report(label(epoch))

    def chunk(self, base: int, committed: int, number: int = 0, last: bool = True, session: int = 1) -> None:
        self.learning.on_chunk(m.Chunk(A, session, number, label(base), last, 0, 0), label(committed))

    def said(self) -> list[str]:
        """The names of what it did since the last call; of sent messages, theirs."""
        names = [type(e.message).__name__ if isinstance(e, Send) else type(e).__name__ for e in self.done]
        self.done.clear()
        return names


def test_what_was_put_before_a_snapshot_that_has_it_is_dropped_first() -> None:
    learner = Learner()
    learner.put(5, 1, 2)
    learner.said()
    learner.chunk(base=5, committed=5)
    assert learner.said() == ["Drop", "LoadChunk", "Warm"]
    learner.put(6, 1, 2)
    assert learner.said() == ["Warm"]


def test_a_delta_of_only_one_of_the_virtual_nodes_counts_too() -> None:
    learner = Learner()
    learner.put(5, 2, 7)
    learner.said()
    learner.chunk(base=5, committed=5)
    assert learner.said()[:2] == ["Drop", "LoadChunk"]


def test_a_snapshot_older_than_what_was_put_begins_again() -> None:
    learner = Learner()
    learner.put(5, 1, 2)
    learner.put(6, 1, 2)
    learner.said()
    learner.chunk(base=5, committed=6)
    assert learner.said() == ["Drop", "Fetch"]
    learner.chunk(base=6, committed=6, session=2)
    assert learner.said() == ["LoadChunk", "Warm"]


def test_a_snapshot_older_than_what_was_put_before_it_was_asked_for_begins_again_at_once() -> None:
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
    learner.put(6, 1, 2)
    assert learner.said() == ["Drop", "Fetch"]


def test_the_delta_of_the_committed_step_may_come_after_its_commit() -> None:
    learner = Learner()
    learner.said()
    learner.chunk(base=5, committed=5, last=False)
    learner.put(6)
    learner.chunk(base=5, committed=6, number=1)
    assert learner.said() == ["LoadChunk", "LoadChunk"], "neither warm nor again: it is on its way"
    late = delta(6, (1, 2))
    assert learner.learning.wants(late)
    learner.put(6, 1, 2)
    assert learner.said() == ["Warm"]
    assert not learner.learning.wants(late), "twice is once too often"
    learner.put(7, 1, 2)
    assert learner.said() == ["Warm"]


def test_a_delta_that_never_came_makes_the_snapshot_begin_again() -> None:
    learner = Learner()
    learner.chunk(base=5, committed=5)
    learner.put(6)
    learner.said()
    learner.put(7, 1, 2)
    assert learner.said() == ["Drop", "Fetch"]


def test_a_late_delta_that_the_snapshot_has_is_not_put() -> None:
    learner = Learner()
    learner.put(6)
    learner.chunk(base=6, committed=6, last=False)
    assert not learner.learning.wants(delta(6, (1, 2)))


def test_nothing_is_dropped_when_nothing_was_put() -> None:
    learner = Learner()
    learner.put(5)
    learner.said()
    learner.chunk(base=5, committed=5, last=False)
    learner.put(6, 1, 2)
    learner.chunk(base=5, committed=6, number=1)
    assert learner.said() == ["LoadChunk", "LoadChunk", "Warm"]


def test_a_late_delta_is_put_as_a_whole_or_not_at_all() -> None:
    learner, other = Learner(), InstanceId("2.0")
    learner.chunk(base=5, committed=5)
    learner.put(6)
    learner.learning.keep({1: A, 2: other}, Version(1, 2))
    learner.learning.begin(other, (2,))
    learner.learning.on_chunk(m.Chunk(other, 2, 0, label(6), True, 0, 0), label(6))
    assert not learner.learning.wants(delta(6, (1, 2))), "the snapshot of 2 from its new leader has it"
    assert learner.learning.wants(delta(6, (1,)))


def test_many_virtual_nodes_come_in_pieces_and_what_has_come_stays_when_the_leader_is_lost() -> None:
    done: list[Effect] = []
    learning = Learning(B, 1, Rules(), 1000, done.append, session_vnodes=2)
    wanted = tuple(range(7))
    learning.keep(dict.fromkeys(wanted, A), Version(1, 1))
    learning.begin(A, wanted)

    def asked() -> list[tuple[int, ...]]:
        pieces = [e.message.vnodes for e in done if isinstance(e, Send) and isinstance(e.message, m.Fetch)]
        done.clear()
        return pieces

    def whole(session: int) -> None:
        learning.on_chunk(m.Chunk(A, session, 0, label(5), True, 0, 0), label(5))

    assert asked() == [(0, 1), (2, 3)], "so many at a time"
    whole(1)
    assert asked() == [(4, 5)]
    learning.peer_lost(A)
    assert sorted(asked()) == [(2, 3), (4, 5)], "what is whole is not asked for again"
    for number in (4, 5, 6):
        whole(number)
    assert asked() == [(6,)]
    assert learning.warm == dict.fromkeys(wanted, True)


def test_the_driver_hears_of_a_snapshot_only_when_there_is_more_of_it_than_ever() -> None:
    learner = Learner()

    def told() -> list[int]:
        learner.learning.tick(100)
        sent = [e.message for e in learner.done if isinstance(e, Send)]
        learner.done.clear()
        return [x.chunks for x in sent if isinstance(x, m.Learned)]

    assert told() == []
    learner.chunk(base=5, committed=5, last=False)
    learner.chunk(base=5, committed=5, number=1, last=False)
    assert told() == [2] and told() == []
    learner.chunk(base=5, committed=5, number=9)  # a gap: it begins again
    for number, expected in ((0, []), (1, []), (2, [3])):
        learner.chunk(base=5, committed=5, number=number, last=False, session=2)
        assert told() == expected


def test_a_large_snapshot_that_is_over_does_not_hide_that_a_small_one_comes_along() -> None:
    done: list[Effect] = []
    learning = Learning(B, 1, Rules(), 1000, done.append, session_vnodes=1)
    learning.keep({1: A, 2: A}, Version(1, 1))
    learning.begin(A, (1, 2))

    def told(session: int, number: int, last: bool) -> list[int]:
        done.clear()
        learning.on_chunk(m.Chunk(A, session, number, label(5), last, 0, 0), label(5))
        learning.tick(100)
        sent = [e.message for e in done if isinstance(e, Send)]
        return [x.chunks for x in sent if isinstance(x, m.Learned)]

    assert [told(1, number, number == 8) for number in range(9)][-1] == [9]
    assert told(2, 0, False) == [10]
    learning.keep({2: A}, Version(1, 2))  # virtual node 1 is in sync
    assert told(2, 1, False) == [2], "else its move would be given up"
