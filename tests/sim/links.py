"""Who can talk to whom in the simulated world, who hears of a break and when, and which driver a message goes to."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.protocol import coordinator as dcore
from ferry.protocol import instance as icore
from tests.sim.checks import Checks
from tests.sim.driver import Driver
from tests.sim.events import Clock, Link, Net
from tests.sim.host import Host

Story = deque[tuple[int, str, Any]]
"""Time, who, what: the last that happened."""


class Links:
    """The part of the world between its processes."""

    rnd: random.Random
    clock: Clock
    after: Callable[..., None]
    net: Net
    checks: Checks
    story: Story
    hosts: dict[str, Host]
    drivers: dict[str, Driver]

    apart: dict[frozenset[str], bool]
    """Pairs of instances that never reach each other again; True when they do not notice."""

    def sever(self, a: str, b: str, length: int) -> None:
        """Break a link; both ends hear of it, each at its time."""
        link = self.net.link(a, b)
        link.life, link.up = link.life + 1, False
        link.until = self.clock.now + length
        life = link.life
        for me, other in ((a, b), (b, a)):
            if me in self.drivers:
                self.drivers[me].pending_lost[other] = True
            self.after(self.rnd.choice((0, 1, 5, 40)), self.hear_lost, me, other, life)
        if length < 1 << 40:
            self.after(length, self.reconnect, a, b, life)

    def hear_lost(self, me: str, other: str, life: int) -> None:
        driver = self.drivers.get(me)
        if driver is not None:
            if driver.pending_lost.pop(other, False) and driver.alive:
                driver.take(dcore.Lost(InstanceId(other), "connection closed"))
        elif other in self.hosts:
            self.hosts[me].take(icore.PeerLost(InstanceId(other)))

    def reconnect(self, a: str, b: str, life: int) -> None:
        if self.net.link(a, b).life != life:
            return
        for driver, host in ((a, b), (b, a)):
            if driver in self.drivers and host in self.hosts:
                self.connect(self.drivers[driver], self.hosts[host])
                return
        if self.hosts[a].alive and self.hosts[b].alive:
            self.restore(a, b)

    def part(self, a: str, b: str) -> None:
        """Two instances cannot reach each other any more: their connection breaks, or it swallows what is sent."""
        self.apart[frozenset((a, b))] = silently = self.rnd.random() < 0.5
        if silently:
            self.net.link(a, b).swallows = True
        else:
            self.sever(a, b, 1 << 40)

    def restore(self, a: str, b: str) -> None:
        link = self.net.link(a, b)
        if not link.up and self.apart.get(frozenset((a, b))) is not False:
            link.life, link.up = link.life + 1, True
            self.net.flush(a, b)
            self.net.flush(b, a)

    def connect(self, driver: Driver, host: Host) -> None:
        if not driver.alive or not host.alive:
            return
        self.restore(driver.name, host.name)
        if driver.pending_lost.pop(host.name, False) and self.rnd.random() < 0.5:
            driver.take(dcore.Lost(InstanceId(host.name), "connection closed"))
        driver.take(dcore.Connected(InstanceId(host.name)))

    def deliver(self, source: str, target: str, link: Link, life: int, message: Any, body: Any) -> None:
        if link.life != life or not link.up:
            return
        host = self.hosts.get(target)
        if host is None:
            self.drivers[target].take(message)
            return
        if source != host.driver and source in self.drivers:
            generation = self.drivers[source].generation
            known = self.drivers.get(host.driver)
            if known is None or known.generation <= generation:
                host.driver = source
        if type(message) is m.Install:
            self.checks.installed(message.table)
        if host.alive and not host.failed:
            self.story.append((self.clock.now, target, message))
            host.take(message, source if source[0] == "d" else "", body)

    def to_driver(self, host: Host, origin: str, message: Any) -> None:
        """Answers go to who asked, acknowledgements to the driver of the attempt, the rest to the newest."""
        if type(message) is m.Failed and host.full_until <= self.clock.now:
            self.checks.fail(f"{host.name} fails: {message.reason}")
        target = origin if origin else host.driver
        if type(message) in (m.Prepared, m.FragmentsGone):
            of = [d.name for d in self.drivers.values() if d.generation == message.attempt.generation]
            target = of[-1] if of else target
        if target:
            self.net.send(host.name, target, "control", message, None)
