"""One simulated sidecar: performs the effects of `protocol.Instance` on a store of plain dicts.

Files outlive a crash (unless the fault loses them); staged fragments, received bodies and scans do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import InstanceId, Label, Step
from ferry.protocol import instance as core
from ferry.protocol.steps import step_of
from tests.sim import data

if TYPE_CHECKING:
    from tests.sim.world import World

Body = dict[int, data.Rows]
CHUNK_ROWS = 3


@dataclass(slots=True)
class Files:
    """What is on disk."""

    saved: core.Saved = field(default_factory=core.Saved)
    log: dict[Label, list[tuple[m.Delta, Body]]] = field(default_factory=dict)
    state: dict[int, data.Rows] = field(default_factory=dict)
    floor: int = WATERMARK_NONE
    loaded: dict[int, Step] = field(default_factory=dict)
    """The base of the snapshot of which rows were loaded, by virtual node."""
    appended: dict[int, set[Step]] = field(default_factory=dict)
    """Steps of which rows were put, by virtual node. A state of rows would hold a row twice that came by both ways."""


class Host:
    """An instance and everything it can lose."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.files = Files()
        self.alive = self.failed = False
        self.life = 0
        self.lost_at = -1
        """When files were lost last."""
        self.stale = False
        """The disk came back as it was earlier, and the groups do not know yet."""
        self.long_computes = 0
        """So many computations take longer than any deadline."""
        self.was_slow = False
        self.stands_until = 0
        self.frozen_until = 0
        """Until then it does not even say that it lives."""
        self.inbox: list[tuple[core.Event, str]] = []
        self.full_until = 0
        """There is no room on its disk until then."""
        self.driver = ""

    # ---- life and death
    def start(self) -> None:
        self.life += 1
        self.alive, self.failed = True, False
        self.inbox, self.frozen_until, self.stands_until = [], 0, 0
        self.staged: dict[m.Fragment, dict[int, data.Partial]] = {}
        self.partials: dict[tuple[Any, ...], dict[int, list[data.Partial]]] = {}
        self.bodies: dict[m.Delta, Body] = {}
        self.chunks: dict[m.Chunk, list[tuple[int, data.Row, int]]] = {}
        self.scans: dict[tuple[str, int], list[Any]] = {}
        logged = tuple(d for entries in self.files.log.values() for d, _ in entries)
        self.core = core.Instance(
            InstanceId(self.name), self.world.operators, self.files.saved, logged, self.world.rules, learn_stall_ms=500,
            slow_ms=50,
        )  # fmt: skip
        self.execute(self.core.start(), "")
        if self.alive:
            self.world.after(self.world.rnd.randint(50, 100), self.tick, self.life)
            if self.world.scenario.pulses:
                self.pulse(self.life)

    def tick(self, life: int) -> None:
        if self.alive and life == self.life:
            if not self.stands:
                self.take(core.Tick(self.world.clock.now))
            self.world.after(100, self.tick, life)

    def pulse(self, life: int) -> None:
        if self.alive and life == self.life:
            if not self.frozen:
                self.world.to_driver(self, "", m.Pulse(InstanceId(self.name), 1000 if self.stands else 0))
            self.world.after(50, self.pulse, life)

    @property
    def stands(self) -> bool:
        """Whether its loop takes nothing now."""
        return self.world.clock.now < self.stands_until

    @property
    def frozen(self) -> bool:
        """Whether it does not run at all."""
        return self.world.clock.now < self.frozen_until

    def stand(self, length: int, frozen: bool) -> None:
        """Take nothing for a while: it computes, or it does not run at all."""
        self.was_slow = True
        self.stands_until = max(self.stands_until, self.world.clock.now + length)
        if frozen:
            self.frozen_until = max(self.frozen_until, self.world.clock.now + length)
        self.world.after(length, self.go_on, self.life)

    def go_on(self, life: int) -> None:
        if self.alive and life == self.life and not self.stands:
            waiting, self.inbox = self.inbox, []
            newest = max((e.attempt for e, _ in waiting if isinstance(e, m.Prepare)), default=None)
            for event, origin in waiting:
                if isinstance(event, m.Prepare) and newest is not None and event.attempt < newest:
                    if event.attempt.generation == newest.generation:
                        continue
                self.take(event, origin)

    def take(self, event: core.Event, origin: str = "") -> None:
        if self.stands:
            self.inbox.append((event, origin))
        elif self.alive and not self.failed:
            self.execute(self.core.step(event), origin)

    def receive(self, source: str, message: m.Message, body: Any) -> None:
        if not self.alive or self.failed:
            return
        if isinstance(message, m.Partials):
            self.partials[(message.step, message.attempt, message.helper)] = body
        elif isinstance(message, m.Delta):
            self.bodies[message] = body
        elif isinstance(message, m.Chunk):
            self.chunks[message] = body
        self.take(message, source)

    # ---- effects
    def execute(self, effects: list[core.Effect], origin: str) -> None:
        for effect in effects:
            fate = self.world.before(type(effect).__name__, self)
            if fate in ("torn", "fails") and isinstance(effect, core.Put):
                self.put(effect.label, torn=True)
            if fate == "fails":
                # It has told the driver, and does nothing more.
                self.life, self.failed = self.life + 1, True
                self.world.after(20, self.world.crash, self)
                return
            if fate:
                self.world.crash(self)
                return
            self.world.note(self.name, effect)
            self.perform(effect, origin)
            if not self.alive or self.failed:
                return

    def perform(self, effect: core.Effect, origin: str) -> None:
        files, world = self.files, self.world
        match effect:
            case core.Send(to, message):
                if to == core.DRIVER:
                    world.to_driver(self, origin, message)
                else:
                    world.net.send(self.name, to, "bulk", message, None)
            case core.Contribute(prepare, fragments, leaders):
                self.contribute(prepare, fragments, leaders)
            case core.Compute(prepare, helpers, chains):
                takes = world.rnd.randint(0, 3)
                if self.long_computes:
                    self.long_computes, takes = self.long_computes - 1, 5000
                    self.stand(takes, frozen=False)
                world.after(takes, self.compute, self.life, prepare, helpers, chains)
            case core.SendDelta(to, delta):
                found = self.bodies.get(delta)
                if found is None and not delta.chain:
                    found = self.copy_for(delta)
                assert found is not None, f"{self.name} has no body for {delta}"
                world.net.send(self.name, to, "delta", delta, {v: found[v] for v in delta.vnodes})
            case core.LogDelta(delta):
                body = self.bodies[delta]
                files.log.setdefault(Label(delta.step, delta.attempt), []).append((delta, body))
            case core.Put(label):
                self.put(label)
            case core.Save(saved):
                before, files.saved = files.saved, saved
                world.checks.saved(self, before)
            case core.ForgetLog(step):
                files.log = {lb: x for lb, x in files.log.items() if lb.step > step}
                self.bodies = {d: b for d, b in self.bodies.items() if d.step > step}
            case core.ForgetAttempt(label):
                files.log.pop(label, None)
            case core.Release(epoch, watermark):
                self.staged = {f: b for f, b in self.staged.items() if f.step.epoch > epoch}
                self.partials = {k: b for k, b in self.partials.items() if k[0].epoch > epoch}
                files.floor = max(files.floor, watermark)
                for v, rows in files.state.items():
                    files.state[v] = {r: x for r, x in rows.items() if data.end_of(r[0], r[1]) > watermark}
            case core.Drop(vnodes):
                for v in vnodes:
                    files.state.pop(v, None)
                    files.loaded.pop(v, None)
                    files.appended.pop(v, None)
            case core.Load(chunk):
                base = step_of(chunk.base, world.operators)
                for v, row, x in self.chunks.pop(chunk):
                    if any(step <= base for step in files.appended.get(v, ())):
                        world.checks.fail(f"{self.name} put a step of virtual node {v} and loads it with base {base}")
                    files.loaded[v] = base
                    if data.end_of(row[0], row[1]) > chunk.floor:
                        files.state.setdefault(v, {}).setdefault(row, x)
            case core.Scan(learner, session, vnodes, base):
                self.scans[(learner, session)] = [0, (-1, (0, 0, 0)), vnodes, base]
                world.after(world.rnd.randint(0, 10), self.scan, self.life, learner, session)
            case core.StopScan(learner, session):
                self.scans.pop((learner, session), None)
            case _:
                raise AssertionError(effect)

    def contribute(self, prepare: m.Prepare, fragments: tuple[m.Fragment, ...], leaders: Any) -> None:
        for leader, vnodes in leaders:
            body: dict[int, list[data.Partial]] = {}
            for f in fragments:
                staged = self.staged[f]
                for v in vnodes:
                    if v in staged:
                        body.setdefault(v, []).append(staged[v])
            message = m.Partials(prepare.step, prepare.attempt, InstanceId(self.name))
            self.world.net.send(self.name, leader, "fragment", message, body)

    def compute(self, life: int, prepare: m.Prepare, helpers: Any, chains: Any) -> None:
        if not self.alive or life != self.life:
            return
        if self.stands:
            self.world.after(self.stands_until - self.world.clock.now, self.compute, life, prepare, helpers, chains)
            return
        out = []
        self.computed: Body = {}
        for chain, vnodes in chains:
            late = fired = 0
            for v in vnodes:
                parts = [p for h in helpers for p in self.partials[(prepare.step, prepare.attempt, h)].get(v, [])]
                rows, n_late, n_fired = data.after_images(
                    prepare.step.operator, self.files.state.get(v, {}), parts, prepare.low, prepare.high
                )
                self.computed[v] = rows
                late, fired = late + n_late, fired + n_fired
            out.append((chain, vnodes, late, fired))
            me = InstanceId(self.name)
            delta = m.Delta(prepare.step, prepare.attempt, prepare.version, me, chain, vnodes, late, fired)
            self.bodies[delta] = {v: self.computed[v] for v in vnodes}
        self.take(core.Computed(prepare.step, prepare.attempt, tuple(out)))

    def copy_for(self, copy: m.Delta) -> Body:
        """The bodies of a learner's copy come from the deltas of the chains of the same attempt."""
        out: Body = {}
        for delta, body in self.bodies.items():
            if (delta.step, delta.attempt, delta.leader) == (copy.step, copy.attempt, copy.leader) and delta.chain:
                out.update(body)
        return out

    def put(self, label: Label, torn: bool = False) -> None:
        rows = [
            (v, row, x)
            for delta, body in self.files.log.get(label, [])
            for v in delta.vnodes
            for row, x in body[v].items()
        ]
        self.world.checks.put(self, label)
        if torn:
            rows = rows[: self.world.rnd.randint(0, len(rows))]
        for v, row, x in rows:
            if v in self.files.loaded and label.step <= self.files.loaded[v]:
                self.world.checks.fail(f"{self.name} puts {label} of virtual node {v} after a snapshot that has it")
            self.files.appended.setdefault(v, set()).add(label.step)
            self.files.state.setdefault(v, {})[row] = x

    def scan(self, life: int, learner: str, session: int) -> None:
        """Send the next chunk of what is there now."""
        scan = self.scans.get((learner, session))
        if not self.alive or life != self.life or scan is None:
            return
        if self.stands:
            self.world.after(self.stands_until - self.world.clock.now, self.scan, life, learner, session)
            return
        number, cursor, vnodes, base = scan
        rows = sorted((v, r) for v in vnodes for r in self.files.state.get(v, {}) if (v, r) > cursor)
        part, last = rows[:CHUNK_ROWS], len(rows) <= CHUNK_ROWS
        chunk = m.Chunk(InstanceId(self.name), session, number, base, last, 0, self.files.floor)
        self.world.net.send(self.name, learner, "bulk", chunk, [(v, r, self.files.state[v][r]) for v, r in part])
        if last:
            del self.scans[(learner, session)]
            return
        scan[0], scan[1] = number + 1, part[-1]
        self.world.after(self.world.rnd.choice((1, 2, 5, 20)), self.scan, life, learner, session)

    def read(self, generation: int, label: Label, low: int, high: int, vnodes: Any) -> list[Any] | None:
        """Fired rows, or None: refused, or gone."""
        if not self.alive or not self.core.may_read(generation, label, vnodes):
            return None
        out: list[Any] = []
        for v in vnodes:
            out += data.fired_rows(label.step.operator, self.files.state.get(v, {}), low, high)
        return out
