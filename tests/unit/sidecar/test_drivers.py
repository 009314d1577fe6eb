"""Messages for "the driver" reach the right life of it."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, driver_name
from ferry.sidecar.drivers import Drivers

OLD, NEW, ME = driver_name(1, "aa"), driver_name(2, "bb"), InstanceId("0.0")
STEP = Step(3, 0)


def both() -> Drivers:
    drivers = Drivers()
    for peer in (OLD, NEW, "1.0"):
        drivers.opened(peer)
    return drivers


def test_reports_go_to_the_driver_whose_attempt_it_is() -> None:
    assert both().for_message(m.Prepared(STEP, Attempt(1, 4), (0,), (0,), (0,))) == [OLD]
    assert both().for_message(m.FragmentsGone(STEP, Attempt(2, 1), ME)) == [NEW]


def test_an_answer_goes_to_who_asked_and_a_refusal_to_who_is_superseded() -> None:
    assert both().for_message(m.Answer(ME, 1, None, (), b"", (), ())) == [OLD]
    assert both().for_message(m.Refused(ME, 2)) == [OLD]


def test_all_else_goes_to_the_newest() -> None:
    drivers = both()
    committed = m.Committed(ME, CommitId(STEP, Attempt(1, 1)))
    assert drivers.for_message(committed) == [NEW]
    assert drivers.closed(NEW) and not drivers.closed("1.0")
    assert drivers.for_message(committed) == [OLD]
