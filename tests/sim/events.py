"""Simulated time and the network: one heap of things to happen, channels that are in order, breaks, drops, duplicates.

A link joins two ends. Its channels (one per direction and lane) are in order. Breaking a link loses what is under way
and whatever is sent until it is up again; both ends hear of it, at their own time.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Clock:
    """What happens next, in order of time and then of scheduling."""

    def __init__(self) -> None:
        self.now = 0
        self.count = 0
        self.heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []

    def after(self, delay: int, do: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay, do, *args)

    def at(self, time: int, do: Callable[..., Any], *args: Any) -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, do, args))

    def next(self) -> bool:
        if not self.heap:
            return False
        self.now, _, do, args = heapq.heappop(self.heap)
        do(*args)
        return True


@dataclass(slots=True)
class Link:
    """State of the connection of two ends; `life` changes with every break, so that what was under way is lost."""

    life: int = 0
    up: bool = True
    until: int = 0
    swallows: bool = False
    """What is sent never arrives, and nobody is told."""


@dataclass(slots=True)
class Weather:
    """How bad the network is."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.02


class Net:
    """Carries messages; `deliver(source, target, message, body)` is called for each that arrives."""

    def __init__(self, clock: Clock, rnd: random.Random, weather: Weather, deliver: Callable[..., None]) -> None:
        self.clock, self.rnd, self.weather, self.deliver = clock, rnd, weather, deliver
        self.links: dict[tuple[str, str], Link] = {}
        self.last: dict[tuple[str, str, str], int] = {}
        self.fair = False
        self.held: dict[tuple[str, str], list[tuple[str, Any, Any]]] = {}
        """What an instance has for another one while their link is down: it goes first when the link is up again."""

    def flush(self, source: str, target: str) -> None:
        for lane, message, body in self.held.pop((source, target), []):
            self.send(source, target, lane, message, body)

    def link(self, a: str, b: str) -> Link:
        key = (a, b) if a < b else (b, a)
        found = self.links.get(key)
        if found is None:
            found = self.links[key] = Link()
        return found

    def delay(self) -> int:
        r = self.rnd.random()
        if r < self.weather.slow and not self.fair:
            return self.rnd.randint(5, 120)
        return 1 if r < 0.6 else self.rnd.randint(1, 4)

    def send(self, source: str, target: str, lane: str, message: Any, body: Any) -> None:
        if source == target:
            self.clock.after(0, self._arrive, source, target, None, 0, message, body)
            return
        link = self.link(source, target)
        if not link.up:
            if "." in source and "." in target and type(message).__name__ != "Chunk":
                self.held.setdefault((source, target), []).append((lane, message, body))
            return
        if link.swallows:
            return
        if not self.fair and self.weather.drop and self.rnd.random() < self.weather.drop:
            return
        channel = (source, target, lane)
        time = max(self.last.get(channel, 0), self.clock.now + self.delay())
        self.last[channel] = time
        self.clock.at(time, self._arrive, source, target, link, link.life, message, body)
        if not self.fair and self.weather.duplicate and self.rnd.random() < self.weather.duplicate:
            self.clock.at(time + self.rnd.randint(0, 60), self._arrive, source, target, link, link.life, message, body)

    def _arrive(self, source: str, target: str, link: Link | None, life: int, message: Any, body: Any) -> None:
        if link is None or (link.up and link.life == life):
            self.deliver(source, target, message, body)
