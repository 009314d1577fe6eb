"""What a driver is asked, and what is left out for one of an older version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from ferry.contract.plans import Plan
from ferry_operator.control import decide as d
from ferry_operator.control.driver_client import DriverClient, DriverRefuses, PlacementRefused, _reason
from tests.unit.control.test_decide import BASIS, PLACEMENTS


class Driver(DriverClient):
    """One that knows all fields of a plan but these."""

    def __init__(self, *unknown: str) -> None:
        super().__init__()
        self.unknown, self.asked = unknown, list[tuple[str, str, Any]]()

    def _ask(
        self, method: str, url: str, secret: str, document: dict[str, Any] | None = None, headers: Any = None
    ) -> httpx.Response:
        self.asked.append((method, url, document))
        new = sorted(name for name in self.unknown if document and name in document)
        return httpx.Response(422, text=f'{{"detail":"unknown: {", ".join(new)}"}}') if new else httpx.Response(200)


SUBMIT = d.SubmitDesired(Plan(3, PLACEMENTS, deadline=9000, at_window=(1,)), 1, BASIS)


@pytest.mark.parametrize("unknown", [("at_window",), ("deadline", "at_window")])
def test_an_older_driver_gets_all_that_it_knows(unknown: tuple[str, ...]) -> None:
    driver = Driver(*unknown)
    driver.submit("http://driver", "secret", SUBMIT, 0)
    (_, _, first), (_, _, second) = driver.asked
    assert first.keys() - second.keys() == set(unknown) and second["number"] == 3


def test_what_it_cannot_do_without_is_refused() -> None:
    with pytest.raises(PlacementRefused, match="unknown: steps"):
        Driver("steps").submit("http://driver", "secret", replace(SUBMIT, plan=replace(SUBMIT.plan, steps=((), ()))), 0)  # type: ignore[arg-type]


def test_what_copies_may_use_is_told_or_refused() -> None:
    driver = Driver()
    driver.limit_copies("http://driver", "secret", 70_000)
    assert driver.asked == [("PUT", "http://driver/bandwidth", {"bytes": 70_000})]
    with pytest.raises(DriverRefuses, match="to limit copies"):
        Driver("bytes").limit_copies("http://driver", "secret", 1)


def test_a_refusal_is_shown_without_its_json() -> None:
    """Users read it: what a driver answers to `ferry rollback`, for example."""
    for body, shown in (
        ('{"detail": "no program was in force before"}', "no program was in force before"),
        ("no", "no"),
    ):
        assert _reason(httpx.Response(409, text=body)) == shown
