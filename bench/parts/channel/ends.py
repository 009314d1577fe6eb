"""One end of a measured channel: it sends for a while and asks, or counts what arrives and answers.

It runs on the host and in guests, so it must need nothing but the channel and the standard library.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ferry.channel import frames, lanes
from ferry.channel.base import Channel, Endpoint, Lane, Message
from ferry.channel.rdma import ring
from ferry.channel.rdma.device import choose_device
from ferry.channel.rdma.endpoint import Notify, RdmaEndpoint, RdmaSettings
from ferry.channel.rdma.memory import RingShape
from ferry.channel.tcp import transport as tcp_transport
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract import limits

DATA, PING, PONG, RESULT = range(1, 5)
PINGS_WARM = 5
LINK_SECONDS = 10.0
_SLOTS, _SLOT_BYTES = limits.SLOTS, limits.SLOT_BYTES


@dataclass(frozen=True, slots=True)
class Case:
    """One channel and what is done with it."""

    carrier: str
    """tcp or rdma"""
    slots: int = _SLOTS
    """of TCP: credits of a lane; of RDMA: slots of a ring, the credits of its lanes are what they are"""
    slot_bytes: int = _SLOT_BYTES
    """of TCP: of a frame; of RDMA: of a slot, its frames are what they are"""
    notify: str = "auto"
    checksum: bool = True
    message_bytes: int = 65536
    warm_seconds: float = 0.5
    seconds: float = 2.0
    pings: Sequence[int] = field(default=())
    """bytes of the messages whose round trips are measured"""
    rounds: int = 200


def arrange(case: Case) -> None:
    """Give this process the slots and the checksum of the case; both ends have to, before they make their endpoints.

    The product has constants there: only a measurement may turn them.
    """
    vars(frames)["checksum"] = _CHECKSUM if case.checksum else lambda header, payload: 0
    vars(ring)["zlib"] = zlib if case.checksum else SimpleNamespace(crc32=lambda data, start=0: 0)
    tcp = case.carrier == "tcp"
    slots, slot_bytes = (case.slots, case.slot_bytes) if tcp else (_SLOTS, _SLOT_BYTES)
    part, frame = max(1, slots // 4), slot_bytes + frames.HEADER_BYTES
    _turn(limits, SLOTS=slots, SLOT_BYTES=slot_bytes)
    _turn(frames, PAYLOAD_BYTES=slot_bytes, FRAME_BYTES=frame)
    _turn(tcp_transport, FRAME_BYTES=frame)
    _turn(
        lanes, PAYLOAD_BYTES=slot_bytes, CREDIT_BATCH=part, DEFERRED_SLOTS_MAX=part, _DEFERRED_BYTES=part * slot_bytes
    )


_CHECKSUM = frames.checksum


def _turn(module: Any, **values: int) -> None:
    for name, value in values.items():
        assert hasattr(module, name), f"{module.__name__} has no {name} any more: this file has to follow"
        setattr(module, name, value)


def endpoint(case: Case, name: str, host: str, on_message: Callable[[Message], None]) -> Endpoint:
    """An endpoint for the case, after `arrange`."""
    rest: tuple[Any, ...] = ("bench", b"nobody else is here", on_message, _opened, _closed)
    if case.carrier == "tcp":
        return TcpEndpoint(name, *rest)
    settings = RdmaSettings(RingShape(case.slots, case.slot_bytes), Notify(case.notify))
    return RdmaEndpoint(name, *rest, device=choose_device(settings.shape, own=[host]), settings=settings)


def _opened(peer: str, channel: Channel) -> None:
    return None


def _closed(peer: str, reason: str) -> None:
    return None


class Receiver:
    """Decides when the measured time begins and ends, and tells the sender what came in it."""

    def __init__(self, case: Case, host: str) -> None:
        arrange(case)
        self._case = case
        self._first = self._begin = self._cpu = 0.0
        self._bytes = self._messages = 0
        self._over = False
        self._endpoint = endpoint(case, "receiver", host, self._message)
        self.port = self._endpoint.listen(host)[1]

    def _message(self, message: Message) -> None:
        if message.kind == DATA:
            self._count(message)
        elif message.kind == PING:
            self._answer(message.peer, PONG, message.body)

    def _count(self, message: Message) -> None:
        now = time.perf_counter()
        if not self._begin:
            self._first = self._first or now
            if now - self._first >= self._case.warm_seconds:
                self._begin, self._cpu = now, time.process_time()
            return
        if self._over:
            return
        self._bytes += len(message.body)
        self._messages += 1
        seconds = now - self._begin
        if seconds >= self._case.seconds:
            self._over = True
            cpu = time.process_time() - self._cpu
            result = {"bytes_per_second": self._bytes / seconds, "messages": self._messages, "cpu": cpu / seconds}
            self._answer(message.peer, RESULT, json.dumps(result).encode())

    def _answer(self, peer: str, kind: int, body: bytes | memoryview) -> None:
        channel = self._endpoint.channel(peer)
        assert channel is not None
        channel.post(Lane.DELTA, kind, 0, b"", (body,))

    def close(self) -> None:
        """Close the endpoint."""
        self._endpoint.close()


class Sender:
    """Sends as fast as credit comes, or asks one question at a time."""

    def __init__(self, case: Case, host: str, address: tuple[str, int]) -> None:
        arrange(case)
        self._case = case
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._endpoint = endpoint(case, "sender", host, self._answers.put)
        self._channel = self._endpoint.connect("receiver", address, 20.0)
        deadline = time.monotonic() + LINK_SECONDS
        while [link.kind for link in self._endpoint.links()] != [case.carrier]:
            assert time.monotonic() < deadline, f"no link: {self._endpoint.links()}"
            time.sleep(0.002)

    def throughput(self) -> dict[str, float]:
        """What the receiver saw, with this side's share of a processor."""
        body, channel, answers = os.urandom(self._case.message_bytes), self._channel, self._answers
        began, cpu = time.perf_counter(), time.process_time()
        while answers.empty():
            channel.send(Lane.BULK, DATA, 0, b"", (body,), timeout=20)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
        assert channel.flush(20)
        result: dict[str, float] = json.loads(bytes(answers.get().body))
        return {
            "throughput": result["bytes_per_second"],
            "messages": result["messages"],
            "sender cpu": share,
            "receiver cpu": result["cpu"],
            "stalls": channel.statistics().lanes[Lane.BULK].stalls,
        }

    def latency(self, size: int) -> dict[str, float]:
        """Half of a round trip of messages of this size, when nothing else is under way."""
        body = os.urandom(size)
        took = []
        for _ in range(PINGS_WARM + self._case.rounds):
            began = time.perf_counter()
            self._channel.send(Lane.DELTA, PING, 0, b"", (body,), timeout=20)
            self._answers.get(timeout=20)
            took.append(time.perf_counter() - began)
        return half(took[PINGS_WARM:])

    def close(self) -> None:
        """Close the endpoint."""
        self._endpoint.close()


def half(round_trips: Sequence[float]) -> dict[str, float]:
    """Half of them, in seconds: the median, and what one in a hundred exceeds."""
    ordered = sorted(round_trips)
    return {"latency": statistics.median(ordered) / 2, "latency p99": ordered[len(ordered) * 99 // 100] / 2}
