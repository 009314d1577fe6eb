"""Only what still waits for a lost instance is cancelled."""

from __future__ import annotations

import threading

import pytest

from ferry.contract.names import InstanceId
from ferry.driver import instance_watch

A, B = InstanceId("0.0"), InstanceId("1.0")


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    monkeypatch.setattr(instance_watch, "GRACE_SECONDS", 0.01)
    return threading.Event()


def test_what_waits_for_a_lost_instance_is_cancelled(cancelled: threading.Event) -> None:
    seen = instance_watch.InstanceWatch(cancelled.set, lambda instance: True)
    with seen.on([A, B]):
        seen.lost(B)
        assert seen.gone.is_set()
        assert cancelled.wait(5)


def test_others_and_what_has_ended_are_left_alone(cancelled: threading.Event) -> None:
    seen = instance_watch.InstanceWatch(cancelled.set, lambda instance: True)
    with seen.on([A]):
        seen.lost(B)
        assert not seen.gone.is_set()
        seen.lost(A)
    with seen.on([A]):
        assert not seen.gone.is_set()
        assert not cancelled.wait(0.1)
    seen.lost(A)
    assert not cancelled.wait(0.05)


def test_who_was_lost_before_the_watch_began_is_not_waited_for(cancelled: threading.Event) -> None:
    seen = instance_watch.InstanceWatch(cancelled.set, lambda instance: instance != B)
    seen.lost(B)
    with seen.on([A, B]):
        assert seen.gone.is_set()
        assert cancelled.wait(5)
