"""Moves, recoveries and loads as numbers."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.contract.status import Links
from ferry.coordinator.move_metrics import MoveMetrics, StateCollector
from ferry.protocol.coordinator.groups import GroupChange

A, B, C, D = (InstanceId(f"{k}.0") for k in range(4))
TABLE = Table(Version(1, 1), (Group(Term(1, 0), (A, B)), Group(Term(1, 0), (B, A))))


class Told:
    """MoveMetrics and their clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.move_metrics = MoveMetrics(lambda: self.now)

    def epoch(self, settled: bool = False, seconds: float = 0.5) -> None:
        self.now += seconds
        self.move_metrics.epoch(seconds / 2, lambda: settled)

    def change(
        self, *changes: tuple[int, str, InstanceId], epoch: int = 0, at_window: tuple[tuple[int, InstanceId], ...] = ()
    ) -> None:
        self.move_metrics.changed([GroupChange(*c) for c in changes], epoch, at_window)

    def count(self, name: str) -> float:
        return self.move_metrics.registry.get_sample_value(f"ferry_{name}_seconds_count") or 0.0

    def seconds(self, name: str) -> float:
        return self.move_metrics.registry.get_sample_value(f"ferry_{name}_seconds_sum") or 0.0


def test_a_move_is_timed_in_its_parts() -> None:
    told = Told()
    for _ in range(4):
        told.epoch(settled=True)
    told.change((0, "joined", C), (1, "joined", C), epoch=7)
    told.epoch()
    told.epoch(seconds=1.5)
    assert told.move_metrics.replica_lag(9) == 2
    told.change((0, "in-sync", C), (1, "in-sync", C))
    told.epoch()
    told.change((0, "switched", C))
    told.epoch()
    assert told.count("handover_pause") == 0, "the old copy is still there"
    told.change((0, "cleaned", A))
    told.epoch(settled=True)
    told.epoch(settled=True, seconds=9.0)
    assert (told.count("handover_warm"), told.seconds("handover_warm")) == (2, 4.0)
    assert (told.count("handover_switchover"), told.seconds("handover_switchover")) == (1, 0.5)
    assert (told.count("handover_clean"), told.seconds("handover_clean")) == (1, 0.5)
    assert (told.count("handover_pause"), told.seconds("handover_pause")) == (1, 1.0), "1.5 s instead of 0.5"
    assert told.move_metrics.registry.get_sample_value("ferry_handover_vnodes_total") == 1
    assert told.move_metrics.replica_lag(20) == 0


def test_a_copy_that_is_given_up_holds_nothing_open() -> None:
    told = Told()
    told.change((1, "joined", C))
    told.epoch()
    told.change((1, "aborted", C))
    told.epoch(settled=True)
    assert told.count("handover_pause") == 0, "nobody knows what is usual"
    told.epoch()
    told.change((0, "joined", C))
    told.change((0, "aborted", C))
    told.epoch(settled=True)
    assert (
        told.count("handover_pause") == 1 and told.count("handover_warm") == 0 and told.move_metrics.replica_lag(9) == 0
    )


@pytest.mark.parametrize(("lost", "recoveries"), [(A, 1), (C, 0)], ids=["a leader", "a bystander"])
def test_a_recovery_is_the_time_to_the_next_epoch(lost: InstanceId, recoveries: int) -> None:
    told = Told()
    told.move_metrics.lost(lost, TABLE)
    told.epoch()
    told.epoch()
    assert (told.count("recovery"), told.seconds("recovery")) == (recoveries, 0.5 * recoveries)


def test_loads_are_what_the_leaders_report() -> None:
    told = Told()
    assert told.move_metrics.loads(TABLE, 1000.0) == [(500.0, 0.0), (500.0, 0.0)], "nobody has said anything"
    for seconds, records in ((0.0, 0), (1.0, 30)):
        told.now += seconds
        told.move_metrics.report(m.Report(A, "1", (0, 1), (100, 999), (1, 0), received=(records, 0)))
        told.move_metrics.report(m.Report(B, "1", (0, 1), (999, 200), (7, 7), received=(0, records // 3)))
    assert told.move_metrics.loads(TABLE, 1000.0) == [(30.0, 100.0), (10.0, 200.0)], "records, not rows"
    told.now += 1
    told.move_metrics.report(m.Report(A, "2", (0,), (50,), (5,), received=(5,)))
    assert told.move_metrics.loads(TABLE, 1000.0) == [(30.0, 50.0), (10.0, 200.0)], "another life counts anew"
    told.move_metrics.lost(B, TABLE)
    assert told.move_metrics.loads(TABLE, 1000.0)[1] == (10.0, 0.0)


def test_a_rate_goes_on_with_another_leader() -> None:
    told = Told()
    for second in range(10):
        told.now += 1
        told.move_metrics.report(m.Report(A, "1", (0,), (0,), (0,), received=(100 * second,)))
        told.move_metrics.report(m.Report(B, "1", (0,), (0,), (0,), received=(0,)))
        assert second == 0 or told.move_metrics.loads(TABLE, 0.0)[0][0] == pytest.approx(100.0), "a copy says nothing"
    for second in range(1, 10):
        told.now += 1
        told.move_metrics.report(m.Report(B, "1", (0,), (0,), (0,), received=(100 * second,)))
        told.move_metrics.report(m.Report(A, "1", (0,), (0,), (0,), received=(900,)))
        assert told.move_metrics.loads(TABLE, 0.0)[0][0] == pytest.approx(100.0)


def test_a_rate_follows_slowly_and_one_of_an_older_release_by_its_rows() -> None:
    told = Told()
    for second, rows in enumerate([0, 700, *range(710, 1700, 10), *range(1800, 12_000, 100)]):
        told.now += 1
        told.move_metrics.report(m.Report(A, "1", (0,), (0,), (rows,)))
        if second == 10:
            assert told.move_metrics.loads(TABLE, 0.0)[0] == (pytest.approx((700 + 9 * 10) / 10), 0.0), "a plain mean"
    assert told.move_metrics.loads(TABLE, 0.0)[0] == (pytest.approx(100.0, rel=0.01), 0.0)
    told.now += 1
    told.move_metrics.report(m.Report(A, "1", (0,), (0,), (rows + 1100,)))
    (rate, _), _ = told.move_metrics.loads(TABLE, 0.0)
    assert 140 < rate < 160, "one second in which ten times as much came moves a rate by a twentieth of that"
    for _ in range(60):
        told.now += 1
        before = told.move_metrics.loads(TABLE, 0.0)[0][0]
        told.move_metrics.report(m.Report(A, "1", (0,), (0,), (rows + 1100,)))
        assert told.move_metrics.loads(TABLE, 0.0)[0][0] < before
    assert told.move_metrics.loads(TABLE, 0.0)[0][0] < 10


def test_what_moves_cost_is_measured() -> None:
    told = Told()
    assert told.move_metrics.costs() == (None, None)
    told.move_metrics.report(m.Report(A, "1", (0, 1), (10_000_000, 30_000_000), (0, 0)))
    for _ in range(2):
        told.epoch(settled=True)
    told.change((0, "joined", C), (1, "joined", C))
    assert told.move_metrics.quiet_seconds() == 0
    told.epoch(seconds=1.0)
    told.change((0, "in-sync", C))
    told.epoch(seconds=1.0)
    told.change((1, "in-sync", C), (0, "switched", C))
    told.epoch(seconds=0.7)
    told.change((1, "switched", C))
    told.epoch(seconds=0.5)
    told.change((0, "cleaned", A), (1, "cleaned", B))
    assert told.move_metrics.costs() == (pytest.approx(2.0 / 40_000_000), None), "both were under way for 2 s"


def test_what_waits_for_windows_says_nothing_about_copies() -> None:
    told = Told()
    told.move_metrics.report(m.Report(A, "1", (0, 1), (10_000_000, 30_000_000), (0, 0)))
    waits = ((0, C),)
    told.change((0, "joined", C), at_window=waits)
    told.epoch(seconds=5.0)
    told.change((1, "joined", C), at_window=waits)
    told.epoch(seconds=1.0)
    told.change((1, "in-sync", C), at_window=waits)
    assert told.move_metrics.costs()[0] == pytest.approx(1.0 / 30_000_000), "of what was copied alone"
    assert told.move_metrics.replica_lag(9) == 0 and told.count("handover_warm") == 1
    told.epoch(seconds=50.0)
    told.change((0, "in-sync", C))
    assert told.move_metrics.costs()[0] == pytest.approx(1.0 / 30_000_000)
    told.change((0, "joined", B), (1, "joined", B))
    told.epoch(seconds=1.0)
    told.change((0, "removed", B))
    told.change((1, "in-sync", B))
    assert told.move_metrics.costs()[0] == pytest.approx(1.0 / 30_000_000)


def test_pauses_are_counted_by_new_leader_and_beyond_what_is_usual() -> None:
    told = Told()
    told.epoch(settled=True)
    told.epoch(settled=True)
    told.change((0, "switched", C), (1, "switched", C))
    told.epoch(seconds=0.9)
    told.epoch(settled=True)
    assert told.move_metrics.costs() == (None, pytest.approx((0.9 - 0.5) / 2))
    told.now += 3
    assert told.move_metrics.quiet_seconds() == pytest.approx(4.4)


def test_every_virtual_node_has_its_state() -> None:
    told = Told()
    told.move_metrics.registry.register(StateCollector(lambda: TABLE, lambda: [(1.0, 10.0), (2.0, 20.0)]))
    value = told.move_metrics.registry.get_sample_value
    assert value("ferry_state_bytes", {"vnode": "1", "instance": B}) == 20
    assert value("ferry_state_rows_per_second", {"vnode": "0"}) == 1


def test_the_next_timer_is_that_of_the_instances_that_are_there() -> None:
    told = Told()
    assert told.move_metrics.next_timer() is None
    for instance, timer in ((A, 70), (B, 50), (C, None)):
        told.move_metrics.report(m.Report(instance, "life", (), (), (), timer=timer))
    assert told.move_metrics.next_timer() == 50
    told.move_metrics.lost(B, TABLE)
    assert told.move_metrics.next_timer() == 70


def test_links_are_summed_and_the_commonest_reason_counts() -> None:
    told = Told()
    assert told.move_metrics.links() == Links()
    for instance, rdma, tcp, reason in ((A, 2, 0, ""), (B, 1, 1, "slow"), (C, 0, 2, "odd"), (D, 0, 2, "slow")):
        told.move_metrics.report(m.Report(instance, "life", (), (), (), rdma, tcp, reason))
    assert told.move_metrics.links() == Links(3, 5, "slow")
    told.move_metrics.report(m.Report(B, "life", (), (), (), 1, 1, "slow", small_pages="none are free"))
    assert told.move_metrics.links() == Links(3, 5, "slow", "none are free")
    for gone in (B, C, D):
        told.move_metrics.lost(gone, TABLE)
    assert told.move_metrics.links() == Links(2, 0, "")
