"""Simulated time and the network: one heap of events, ordered channels, breaks, drops, duplicates.

A link joins two ends. Its channels (one per direction and lane) are in order. A broken link loses all messages in flight
and all messages that are sent until it is up again; both ends notice the break, each at its own time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


NEVER_REPEATED = ("Freeze", "Checkpointed")
"""Messages that are sent only once while the link is open. They are never dropped, or a checkpoint would never end."""


class Dice(random.Random):
    """The same methods as random.Random in a third of the time: a world makes thousands of draws."""

    def randint(self, a: int, b: int) -> int:
        return a + int(self.random() * (b - a + 1))

    def randrange(self, start: int) -> int:  # type: ignore[override]
        return int(self.random() * start)

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[int(self.random() * len(seq))]


class Clock:
    """Future events, ordered by time and then by scheduling."""

    def __init__(self) -> None:
        self.now = 0
        self.count = 0
        self.heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []

    def after(self, delay: int, do: Callable[..., Any], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, do, args))

    def at(self, time: int, do: Callable[..., Any], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, do, args))


@dataclass(slots=True)
class Link:
    """State of the connection of two ends; `life` changes with every break, so that messages in flight are lost."""

    life: int = 0
    up: bool = True
    until: int = 0
    swallows: bool = False
    """Messages never arrive, and neither end notices it."""
    earlier: Any = None
    """An earlier life of the instance at one end; the other end is still connected with it."""


@dataclass(slots=True)
class Weather:
    """How bad the network is.

    Real channels keep the order, and lose or duplicate no message while they are open. Drops and duplicates inside an open
    link are worse than that, and few seeds have them.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.02


class Net:
    """Carries messages: `deliver(source, target, link, life, message, body)` is called for each message that arrives."""

    def __init__(self, clock: Clock, rnd: random.Random, weather: Weather, deliver: Callable[..., None]) -> None:
        self.clock, self.rnd, self.weather, self.deliver = clock, rnd, weather, deliver
        self.links: dict[tuple[str, str], Link] = {}
        self.inside = Link()
        self.last: dict[tuple[str, str, str], int] = {}
        self.fair = False
        self.rough = weather.drop > 0 or weather.duplicate > 0
        self.held: dict[tuple[str, str], list[tuple[str, Any, Any]]] = {}
        """Messages between two instances while their link is down: they are sent first when the link is up again."""

    def hold(self, source: str, target: str, lane: str, message: Any, body: Any) -> None:
        """Keep a message between two instances, except chunks of snapshots; messages to drivers are not kept."""
        if "." in source and "." in target and type(message).__name__ != "Chunk":
            self.held.setdefault((source, target), []).append((lane, message, body))

    def flush(self, source: str, target: str) -> None:
        for lane, message, body in self.held.pop((source, target), []):
            self.send(source, target, lane, message, body)

    def link(self, a: str, b: str) -> Link:
        found = self.links.get((a, b))
        if found is None:
            found = self.links[a, b] = self.links[b, a] = Link()
        return found

    def delay(self) -> int:
        r = self.rnd.random()
        if r < self.weather.slow and not self.fair:
            return self.rnd.randint(5, 120)
        return 1 if r < 0.7 else int((r - 0.7) * 10) + 2

    def send(self, source: str, target: str, lane: str, message: Any, body: Any, link: Link | None = None) -> None:
        clock = self.clock
        if source == target and link is None:
            clock.after(0, self.deliver, source, target, self.inside, 0, message, body)
            return
        link = link or self.links.get((source, target)) or self.link(source, target)
        if not link.up:
            self.hold(source, target, lane, message, body)
            return
        if link.swallows:
            return
        rough = not self.fair and self.rough
        if rough and self.rnd.random() < self.weather.drop and type(message).__name__ not in NEVER_REPEATED:
            return
        channel = (source, target, lane)
        time = clock.now + self.delay()
        last = self.last.get(channel)
        if last is not None and last > time:
            time = last
        self.last[channel] = time
        clock.count += 1
        heapq.heappush(clock.heap, (time, clock.count, self.deliver, (source, target, link, link.life, message, body)))
        if rough and self.rnd.random() < self.weather.duplicate:
            clock.at(time + self.rnd.randint(0, 60), self.deliver, source, target, link, link.life, message, body)
