"""What all tests have in common: bounds of time that a slow machine does not reach, and an end of all tests."""

from __future__ import annotations

import time

import pytest

from tests.patience import OVER, PATIENCE, UNTIL


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test may take `PATIENCE` times what it names."""
    for item in items:
        named = item.get_closest_marker("timeout")
        seconds = float(named.args[0] if named else config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(PATIENCE * seconds), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """No test begins when the time is over; `scripts/test` says how many those were."""
    if time.time() > UNTIL:
        pytest.skip(OVER)
