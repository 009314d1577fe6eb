"""A program with the `until` of a window may come too late."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ferry.api.pipeline import Input, Operator
from ferry.contract.descriptors import NEVER, Aggregate, OperatorDescriptor, Span, Window
from ferry.contract.notes import EpochNotes
from ferry.contract.watermarks import FlowClock
from ferry.driver.event_time import crossed

NOTES = EpochNotes(maxima={3: {0: {"a": FlowClock(70), "b": FlowClock(110)}}})


def operator(span: Span | None) -> Operator:
    descriptor = OperatorDescriptor("n", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
    return Operator(descriptor, (Input("s", (), pa.schema([]), "ts", 0, span=span),))


@pytest.mark.parametrize(
    ("new", "old", "late"),
    [
        (Span(0, 110, 110), None, True),
        (Span(0, 120, 120), None, False),
        (Span(0, 130, 110), None, True),  # Sliding windows: the records behind `until` belong to windows before it.
        (Span(0, 100, 100), Span(0, 100, 100), False),  # It was there before, and has done its work.
        (Span(0, 100, 100), Span(0, 90, 90), False),
        (Span(0, 100, 100), Span(0, 140, 140), True),
        (None, None, False),
        (NEVER, None, False),
        (Span(0, 100, 100), NEVER, True),  # It comes back after it was retired.
    ],
)
def test_a_time_that_has_passed_is_too_late(new: Span | None, old: Span | None, late: bool) -> None:
    why = crossed([operator(new)], [3], {}, {3: operator(old)}, NOTES)
    assert bool(why) == late
    if late and new is not None:
        assert f"operator 'n': until={new.until}, and records of event times up to 110 are in its windows" in why


def test_a_new_operator_has_no_records_yet() -> None:
    assert crossed([operator(Span(0, 100, 100))], [4], {}, {3: operator(None)}, NOTES) == ""


def test_an_altered_operator_has_the_records_of_the_operator_before() -> None:
    assert crossed([operator(Span(0, 100, 100))], [4], {4: 3}, {3: operator(None)}, NOTES)
    assert not crossed([operator(Span(0, 100, 100))], [4], {4: 3}, {3: operator(Span(0, 100, 100))}, NOTES)
