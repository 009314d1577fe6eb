"""What is said of the last events when something stops."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId, Step
from ferry.protocol import coordinator as core
from ferry.protocol import instance
from ferry.protocol.story import LENGTH, LINE_MAX, Story, short
from tests.unit.protocol.table_top import A, Top


def test_the_last_events_and_effects_are_told_in_order_what_went_to_many_once() -> None:
    story, ask = Story(), m.Ask(4)
    story.add_event(1, core.EpochBegun(7))
    for i in range(3):
        story.add_effect(2, core.Send(InstanceId(f"{i}.0"), ask))
    story.add_event(3, core.Tick(3))
    story.add_event(4, core.IngestFailed(Step(7, 0), 1))
    lines = [line.strip() for line in str(story).splitlines()]
    assert lines == ["1 EpochBegun(7)", "2 to 0.0 and 2 more: Ask(g4)", "4 IngestFailed((7, 0), run=1)"]


def test_a_story_is_bounded() -> None:
    story = Story()
    for epoch in range(10_000):
        story.add_event(epoch, core.EpochBegun(epoch))
    assert len(str(story).splitlines()) == LENGTH
    assert len(short("x" * 100_000)) == LINE_MAX


def test_an_error_that_leaves_a_machine_carries_the_last_events_once() -> None:
    one = instance.Instance(InstanceId("0.0"), instance.InstanceRecord())
    for generation in range(1, 100):
        one.step(m.Ask(generation))
    with pytest.raises(Bug, match=r"0\.0 cannot take EpochBegun") as told:
        one.step(core.EpochBegun(7))  # type: ignore[arg-type]
    (note,) = told.value.__notes__
    lines = note.splitlines()[1:]
    assert len(lines) == LENGTH and lines[-1].endswith("EpochBegun(7)") and lines[-2].endswith("Ask(g99)")
    one.story.attach(told.value)
    assert told.value.__notes__ == [note]
    other = OSError("no room")
    other.add_note("while a delta was written")
    one.story.attach(other)
    assert other.__notes__[1:] == [note], "what others note hides no story"


def test_a_broken_assertion_carries_them_too() -> None:
    top = Top([(A,)], (A,))
    top.ingest(0)
    top.driver.commits.committed = None
    with pytest.raises(AssertionError) as told:
        top.tell(core.ReadFailed(Step(0, 0)))
    assert "ReadFailed" in told.value.__notes__[0]
