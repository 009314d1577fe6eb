"""What all tests have in common: bounds of time that a slow machine does not reach, and which of them run."""

from __future__ import annotations

import time

import pytest

from tests.patience import NOT_THEIR_TURN, OVER, PATIENCE, TURN, UNTIL


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test may take `PATIENCE` times what it names. Of the stories that take turns, every second one runs."""
    for item in items:
        named = item.get_closest_marker("timeout")
        seconds = float(named.args[0] if named else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * seconds), append=False)
    if TURN is not None:
        stories = [item for item in items if item.get_closest_marker("turns")]
        for item in stories[1 - int(TURN) :: 2]:
            item.add_marker(pytest.mark.skip(NOT_THEIR_TURN))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """No test begins when the time is over; `scripts/test` says how many those were."""
    if time.time() > UNTIL:
        pytest.skip(OVER)
