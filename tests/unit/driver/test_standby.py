"""A driver that waits for its turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from ferry import environment
from ferry.contract import variables
from ferry.driver import standby


@pytest.fixture
def line() -> Iterator[tuple[TextIO, int]]:
    """What it reads, and where to write."""
    read, write = os.pipe()
    with open(read) as file:
        yield file, write


def test_it_stays_warm_until_it_is_its_turn(line: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "WARM_SECONDS", 0.01)
    monkeypatch.setenv(variables.STANDBY, "yes")
    assert environment.read().standby
    warmed = []

    def warm() -> None:
        warmed.append(1)
        if len(warmed) == 2:
            raise RuntimeError("a worker of Spark has died")
        if len(warmed) == 4:
            os.write(line[1], b"go\n")

    assert standby.await_turn(warm, line[0])
    assert len(warmed) == 4
    assert not environment.read().standby, "what this process becomes later is no standby"


def test_one_that_nobody_can_tell_any_more_ends(line: tuple[TextIO, int]) -> None:
    os.close(line[1])
    assert not standby.await_turn(lambda: None, line[0])


def test_one_that_is_not_ready_looks_again_soon(line: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "WARM_SECONDS", 1000.0)
    monkeypatch.setattr(standby, "AGAIN_SECONDS", 0.01)
    looks = []

    def warm() -> None:
        looks.append(1)
        if len(looks) == 3:
            os.write(line[1], b"go\n")
        raise RuntimeError("no task of Spark holds its place")

    assert standby.await_turn(warm, line[0])
