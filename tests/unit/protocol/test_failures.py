"""An instance that cannot go on is a lost one: the job goes on with the other copies, and stops only without any."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Step
from ferry.protocol import coordinator as c
from tests.unit.protocol.table_top import A, B, Top


def fail(top: Top) -> None:
    """A says that it cannot go on, ends, and comes back to its files."""
    top.tell(m.Failed(A, "Exhausted: the disk is full"))
    top.back(A, top.crash(A))


def test_a_failed_instance_is_a_lost_one() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1, helper=B)
    top.stop = ()
    fail(top)
    assert "Halt" not in top.kinds()
    assert [g.in_step for g in top.driver.table.groups] == [(B,), (B,)]
    assert top.last(c.Emit).rows.label.step == Step(1, 0), "the epoch ends without it"
    note = next(x for x in top.done if isinstance(x, c.Note) and x.kind == "failed")
    assert note.text == "0.0: Exhausted: the disk is full; it is left out for 1 s"


def test_it_is_left_out_for_a_while_the_longer_the_oftener_it_fails() -> None:
    top = Top([(B,)], (A, B), c.Settings(bar_ms=1000, bar_max_ms=3000))
    for bar in (1000, 2000, 3000, 3000):
        failed = top.driver.now
        fail(top)
        top.tell(c.Tick(failed + bar - 1))
        assert A not in top.driver.alive
        top.tell(c.Tick(failed + bar))
        assert A in top.driver.alive
    top.tell(c.Tick(top.driver.now + 6001))
    failed = top.driver.now
    fail(top)
    top.tell(c.Tick(failed + 1000))
    assert A in top.driver.alive, "what was long ago is forgiven"


def test_the_only_copy_may_fail_for_as_long_as_one_may_be_gone() -> None:
    top = Top([(A,), (B,)], (A, B), c.Settings(return_ms=60_000))
    top.epoch(0)
    for _ in range(3):
        top.tell(c.Tick(top.driver.now + 19_000))
        fail(top)
        assert A in top.driver.alive, "nobody else has what it has: it is let in at once"
    top.epoch(1)  # it could go on: that ends the row
    top.tell(c.Tick(top.driver.now + 19_000))
    fail(top)
    assert "Halt" not in top.kinds()
    top.tell(c.Tick(top.driver.now + 60_000))
    top.tell(m.Failed(A, "Exhausted: the disk is full"))
    halt = top.last(c.Halt)
    assert halt.kind == "failed"
    assert (
        halt.reason
        == "virtual nodes [0] (of 1) are held only by 0.0 (Exhausted: the disk is full), which failed for 60 s"
    )


def test_who_failed_and_does_not_end_is_asked_again() -> None:
    top = Top([(B,)], (A, B))
    top.tell(m.Failed(A, "it is in step for what it does not hold"))
    assert A not in top.driver.alive
    top.tell(c.Tick(2_001))
    assert A in top.driver.alive
