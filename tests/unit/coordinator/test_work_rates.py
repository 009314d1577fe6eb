"""What is measured of the work: rates over a window, useful time without what epochs cost as such, and when it is not known."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry.coordinator.work_rates import FORGET_SECONDS, STANDS_SECONDS, EpochCost, WorkRates


class Driver:
    """Epochs of one task on `instances`, and their reports, by a clock of its own."""

    def __init__(self, instances: int = 1) -> None:
        self.now, self.lag = 100.0, 0
        self.rates = WorkRates(lambda: self.now)
        self.busy = {InstanceId(f"{k}.0"): 0.0 for k in range(instances)}

    def run(
        self, seconds: float, epoch: float, rate: float, fixed: float = 0.0, each: float = 0.0, grows: float = 0.0
    ) -> None:
        """Epochs of this length; each costs one task and each instance `fixed` seconds, and its records `each`, in all."""
        for number in range(round(seconds / epoch)):
            rows = round(rate * epoch)
            self.now += epoch
            self.lag += round(grows * epoch)
            for instance in self.busy:
                self.busy[instance] += fixed + each * rows / len(self.busy)
            self.rates.epoch(rows, 1, fixed + each * rows, self.lag)
            if number % max(1, round(1 / epoch)) == 0:
                self.report()

    def report(self, life: str = "a") -> None:
        for instance, busy in self.busy.items():
            self.rates.report(m.Report(instance, life, (), (), (), busy_ms=round(busy * 1000)))

    def found(self) -> WorkReport:
        found = self.rates.recent()
        assert found is not None
        return found


def test_records_and_busy_time_are_told_by_the_second() -> None:
    driver = Driver(2)
    assert driver.rates.recent() is None
    driver.run(30, 0.25, 1000, each=0.0005)
    found = driver.found()
    assert found.seconds == pytest.approx(WORK_SECONDS, abs=0.5)
    assert found.records_per_second == pytest.approx(1000) == found.arriving_per_second
    assert (found.tasks, found.instances) == (pytest.approx(0.5), pytest.approx(0.5, abs=0.06))
    assert found.backlog == 0 and found.epochs == 0


def test_what_waits_more_and_more_was_offered_too() -> None:
    driver = Driver()
    driver.run(20, 0.25, 1000, each=0.001, grows=400)
    assert driver.found().arriving_per_second == pytest.approx(1400)
    assert driver.found().backlog == 8000
    driver.run(20, 0.25, 1000, each=0.001, grows=-400)
    assert driver.found().arriving_per_second == pytest.approx(600)


def test_long_epochs_are_measured_for_longer() -> None:
    driver = Driver()
    driver.run(120, 6.0, 1000)
    assert driver.found().seconds >= 7 * 6.0
    assert driver.found().records_per_second == pytest.approx(1000)


def test_a_quiet_source_is_no_load() -> None:
    driver = Driver()
    driver.run(20, 0.25, 1000, each=0.0005)
    driver.now += 60
    assert driver.found().records_per_second < 200 and driver.found().tasks < 0.1


def test_what_epochs_cost_as_such_is_no_load() -> None:
    """Short epochs keep everybody busy: only one of another size tells what of it the records are."""
    driver = Driver(2)
    driver.run(30, 0.01, 2000, fixed=0.002, each=0.00001)
    assert driver.found().tasks == pytest.approx(0.22), "not known: all of it"
    driver.run(60, 0.25, 40_000, fixed=0.002, each=0.00001)
    assert driver.found().tasks == pytest.approx(0.4, rel=0.05), "what 40,000 records take"
    driver.run(60, 0.01, 2000, fixed=0.002, each=0.00001)
    assert driver.found().tasks == pytest.approx(0.02, abs=0.01)
    assert driver.found().instances == pytest.approx(0.02, abs=0.04)
    assert driver.found().epochs == pytest.approx(0.2 + 0.4, abs=0.05)


def test_a_change_of_groups_begins_again() -> None:
    driver = Driver()
    driver.run(20, 0.25, 1000)
    driver.rates.begin_again()
    assert driver.rates.recent() is None
    driver.run(2, 0.25, 1000)
    assert driver.found().seconds < WORK_SECONDS


def test_another_life_counts_anew_and_who_is_lost_takes_no_part() -> None:
    driver = Driver(2)
    driver.run(20, 0.25, 1000, each=0.0005)
    before = driver.found().instances
    driver.busy = dict.fromkeys(driver.busy, 0.0)
    driver.report("b")
    assert driver.found().instances <= before
    driver.rates.lost(InstanceId("1.0"))
    assert driver.rates.recent() is None


def test_busy_seconds_are_a_metric() -> None:
    driver, registry = Driver(), CollectorRegistry()
    registry.register(driver.rates)
    driver.run(10, 0.25, 1000, fixed=0.01, each=0.0005)
    for part in ("tasks", "instances"):
        assert registry.get_sample_value("ferry_busy_seconds_total", {"part": part}) == pytest.approx(5.4, abs=0.7)


def test_a_line_that_does_not_rise_is_not_known() -> None:
    cost = EpochCost()
    cost.add(0, 5, 1.0)
    cost.add(10, 10, 0.02)
    assert cost.fixed() == 0.0
    cost.add(10, 10_000, 0.01)
    assert cost.fixed() == 0.0, "all of it may be the records'"
    cost.add(10, 100_000, 0.03)
    assert cost.fixed() == pytest.approx(0.0015), "half of what the largest cost at most"


def test_what_epochs_of_a_size_cost_is_forgotten() -> None:
    cost = EpochCost()
    cost.add(1, 10, 0.1, now=0.0)
    cost.add(1, 10_000, 1.0, now=10.0)
    assert cost.fixed() > 0
    cost.add(1, 10_000, 1.0, now=FORGET_SECONDS)
    assert cost.fixed() == 0.0


def test_a_slow_start_hides_no_load() -> None:
    """Few records that took long, for all was cold, say nothing of the many that keep everybody busy now."""
    driver = Driver()
    driver.run(25, 1.0, 40, fixed=0.95)
    driver.run(60, 1.0, 40_000, fixed=0.9)
    assert driver.found().tasks == pytest.approx(0.9, abs=0.01) and driver.found().epochs == 0


def test_an_epoch_that_stands_still_is_no_quiet_source() -> None:
    driver = Driver()
    driver.run(30, 1.0, 1000, each=0.0007)
    driver.rates.begins()
    driver.now += STANDS_SECONDS
    assert driver.found().records_per_second == pytest.approx(1000) and driver.found().tasks == pytest.approx(0.7)
    driver.now += 1
    assert driver.rates.recent() is None
    driver.rates.epoch(1000, 1, 0.7, 0)
    assert driver.found().records_per_second > 0


def test_epochs_that_are_always_long_do_not_stand_still() -> None:
    driver = Driver()
    for _ in range(20):
        driver.rates.begins()
        driver.now += 30
        driver.rates.epoch(30_000, 1, 10.0, 0)
    driver.rates.begins()
    driver.now += 100
    assert driver.found().records_per_second == pytest.approx(1000)
    driver.now += 21
    assert driver.rates.recent() is None


def test_an_epoch_has_to_end_after_groups_have_changed() -> None:
    driver = Driver()
    driver.run(20, 1.0, 1000)
    driver.rates.begins()
    driver.rates.begin_again()
    driver.now += 1
    driver.rates.epoch(1000, 1, 0.7, 0)
    driver.now += 12
    driver.rates.begins()
    driver.now += 9
    assert driver.rates.recent() is None


def test_what_waits_is_what_waits_now() -> None:
    """A burst that was read is over: nothing waits, and nothing is offered any more."""
    driver = Driver()
    driver.run(20, 1.0, 1000, each=0.0005)
    driver.lag = 40_000
    driver.run(1, 1.0, 1000, each=0.0005)
    driver.now += 20
    found = driver.rates.recent(0)
    assert found is not None and found.backlog == 0
    assert found.arriving_per_second == pytest.approx(found.records_per_second)
    driver.now += 100
    assert driver.found().backlog == 40_000 and driver.found().arriving_per_second < 400, "decays as all does"
