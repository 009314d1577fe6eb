"""What the coordinator's loop says when it stops."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.coordinator import loop
from ferry.protocol import coordinator as core
from ferry.protocol.story import Story


def fragment_of_a_loop(tmp_path: Any, step: Any) -> loop.Loop:
    one = loop.Loop.__new__(loop.Loop)
    one._inbox, one.orders, one._story = queue.SimpleQueue(), queue.SimpleQueue(), Story()
    one.ending = threading.Event()
    one.settings = SimpleNamespace(directory=str(tmp_path))  # type: ignore[assignment]
    one.machine = SimpleNamespace(step=step, start=list)  # type: ignore[assignment]
    return one


def test_a_broken_invariant_is_logged_with_what_came_before(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    def step(event: Any) -> list[core.Effect]:
        if isinstance(event, m.Ask):
            raise Bug("two leaders")
        return []

    one = fragment_of_a_loop(tmp_path, step)
    one.post(core.EpochBegun(5))
    one.post(m.Ask(2))
    one._run()
    assert one.orders.get_nowait() == core.Halt("bug", "Bug: two leaders")
    assert "EpochBegun(5)" in caplog.text and "Ask(g2)" in caplog.text


def test_it_is_known_for_how_long_the_loop_has_stood(tmp_path: Any) -> None:
    stood: list[float] = []

    def step(event: Any) -> list[core.Effect]:
        if isinstance(event, m.Ask):
            raise Bug("the end")
        if isinstance(event, core.EpochBegun):
            stood.append(one.stands_for())
        return []

    one = fragment_of_a_loop(tmp_path, step)
    one._round_at = time.monotonic() - 100
    for event in (core.EpochBegun(5), core.EpochBegun(6), m.Ask(2)):
        one.post(event)
    one._run()
    before, after = stood
    assert before >= 100 and after < 50, "an event that was handled is a round"


def test_a_halt_is_logged_with_what_came_before(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = fragment_of_a_loop(tmp_path, None)
    one._story.add(1, core.JournalReachable(False))
    one._perform([core.Halt("unavailable", "no copy")])
    assert one.orders.get_nowait() == core.Halt("unavailable", "no copy")
    assert "JournalReachable(up=False)" in caplog.text
