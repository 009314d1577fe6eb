"""An instance's side of an epoch: the real machine of one, and what it says and hears; the others are stand-ins.

Processor time of its steps, of encoding what it sends and of decoding what it hears: names and numbers only, no data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.parts.scale.driver import Driver
from ferry.contract import messages as m
from ferry.contract.names import InstanceId, driver_name
from ferry.protocol import instance as core
from ferry.protocol.view import seen
from ferry.sidecar.drivers import Drivers

NAME = InstanceId("1.0")
"""the one that is real"""
PEER = driver_name(1, "aa")


class Member:
    """One instance beside the stand-ins of a `Driver`, which has to listen to what `NAME` is told."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._drivers = driver, Drivers()
        self._drivers.opened(PEER)
        self.machine = core.Instance(NAME, core.InstanceRecord())
        self.cpu = 0.0
        self.bytes = self.messages = 0
        """that it sent; sent and heard"""
        self.logged = 0
        """deltas"""
        self._computes: list[core.Compute] = []
        self._timed(self.machine.start)
        self.follow()

    def follow(self) -> None:
        """Hear what the driver has said, and do what it asks for, with answers of the others."""
        for message in self._driver.heard_by(NAME):
            self._hear(message)

    def measure(self) -> tuple[float, int, int]:
        """What the driver said since the last time: (CPU seconds, bytes sent, messages)"""
        self.cpu, self.bytes, self.messages, self.logged = 0.0, 0, 0, 0
        self.follow()
        return self.cpu, self.bytes, self.messages

    # ---- what it hears
    def _hear(self, message: m.Message) -> None:
        if isinstance(message, m.BriefPrepare):
            for fragment in message.own:
                self._timed(partial(self.machine.step, core.Staged(fragment)))
        prepare = self._come(message)
        if not isinstance(prepare, m.Prepare):
            return
        for helper, _ in prepare.winners:
            self._come(m.Partials(prepare.step, prepare.attempt, helper))
        while self._computes:
            chains = tuple((chain, vnodes, 0, 0) for chain, vnodes in self._computes.pop().chains)
            self._timed(partial(self.machine.step, core.Computed(prepare.step, prepare.attempt, chains)))
        for chain, vnodes in seen(self._driver.machine.journaling.table).chains.items():
            if NAME in chain[1:]:
                self._come(m.Delta(prepare.step, prepare.attempt, prepare.version, chain[0], chain, vnodes, 0, 0))

    def _come(self, message: m.Message) -> m.Message:
        """It comes over the wire; returns what the machine gets."""
        code, head = m.CODES[type(message)], m.encode(message)
        taken: list[m.Message] = []

        def step() -> list[core.Effect]:
            heard = m.decode(code, head)
            if isinstance(heard, m.BriefPrepare):
                heard = self._drivers.prepares(PEER, heard)
            elif isinstance(heard, m.Install | m.Amend):
                heard = self._drivers.installs(PEER, heard)
            taken.append(heard)
            return self.machine.step(heard)

        self.messages += 1
        self._timed(step)
        return taken[0]

    # ---- what it does
    def _timed(self, step: Callable[[], list[core.Effect]]) -> None:
        began = time.process_time()
        heads = [head for effect in step() for head in self._do(effect)]
        self.cpu += time.process_time() - began
        self.messages += len(heads)
        self.bytes += sum(map(len, heads))

    def _do(self, effect: Any) -> list[bytes]:
        match effect:
            case core.Send(_, message) | core.SendDelta(_, message):
                return [m.encode(message)]
            case core.Contribute(prepare, _, leaders):
                part = m.Partials(prepare.step, prepare.attempt, NAME)
                return [m.encode(part) for leader, _ in leaders if leader != NAME]
            case core.Compute():
                self._computes.append(effect)
            case core.LogDelta():
                self.logged += 1
        return []
