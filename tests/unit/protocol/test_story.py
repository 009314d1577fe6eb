"""What is said of the last events when something stops."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.protocol import coordinator as core
from ferry.protocol.story import LENGTH, LINE_MAX, Story, short


def test_the_last_events_and_effects_are_told_in_order_what_went_to_many_once() -> None:
    story, ask = Story(), m.Ask(4)
    story.add(1, core.EpochBegun(7))
    for i in range(3):
        story.add(2, core.Send(InstanceId(f"{i}.0"), ask))
    story.add(3, core.Tick(3))
    story.add(4, core.IngestFailed(Step(7, 0), 1))
    lines = [line.strip() for line in str(story).splitlines()]
    assert lines == ["1 EpochBegun(7)", "2 to 0.0 and 2 more: Ask(g4)", "4 IngestFailed((7, 0), run=1)"]


def test_a_story_is_bounded() -> None:
    story = Story()
    for epoch in range(10_000):
        story.add(epoch, core.EpochBegun(epoch))
    assert len(str(story).splitlines()) == LENGTH
    assert len(short("x" * 100_000)) == LINE_MAX
