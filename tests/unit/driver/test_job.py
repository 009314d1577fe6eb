"""A driver goes on only with offsets that belong to the state it has found."""

from __future__ import annotations

import pytest

from ferry.contract.errors import StateUnavailable
from ferry.driver.job import epoch_again


@pytest.mark.parametrize(("state", "spark", "again"), [(-1, -1, False), (7, 7, False), (7, 6, True), (0, -1, True)])
def test_the_last_epoch_may_lack_its_end(state: int, spark: int, again: bool) -> None:
    assert epoch_again(state, spark) is again


@pytest.mark.parametrize(("state", "spark"), [(7, 5), (7, -1), (7, 8), (-1, 3)])
def test_offsets_that_do_not_belong_to_the_state_end_the_job(state: int, spark: int) -> None:
    with pytest.raises(StateUnavailable, match="checkpoint"):
        epoch_again(state, spark)
