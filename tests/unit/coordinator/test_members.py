"""A worker whose heartbeat ran out is reported, once; a Redis that is away is no silence."""

from __future__ import annotations

import pytest

from ferry.channel.tcp import TcpEndpoint
from ferry.contract.documents import RunSettings
from ferry.contract.errors import FerryError, Unreachable
from ferry.contract.places import Registration
from ferry.coordinator import members
from ferry.coordinator.members import Members

SETTINGS = RunSettings(
    job="j", run="j-1", directory="", secret="s" * 16, redis="", pipeline_module="m", pipeline_file=None,
    pipeline_args={}, virtual_nodes=4, replicas=0, workers=2, instances_per_worker=1, memory_bytes=1 << 20,
    epoch_interval_ms=0, epoch_max_rows=1, cores=1, timeout_ms=2500,
)  # fmt: skip


class FakeBoard:
    def __init__(self) -> None:
        self.beats = {0: True, 1: True}
        self.away = False

    def registrations(self) -> list[Registration]:
        if self.away:
            raise Unreachable("Redis does not answer")
        return [Registration(f"{w}.0", "life", "127.0.0.1", 1, "grpc+tcp://127.0.0.1:2", 3) for w in self.beats]

    def beating(self, workers: list[int]) -> list[bool]:
        return [self.beats[w] for w in workers]


class FakeEndpoint:
    def connect(self, *_: object, **__: object) -> None:
        raise FerryError("nobody there")


def test_silence_is_reported_once_and_again_after_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    now, board, told = [100.0], FakeBoard(), list[int]()
    monkeypatch.setattr(members.time, "monotonic", lambda: now[0])
    made = Members(SETTINGS, board, lambda event: None)  # type: ignore[arg-type]
    made.endpoint, made.on_silent = FakeEndpoint(), told.append  # type: ignore[assignment]

    def look(seconds: float) -> list[int]:
        now[0] += seconds
        made._look()
        return told

    board.beats[1] = False
    assert look(60) == [], "it has never been heard of"
    board.beats[1] = True
    look(0.1)
    board.beats[1] = False
    assert look(0.1) == [1], "its key has run out"
    assert look(10) == [1]
    board.away = True
    with pytest.raises(Unreachable):
        look(10)
    made._forget()  # as the loop does then
    board.away = False
    assert look(1) == [1], "nobody could be heard"
    board.beats[1] = True
    look(0.1)
    board.beats[1] = False
    assert look(1) == [1], "it was a heartbeat of before, found again in a file"
    board.beats[1] = True
    look(3)
    board.beats[1] = False
    assert look(0.1) == [1, 1]


def test_instances_of_a_silent_worker_are_cut_off_as_soon_as_its_heartbeat_has_run_out() -> None:
    board, endpoint = FakeBoard(), OpenEndpoint()
    made = Members(SETTINGS, board, lambda event: None)  # type: ignore[arg-type]
    made.endpoint = endpoint  # type: ignore[assignment]
    made._look()
    made._look()
    assert not endpoint.closed
    board.beats[1] = False
    made._look()
    assert endpoint.closed == ["1.0"]


def test_a_successor_that_comes_before_its_predecessor_has_gone_is_dialled_once() -> None:
    board, posted = FakeBoard(), list[object]()
    made = Members(SETTINGS, board, posted.append)  # type: ignore[arg-type]
    driver, before, after = (
        TcpEndpoint(
            name, "job", b"secret", lambda m: None, *((made.opened, made.closed) if name == "d" else (ignore, ignore))
        )
        for name in ("d", "0.0", "0.0")
    )
    made.endpoint = driver
    try:
        for life, endpoint in (("first", before), ("second", after)):
            host, port = endpoint.listen()
            board.registrations = lambda life=life, host=host, port=port: [  # type: ignore[method-assign, misc]
                Registration("0.0", life, host, port, "", 1)
            ]
            for _ in range(4):
                made._look()
        kinds = [type(event).__name__ for event in posted]
        assert kinds == ["Connected", "Lost", "Connected"], "the second took over from the first, once"
    finally:
        for endpoint in (driver, before, after):
            endpoint.close()


def ignore(*_: object) -> None:
    pass


class OpenEndpoint:
    def __init__(self) -> None:
        self.closed: list[str] = []

    def connect(self, *_: object, **__: object) -> None:
        return None

    def channel(self, peer: str) -> object:
        class Channel:
            def close(_, reason: str) -> None:
                self.closed.append(peer)

        return Channel()
