"""A worker whose heartbeat ran out is reported, once; a Redis that is away is no silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract.errors import FerryError, Unreachable
from ferry.contract.names import InstanceId
from ferry.contract.places import Registration
from ferry.contract.signs import Pulse
from ferry.coordinator import members
from ferry.coordinator.members import Members
from ferry.registry import Changes

TIMEOUT_MS = 2500


class FakeRegistry:
    def __init__(self) -> None:
        self.beats = {0: True, 1: True}
        self.away = False
        self.pulses = dict[int, Pulse]()

        self.entries = {f"{w}.0": entry(w) for w in self.beats}

    def changes(self, known: int) -> Changes:
        if self.away:
            raise Unreachable("Redis does not answer")
        return Changes(1, True, dict(self.entries))

    def unregister(self, one: Registration) -> None:
        if self.entries.get(one.instance) == one:
            del self.entries[one.instance]

    def heard(self, workers: list[int]) -> tuple[list[int], list[Pulse]]:
        return [w for w in workers if not self.beats[w]], [one for w, one in self.pulses.items() if self.beats[w]]


def entry(worker: int, life: str = "1", port: int = 1) -> Registration:
    return Registration(f"{worker}.0", life, "127.0.0.1", port, "grpc+tcp://127.0.0.1:2", 3)


def until(true: Callable[[], object]) -> None:
    deadline = time.perf_counter() + 10
    while not true():
        assert time.perf_counter() < deadline


class FakeEndpoint:
    name = "driver"

    def channel(self, peer: str) -> None:
        return None

    def connect(self, *_: object, **__: object) -> None:
        raise FerryError("nobody there")


def test_silence_is_reported_once_and_again_after_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    now, registry, told = [100.0], FakeRegistry(), list[int]()
    monkeypatch.setattr(members.time, "monotonic", lambda: now[0])
    made = Members(TIMEOUT_MS, registry, lambda event: None)  # type: ignore[arg-type]
    made._dial_with(FakeEndpoint())  # type: ignore[arg-type]
    made.on_silent.append(told.append)

    def look(seconds: float) -> list[int]:
        now[0] += seconds
        made._look()
        return told

    registry.beats[1] = False
    assert look(60) == [], "it has never been heard of"
    registry.beats[1] = True
    look(0.1)
    registry.beats[1] = False
    assert look(0.1) == [1], "its key has run out"
    assert look(10) == [1]
    registry.away = True
    with pytest.raises(Unreachable):
        look(10)
    made._registry_lost()  # as the loop does then
    registry.away = False
    assert look(1) == [1], "nobody could be heard"
    registry.beats[1] = True
    look(0.1)
    registry.beats[1] = False
    assert look(1) == [1], "it was a heartbeat of before, found again in a file"
    registry.beats[1] = True
    look(3)
    registry.beats[1] = False
    assert look(0.1) == [1, 1]


def test_what_the_parent_of_an_instance_says_for_it_is_a_sign_of_life() -> None:
    registry, posted = FakeRegistry(), list[object]()
    made = Members(TIMEOUT_MS, registry, posted.append)  # type: ignore[arg-type]
    made._dial_with(FakeEndpoint())  # type: ignore[arg-type]
    pulse = registry.pulses[1] = Pulse(InstanceId("1.0"), 2_000, "operator 'w' in epoch 3", 2_000)
    made._look()
    assert pulse in posted
    registry.beats[1] = False
    posted.clear()
    made._look()
    assert pulse not in posted, "the parent is silent itself"


def test_who_was_heard_before_redis_was_away_and_is_not_afterwards_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that comes back on another node knows neither the registrations nor the heartbeats of before."""
    now, registry, endpoint, told = [100.0], FakeRegistry(), OpenEndpoint(), list[int]()
    monkeypatch.setattr(members.time, "monotonic", lambda: now[0])
    made = Members(TIMEOUT_MS, registry, lambda event: None)  # type: ignore[arg-type]
    made._dial_with(endpoint)  # type: ignore[arg-type]
    made.on_silent.append(told.append)
    made._look()
    until(lambda: len(endpoint.open) == 2)
    where = made.registration(InstanceId("1.0"))
    assert where is not None
    made._registry_lost()
    kept, registry.entries = registry.entries, {}
    registry.beats = {0: False, 1: False}  # nobody has found it yet
    now[0] += members.RETURN_SECONDS
    made._look()
    assert told == [] and endpoint.closed == [], "all have time to find it"
    assert made.registration(InstanceId("1.0")) == where, "who it is connected with it still knows"
    registry.entries["0.0"], registry.beats[0] = kept["0.0"], True
    now[0] += TIMEOUT_MS / 1000
    made._look()
    made._look()
    assert told == [1] and endpoint.closed == ["1.0"]
    assert made.registration(InstanceId("1.0")) is None


def test_instances_of_a_silent_worker_are_cut_off_as_soon_as_its_heartbeat_has_run_out() -> None:
    registry, endpoint = FakeRegistry(), OpenEndpoint()
    made = Members(TIMEOUT_MS, registry, lambda event: None)  # type: ignore[arg-type]
    made._dial_with(endpoint)  # type: ignore[arg-type]
    made._look()
    until(lambda: len(endpoint.open) == 2)
    made._look()
    assert not endpoint.closed
    registry.beats[1] = False
    made._look()
    assert endpoint.closed == ["1.0"]
    dialled = endpoint.dialled
    for _ in range(3):
        made._look()
    assert endpoint.dialled == dialled, "nobody dials it as long as it is silent"


def test_a_worker_without_a_heartbeat_leaves_the_registry_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, registry = [100.0], FakeRegistry()
    monkeypatch.setattr(members.time, "monotonic", lambda: now[0])
    made = Members(TIMEOUT_MS, registry, lambda event: None)  # type: ignore[arg-type]
    made._dial_with(FakeEndpoint())  # type: ignore[arg-type]
    registry.beats[1] = False
    made._look()
    now[0] += members.FORGET_SECONDS
    made._look()
    assert list(registry.entries) == ["0.0", "1.0"]
    made._registry_lost()  # Redis was away: it counts from anew
    now[0] += 1
    made._look()
    now[0] += members.FORGET_SECONDS + 1
    made._look()
    assert list(registry.entries) == ["0.0"]


def test_no_heartbeat_waits_for_a_dial() -> None:
    registry, told = FakeRegistry(), list[int]()
    made = Members(TIMEOUT_MS, registry, lambda event: None)  # type: ignore[arg-type]
    made.on_silent.append(told.append)
    end = threading.Event()

    class Swallowing(FakeEndpoint):
        def connect(self, *_: object, **__: object) -> None:
            end.wait(10)
            raise FerryError("nobody there")

    made._dial_with(Swallowing())  # type: ignore[arg-type]
    try:
        made._look()
        registry.beats[1] = False
        made._look()
        assert told == [1]
    finally:
        end.set()


def test_a_successor_that_comes_before_its_predecessor_has_gone_is_dialled_once() -> None:
    registry, posted = FakeRegistry(), list[object]()
    made = Members(TIMEOUT_MS, registry, posted.append)  # type: ignore[arg-type]
    driver, before, after = (
        TcpEndpoint(
            name, "job", b"secret", lambda m: None, *((made.opened, made.closed) if name == "d" else (ignore, ignore))
        )
        for name in ("d", "0.0", "0.0")
    )
    made._dial_with(driver)
    kinds: list[str] = []

    def seen(count: int) -> bool:
        made._look()
        kinds[:] = [type(event).__name__ for event in posted]
        return len(kinds) >= count

    try:
        del registry.entries["1.0"]
        for life, endpoint, count in (("1", before, 1), ("2", after, 3)):
            _, port = endpoint.listen()
            registry.entries["0.0"] = entry(0, life, port)
            until(lambda count=count: seen(count))
        for _ in range(4):
            made._look()
        assert kinds == ["Connected", "Lost", "Connected"], "the second took over from the first, once"
    finally:
        for endpoint in (driver, before, after):
            endpoint.close()


def test_a_process_that_has_ended_is_told_from_a_connection_that_broke() -> None:
    """The next look is a tenth of a second later, and nobody needs it."""
    registry, posted = FakeRegistry(), list[object]()
    made = Members(TIMEOUT_MS, registry, posted.append)  # type: ignore[arg-type]
    driver = TcpEndpoint("d", "job", b"secret", lambda m: None, made.opened, made.closed)
    instance = TcpEndpoint("0.0", "job", b"secret", lambda m: None, ignore, ignore)
    made._dial_with(driver)
    try:
        del registry.entries["1.0"]
        _, port = instance.listen()
        registry.entries["0.0"] = entry(0, port=port)
        made._look()
        until(lambda: len(posted) == 1)
        until(lambda: instance.channel("d"))
        assert made._dialler is not None
        dials = made._dialler._dials
        until(lambda: not dials["0.0"].under_way)
        dials["0.0"].opened_at -= 10  # It has lasted: else it is not dialled at once.
        instance.channel("d").close("the connection breaks")  # type: ignore[union-attr]
        until(lambda: len(posted) == 3)
        until(lambda: instance.channel("d"))
        until(lambda: not dials["0.0"].under_way)
        dials["0.0"].opened_at -= 10
        instance.close()
        until(lambda: len(posted) == 5)
    finally:
        driver.close()
        instance.close()
    assert [type(event).__name__ for event in posted] == ["Connected", "Lost", "Connected", "Lost", "ProcessEnded"]


def ignore(*_: object) -> None:
    pass


class OpenEndpoint:
    name = "driver"

    def __init__(self) -> None:
        self.open: dict[str, object] = {}
        self.closed: list[str] = []
        self.dialled = 0

    def connect(self, peer: str, *_: object) -> None:
        self.dialled += 1

        class Channel:
            def close(_, reason: str) -> None:
                self.closed.append(peer)
                del self.open[peer]

        self.open[peer] = Channel()

    def channel(self, peer: str) -> object:
        return self.open.get(peer)
