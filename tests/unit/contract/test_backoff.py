"""Waiting before the next try."""

from __future__ import annotations

import pytest

from ferry.contract.backoff import back_off


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (4, 4.0), (5, 5.0), (1100, 5.0), (10**9, 5.0)]
)
def test_it_doubles_up_to_its_bound_and_never_fails_itself(failures: int, seconds: float) -> None:
    """1,100 doublings are beyond a float: the parent of an instance that failed for an hour and a half ended with that."""
    assert back_off(failures, 0.5, 5.0) == seconds
