"""The driver's side of an epoch and of a changed table: the real coordinator and what it says and hears, without a network.

Processor time of the steps, of encoding what is sent and of decoding what is heard; instances are stand-ins.
"""

from __future__ import annotations

import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import CommitId, Fragment, InstanceId, Step
from ferry.coordinator.loop import initial_table
from ferry.coordinator.multicast import Multicast
from ferry.protocol import coordinator as core
from ferry.protocol.view import TableView

TASKS = 2
"""whose fragments each helper has"""


class Wire:
    """A stand-in for a channel."""

    size = 0
    """of the last message"""
    said: list[tuple[int, bytes]] | None = None
    """what was posted, if somebody listens"""

    def post(self, lane: int, kind: int, generation: int, head: bytes) -> None:
        self.size = len(head)
        if self.said is not None:
            self.said.append((kind, head))


class Driver:
    """The driver's side, timed; and instances that do at once what is asked of them."""

    def __init__(self, workers: int, vnodes: int, listened: InstanceId | None = None) -> None:
        """`listened`: to whom everything that is said is kept."""
        settings: Any = SimpleNamespace(workers=workers, instances_per_worker=1, replicas=1, virtual_nodes=vnodes)
        self.names = [InstanceId(f"{w}.0") for w in range(workers)]
        self._multicast, self._wires = Multicast(), {name: Wire() for name in self.names}
        if listened is not None:
            self._wires[listened].said = []
        self.machine = core.Coordinator(core.CoordinatorSettings(), initial_table(settings), None)
        self._seen: TableView | None = None
        self._ends: dict[InstanceId, tuple[int, ...]] = {}
        self.cpu = 0.0
        self.bytes = self.messages = 0
        self.orders: list[Any] = []
        self.heard: list[tuple[int, bytes]] = []
        self.journal: core.Journal | None = None
        self._do([])
        self._timed(self.machine.start)
        self._settle()
        for name in self.names:
            self.tell(core.Connected(name))
        self._settle()

    # ---- the driver
    def tell(self, event: core.Event) -> None:
        """One event that is no message."""
        self._timed(lambda: self.machine.step(event))

    def _timed(self, step: Any) -> None:
        began = time.process_time()
        sent = self._do(step())
        self.cpu += time.process_time() - began
        for to, message, size in sent:
            self.bytes += size
            self.messages += 1
            self._answer(to, message)

    def _do(self, effects: list[core.Effect]) -> list[tuple[InstanceId, m.Message, int]]:
        sent = []
        for effect in effects:
            match effect:
                case core.Send(to, message):
                    wire = self._wires[to]
                    self._multicast.post(wire, to, self.machine.generation, message)  # type: ignore[arg-type]
                    sent.append((to, message, wire.size))
                case core.Journal():
                    self.journal = effect
                case _:
                    self.orders.append(effect)
        return sent

    def _hear(self, code: int, head: bytes) -> None:
        self._timed(lambda: self.machine.step(m.decode(code, head)))

    # ---- the instances
    def _answer(self, me: InstanceId, message: m.Message) -> None:
        match message:
            case m.Ask(generation):
                self._say(m.Answer(me, generation, None, (), b"", (), ()))
            case m.Prepare():
                if mine := self._tails().get(me):
                    zeros = (0,) * len(mine)
                    self._say(m.Prepared(message.step, message.attempt, mine, zeros, zeros))
            case m.Commit(label):
                self._say(m.Committed(me, label))

    def _tails(self) -> dict[InstanceId, tuple[int, ...]]:
        view = self.machine.journaling.view
        if self._seen is not view:
            self._seen, found = view, defaultdict(list)
            for number, chain in enumerate(view.order):
                found[chain[-1]].append(number)
            self._ends = {name: tuple(numbers) for name, numbers in found.items()}
        return self._ends

    def _say(self, message: m.Message) -> None:
        self.heard.append((m.CODES[type(message)], m.encode(message)))

    def _settle(self) -> None:
        while self.heard or self.journal is not None:
            if self.journal is not None:
                table, self.journal = self.journal.table, None
                self.tell(core.Journaled(table.version))
            heard, self.heard = self.heard, []
            for code, head in heard:
                self.messages += 1
                self._hear(code, head)

    # ---- what is measured
    def epoch(self, number: int) -> None:
        """One epoch, from its begin to its end."""
        self.tell(core.EpochBegun(number))
        run = next(o for o in reversed(self.orders) if isinstance(o, core.StartIngest))
        winners = tuple(
            (name, tuple(Fragment(run.step, self.machine.generation, run.run, TASKS * w + t) for t in range(TASKS)))
            for w, name in enumerate(sorted(self.names))
        )
        self.tell(core.Ingested(run.step, run.run, winners, 10 * number, b"notes"))
        self._settle()
        assert self.machine.commits.committed == CommitId(Step(number, 0), self.machine.attempts.attempt), (
            "the epoch is not committed"
        )
        self.tell(core.EpochEnded(number))

    def heard_by(self, name: InstanceId) -> list[m.Message]:
        """What was said to the one that is listened to, since the last call, as it comes over the wire."""
        said, self._wires[name].said = self._wires[name].said, []
        assert said is not None, f"nobody listens to what {name} is told"
        return [m.decode(*one) for one in said]

    def lose(self, name: InstanceId) -> None:
        """One instance is lost: the groups close over it."""
        self.names.remove(name)
        self.tell(core.Lost(name, "it ended"))
        self._settle()
        assert name not in self.machine.journaling.view.members

    def measure(self, act: Any) -> tuple[float, int, int]:
        """(CPU seconds, bytes sent, messages)"""
        self.cpu, self.bytes, self.messages = 0.0, 0, 0
        act()
        self.orders.clear()
        return self.cpu, self.bytes, self.messages
