"""Connections of the simulated world: which processes are connected, when they notice a break, which driver gets a message."""

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
"""The last events: time, process, event."""


class Links:
    """The connections between the processes of the world."""

    rnd: random.Random
    clock: Clock
    after: Callable[..., None]
    net: Net
    checks: Checks
    story: Story
    hosts: dict[str, Host]
    start: Callable[[str], None]
    drivers: dict[str, Driver]

    apart: dict[frozenset[str], bool]
    """Pairs of instances that never reach each other again; True if they do not notice it."""

    def sever(self, a: str, b: str, length: int) -> None:
        """Break a link; both ends notice it, each at its own time."""
        link = self.net.link(a, b)
        link.life, link.up = link.life + 1, False
        if link.earlier is not None:
            self.detach(link, a, b)
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
                # Sometimes for a live instance, too: a proxy or firewall may refuse the connection.
                if not self.hosts[other].alive or self.rnd.random() < 0.1:
                    self.after(self.rnd.choice((0, 1, 20, 150)), driver.take, dcore.ProcessEnded(InstanceId(other)))
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

    def separate(self, a: str, b: str) -> None:
        """Two instances cannot reach each other any more: their connection breaks, or loses all messages silently."""
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

    # ---- two lives of one name
    def double(self, host: Host, length: int) -> None:
        """Another process of this name starts elsewhere, with nothing on its disk, while the first one goes on.

        Each peer and driver changes from the first process to the second at its own time; then the first notices it, and ends.
        Often the first process has stood still until then, and continues its old work.
        """
        name, rnd = host.name, self.rnd
        later = type(host)(host.world, name)
        later.driver, later.lost_at = host.driver, self.clock.now
        later.was_slow = host.was_slow = True
        host.ways = {name: Link(earlier=host)}
        for other in (*self.hosts, *self.drivers):
            link = self.net.link(other, name)
            if link.earlier is not None:
                self.sever(
                    other, name, 1
                )  # Both ends have an earlier life: the connection of these two breaks at once.
            if other != name and link.up:
                link.earlier = host
                host.ways[other] = link
                later.with_earlier_life[other] = True
                self.after(rnd.choice((5, 40, 200, 400)) + rnd.randint(0, 20), self.turn, other, later)
        self.hosts[name] = later
        self.after(rnd.randint(1, 40), self.start, name)
        if rnd.random() < 0.5:
            host.stand(length, frozen=True)
        self.after(length + rnd.randint(0, 60), self.end_earlier, host)

    def turn(self, other: str, later: Host) -> None:
        """`other` has discovered the later life, and disconnects from the earlier life."""
        if other in later.with_earlier_life:
            self.sever(other, later.name, self.rnd.choice((1, 1, 20)))

    def detach(self, link: Link, a: str, b: str) -> None:
        """After a connection of an earlier life has broken, the next connection is with the later life."""
        earlier, link.earlier = link.earlier, None
        other = b if earlier.name == a else a
        del earlier.ways[other]
        self.hosts[earlier.name].with_earlier_life.pop(other, None)
        if other in self.hosts:
            self.after(self.rnd.choice((0, 1, 5, 40)), earlier.take, icore.PeerLost(InstanceId(other)))

    def end_earlier(self, host: Host) -> None:
        """An earlier life ends, because it has noticed its successor."""
        if host.alive:
            self.story.append((self.clock.now, host.name, "its earlier life ends"))
            host.alive = False
            for other in [other for other in host.ways or () if other != host.name]:
                self.sever(other, host.name, self.rnd.choice((1, 1, 20)))

    def connect(self, driver: Driver, host: Host) -> None:
        if not driver.alive or not host.alive or driver.name in host.with_earlier_life:
            return
        self.restore(driver.name, host.name)
        life = self.net.link(driver.name, host.name).life
        if driver.connections.get(host.name) == life:
            return  # They are connected already.
        driver.connections[host.name] = life
        if driver.pending_lost.pop(host.name, False) and self.rnd.random() < 0.5:
            driver.take(dcore.Lost(InstanceId(host.name), "connection closed"))
        driver.take(dcore.Connected(InstanceId(host.name)))

    def deliver(self, source: str, target: str, link: Link, life: int, message: Any, body: Any) -> None:
        if link.life != life or not link.up:
            return
        host = self.hosts.get(target)
        if link.earlier is not None and link.earlier.name == target:
            host = link.earlier
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
        """Answers go to the driver of the request, acknowledgements to the driver of the attempt, the rest to the newest driver."""
        if type(message) is m.Failed and host.full_until <= self.clock.now:
            self.checks.fail(f"{host.name} fails: {message.reason}")
        target = origin if origin else host.driver
        if type(message) in (m.Prepared, m.FragmentsGone):
            of = [d.name for d in self.drivers.values() if d.generation == message.attempt.generation]
            target = of[-1] if of else target
        if target:
            host.send(target, "control", message, None)
