"""What carries an instance's links is counted, and what is not as expected is said once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ferry.channel.base import LinkState
from ferry.channel.choice import NOT_ASKED, Choice
from ferry.contract.names import InstanceId, driver_name
from ferry.contract.status import Links
from ferry.sidecar.links import LinkWatch
from ferry.sidecar.metrics import LoadCounter

FAST = ("rdma", "mlx5_0", "10.1.2.3", "4096", "imm", "")
DRIVER = LinkState(driver_name(3, "abcd"), "tcp", "")


def tcp(reason: str) -> tuple[str, ...]:
    return ("tcp", "", "", "", "", reason)


class Told:
    """A watch over links that are given."""

    def __init__(self, **chosen: Any) -> None:
        self._open: tuple[LinkState, ...] = ()
        endpoint: Any = SimpleNamespace(links=lambda: (*self._open, DRIVER))
        self.watch = LinkWatch(Choice(endpoint, **chosen))

    def sees(self, *links: tuple[str, str, str]) -> Links:
        self._open = tuple(LinkState(*one) for one in links)
        self.watch.look()
        return self.watch.links

    @property
    def rows(self) -> dict[tuple[str, ...], int]:
        return {row.labels: row.links for row in self.watch.rows}


def rdma() -> Told:
    return Told(expected=True, device="mlx5_0", gid="10.1.2.3", mtu=4096, notify="imm")


def test_tcp_that_nobody_minds(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(expected=False, reason=NOT_ASKED)
    assert told.rows == {tcp(NOT_ASKED): 0}, "zero is said, not nothing"
    for _ in range(3):
        assert told.sees(("1.0", "tcp", ""), ("2.0", "tcp", "")) == Links(0, 2, "")
    assert told.rows == {tcp(NOT_ASKED): 2} and not caplog.messages


def test_an_instance_without_the_device_that_is_expected() -> None:
    told = Told(expected=True, reason="there is none")
    assert told.watch.links == Links(0, 0, "there is none"), "before the first link"
    assert told.sees(("1.0", "tcp", "")) == Links(0, 1, "there is none")
    assert told.rows == {tcp("there is none"): 1}


def test_a_link_that_is_tcp_is_told_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    told = rdma()
    slow = ("2.0", "tcp", "the peer has no RDMA")
    with caplog.at_level(logging.INFO):
        assert told.sees(("1.0", "rdma", ""), ("2.0", "tcp", "the link is being set up")) == Links(1, 1, "")
        assert not caplog.messages, "every link begins so"
        for _ in range(3):
            assert told.sees(("1.0", "rdma", ""), slow) == Links(1, 1, "the peer has no RDMA")
        assert told.rows == {FAST: 1, tcp("the peer has no RDMA"): 1}
        told.sees(("1.0", "rdma", ""), ("2.0", "tcp", "broken"))
        assert told.sees(("1.0", "rdma", ""), ("2.0", "rdma", "")) == Links(2, 0, "")
    assert [m.partition(": ")[2] for m in caplog.messages] == ["the peer has no RDMA", "broken", ""]
    assert caplog.messages[-1] == "the link to 2.0 is RDMA again"
    assert told.rows == {FAST: 2}


def test_the_commonest_reason_is_reported() -> None:
    told = rdma()
    links = [("1.0", "tcp", "a"), ("2.0", "tcp", "b"), ("3.0", "tcp", "b")]
    told.sees(*links)
    assert told.sees(*links) == Links(0, 3, "b")
    assert told.sees() == Links() and told.rows == {FAST: 0}


def test_rings_in_small_pages_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    told = rdma()
    assert told.sees(("1.0", "rdma", "")).small_pages == ""
    monkeypatch.setattr(Choice, "small_pages", "Cannot allocate memory")
    links = told.sees(("1.0", "rdma", ""))
    assert links == Links(1, 0, "", "Cannot allocate memory")
    report = LoadCounter(4).report(InstanceId("0.0"), "life", np.zeros(4, np.int64), links)
    assert (report.rdma, report.small_pages, report.damage) == (1, "Cannot allocate memory", "")
