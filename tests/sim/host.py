"""One simulated sidecar: performs the effects of `protocol.Instance` on a store of plain dicts.

Files outlive a crash (unless the fault loses them); staged fragments, received bodies and scans do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId, Fragment, InstanceId, Step
from ferry.protocol import instance as core
from ferry.protocol.steps import step_of
from ferry.protocol.view import Chain
from tests.sim import data
from tests.sim.events import Link
from tests.sim.store import Archive, Loading

if TYPE_CHECKING:
    from tests.sim.world import World

Body = dict[int, data.Rows]
CHUNK_ROWS = 3
NOTHING: data.Rows = {}


@dataclass(slots=True)
class Files:
    """Files on disk."""

    saved: core.InstanceRecord = field(default_factory=core.InstanceRecord)
    log: dict[CommitId, list[tuple[m.Delta, Body]]] = field(default_factory=dict)
    state: dict[int, data.Rows] = field(default_factory=dict)
    loaded: dict[int, Step] = field(default_factory=dict)
    """The base of the loaded snapshot, by virtual node."""
    appended: dict[int, set[Step]] = field(default_factory=dict)
    """Steps whose rows were applied, by virtual node. A row that is also in a loaded snapshot would be there twice."""


class Host:
    """An instance, its files and its memory."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.files = Files()
        self.alive = self.failed = False
        self.life = 0
        self.failures = 0
        """Number of failures: after each failure the restart takes longer."""
        self.lost_at = -1
        """Time of the last loss of files."""
        self.stale = False
        """The disk has older files, and the replica groups do not have that yet."""
        self.long_computes = 0
        """Number of computations that will take longer than any deadline."""
        self.was_slow = False
        self.stands_until = 0
        self.frozen_until = 0
        """Until then it sends no heartbeat either."""
        self.inbox: list[tuple[core.Event, str, Any]] = []
        self.full_until = 0
        """Until then its disk is full."""
        self.driver = ""
        self.with_earlier_life: dict[str, bool] = {}
        """Processes that are still connected with an earlier life of this name."""
        self.archive = Archive(self)
        self.loading: Loading | None = None
        self.ways: dict[str, Link] | None = None
        """For an earlier life, after a later life has taken its name: its remaining connections."""

    # ---- life and death
    def start(self) -> None:
        self.life += 1
        self.alive, self.failed = True, False
        self.archive, self.loading = Archive(self), None
        self.inbox, self.frozen_until, self.stands_until = [], 0, 0
        self.staged: dict[Fragment, dict[int, data.Partial]] = {}
        self.partials: dict[tuple[Any, ...], dict[int, list[data.Partial]]] = {}
        self.bodies: dict[CommitId, dict[tuple[InstanceId, Chain], Body]] = {}
        """By commit id, leader and chain: rows that were computed here, or came with a delta."""
        self.chunks: dict[m.Chunk, list[tuple[int, data.Row, int]]] = {}
        self.scans: dict[tuple[str, int], list[Any]] = {}
        self.left: dict[tuple[str, int], set[tuple[int, data.Row]]] = {}
        """For learners without a snapshot: rows from before they began to learn, which no delta has sent since."""
        saved, files = self.files.saved, self.files
        for v in [v for v in files.state if v not in saved.holds and v not in saved.learned]:
            self.forget(v)
        self.floors = [WATERMARK_NONE] * len(self.world.timers)
        """By id of the operator: slices that were final at this watermark are removed for good. Not on disk."""
        self.released = -1
        self.expire(saved.floors(), saved.released)
        self.tombs: dict[int, set[data.Row]] = {}
        """By learned virtual node: removed rows that a chunk may still contain."""
        logged = tuple(d for entries in self.files.log.values() for d, _ in entries)
        self.core = core.Instance(
            InstanceId(self.name), self.files.saved, logged, self.world.rules, learn_stall_ms=500,
            slow_ms=50, session_vnodes=2,
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
            self.world.after(200, self.tick, life)

    def pulse(self, life: int) -> None:
        if self.alive and life == self.life:
            if not self.frozen:
                self.world.to_driver(self, "", m.Pulse(InstanceId(self.name), 1000 if self.stands else 0))
            self.world.after(100, self.pulse, life)

    @property
    def stands(self) -> bool:
        """Whether its loop handles no messages now."""
        return self.world.clock.now < self.stands_until

    @property
    def frozen(self) -> bool:
        """Whether the whole process stands still."""
        return self.world.clock.now < self.frozen_until

    def stand(self, length: int, frozen: bool) -> None:
        """Handle no messages for a while: it computes, or the whole process stands still."""
        self.was_slow = True
        self.stands_until = max(self.stands_until, self.world.clock.now + length)
        if frozen:
            self.frozen_until = max(self.frozen_until, self.world.clock.now + length)
        self.world.after(length, self.go_on, self.life)

    def go_on(self, life: int) -> None:
        if self.alive and life == self.life and not self.stands:
            waiting, self.inbox = self.inbox, []
            newest = max((e.attempt for e, *_ in waiting if isinstance(e, m.Prepare)), default=None)
            for event, origin, body in waiting:
                if isinstance(event, m.Prepare) and newest is not None and event.attempt < newest:
                    if event.attempt.generation == newest.generation:
                        continue
                self.take(event, origin, body)

    def load_program(self, number: int, life: int) -> None:
        """A program is loaded, or cannot be."""
        if self.alive and life == self.life and not self.failed:
            fails = self.world.programs.random() < 0.05
            self.world.to_driver(self, "", m.ProgramLoaded(InstanceId(self.name), number, "no memory" if fails else ""))

    def take(self, event: core.Event, origin: str = "", body: Any = None) -> None:
        if type(event) is m.LoadProgram:
            if event.given_up:
                return
            self.world.after(self.world.programs.randint(1, 60), self.load_program, event.number, self.life)
            return
        if self.stands_until and self.stands:
            self.inbox.append((event, origin, body))
        elif self.alive and not self.failed:
            if body is not None:
                self.keep(event, body)
            effects = self.core.step(event)
            if effects:
                self.execute(effects, origin)

    def keep(self, event: core.Event, body: Any) -> None:
        """Keep the body of a message for later effects."""
        match event:
            case m.Delta(step, attempt):
                self.bodies.setdefault(CommitId(step, attempt), {})[event.leader, event.chain] = body
            case m.Partials(step, attempt, helper):
                self.partials[(step, attempt, helper)] = body
            case m.Chunk():
                self.chunks[event] = body

    def send(self, to: str, lane: str, message: Any, body: Any) -> None:
        net = self.world.net
        if self.ways is not None:
            link = self.ways.get(to)
            if link is not None and link.up:
                net.send(self.name, to, lane, message, body, link)
        elif to in self.with_earlier_life:
            net.hold(self.name, to, lane, message, body)
        else:
            net.send(self.name, to, lane, message, body)

    # ---- effects
    def execute(self, effects: list[core.Effect], origin: str) -> None:
        world, story, counts = self.world, self.world.story, self.world.counts
        watched = self.full_until or counts
        for effect in effects:
            kind = type(effect)
            if watched and (self.full_until or kind.__name__ in counts):
                fate = world.before(kind.__name__, self)
                if fate in ("torn", "fails") and isinstance(effect, core.Apply):
                    self.apply(effect.commit_id, torn=True)
                if fate == "fails":
                    # It has reported the failure to the driver, and does nothing more.
                    self.life, self.failed, self.failures = self.life + 1, True, self.failures + 1
                    world.after(20, world.crash, self)
                    return
                if fate:
                    world.crash(self)
                    return
            story.append((world.clock.now, self.name, effect))
            if kind is core.Send:
                if effect.to == core.DRIVER:
                    world.to_driver(self, origin, effect.message)
                else:
                    self.send(effect.to, "bulk", effect.message, None)
            else:
                PERFORM[kind](self, effect)
            if not self.alive or self.failed:
                return

    def begin_compute(self, effect: core.Compute) -> None:
        world = self.world
        takes = world.rnd.randint(0, 3)
        if self.long_computes:
            self.long_computes, takes = self.long_computes - 1, 5000
            self.stand(takes, frozen=False)
        world.after(takes, self.compute, self.life, effect.prepare, effect.helpers, effect.chains)

    def send_delta(self, effect: core.SendDelta) -> None:
        delta = effect.delta
        found = self.bodies[CommitId(delta.step, delta.attempt)]
        body = found.get((delta.leader, delta.chain))
        if body is None:  # The body of a learner's copy comes from the deltas of the chains of the same attempt.
            body = {
                v: rows for (leader, chain), part in found.items() if leader == delta.leader for v, rows in part.items()
            }
        if len(body) != len(delta.vnodes):
            body = {v: body[v] for v in delta.vnodes}
        self.send(effect.to, "delta", delta, body)

    def log(self, effect: core.LogDelta) -> None:
        delta = effect.delta
        commit_id = CommitId(delta.step, delta.attempt)
        self.files.log.setdefault(commit_id, []).append((delta, self.bodies[commit_id][delta.leader, delta.chain]))

    def save(self, effect: core.Save) -> None:
        before, self.files.saved = self.files.saved, effect.saved
        known = {pair for program in before.programs for pair in program.altered}
        newest = effect.saved.programs[-1].number if effect.saved.programs else 0
        for program in before.programs if self.world.drops_taken_back else ():
            if program.number > newest:
                self.take_back([after for after, _ in program.altered])
        for program in effect.saved.programs:
            for pair in (pair for pair in program.altered if pair not in known):
                self.derive(*pair)
        self.world.checks.saved(self, before)

    def derive(self, after: int, old: int) -> None:
        """A table brings an altered operator: its rows are the rows of the operator before."""
        for v, rows in self.files.state.items():
            self.files.state[v] = data.derived(rows, after, old)
            if self.archive.kept:
                mine = {r: x for r, x in self.files.state[v].items() if r[0] == after}
                self.archive.changed(v, {r: None for r in rows if r[0] == after} | mine)

    def take_back(self, operators: Sequence[int]) -> None:
        """The program of these altered operators is taken back: another try derives their rows again."""
        for v, rows in self.files.state.items():
            gone = [r for r in rows if r[0] in operators]
            for r in gone:
                del rows[r]
            if gone and self.archive.kept:
                self.archive.changed(v, dict.fromkeys(gone))

    def forget_log(self, effect: core.ForgetLog) -> None:
        files, step = self.files, effect.step
        files.log = {lb: x for lb, x in files.log.items() if lb.step > step}
        self.bodies = {lb: b for lb, b in self.bodies.items() if lb.step > step}

    def forget_attempt(self, effect: core.ForgetAttempt) -> None:
        self.files.log.pop(effect.commit_id, None)

    def release(self, effect: core.Forget) -> None:
        epoch = effect.epoch
        self.staged = {f: b for f, b in self.staged.items() if f.step.epoch > epoch}
        self.partials = {k: b for k, b in self.partials.items() if k[0].epoch > epoch}
        self.expire(effect.watermarks, epoch)

    def expire(self, watermarks: Sequence[int], released: int) -> None:
        reached = [*watermarks, *self.floors[len(watermarks) :]]
        higher = [max(pair) for pair in zip(self.floors, reached, strict=True)]
        if higher != self.floors or released > self.released:
            self.floors, self.released = higher, max(self.released, released)
            state = self.files.state
            for v, rows in state.items():
                state[v] = {r: x for r, x in rows.items() if self.lives(r)}

    def lives(self, row: data.Row) -> bool:
        """Final slices stay removed, also when an old Apply is repeated."""
        return data.lives(self.world.timers, row, self.floors, self.released)

    def drop(self, effect: core.Drop) -> None:
        if self.loading is not None:
            self.loading.todo = [(v, name) for v, name in self.loading.todo if v not in effect.vnodes]
        for v in effect.vnodes:
            self.forget(v)

    def erase(self, effect: core.Erase) -> None:
        for v in list(self.files.state):
            self.forget(v)
        self.files.log = {}  # Bodies of messages that wait for their table stay.
        self.floors, self.released = [WATERMARK_NONE] * len(self.world.timers), -1
        self.archive, self.loading, self.scans, self.left = Archive(self), None, {}, {}

    def forget(self, vnode: int) -> None:
        self.files.state.pop(vnode, None)
        self.files.loaded.pop(vnode, None)
        self.files.appended.pop(vnode, None)
        self.tombs.pop(vnode, None)

    def load(self, effect: core.LoadChunk) -> None:
        files, chunk = self.files, effect.chunk
        base = step_of(chunk.base, self.files.saved.programs)
        for v, row, x in self.chunks.pop(chunk):
            if any(step <= base for step in files.appended.get(v, ())):
                self.world.checks.fail(f"{self.name} applied a step of virtual node {v} and loads it with base {base}")
            files.loaded[v] = base
            for mine in (row, *self.derived_of(row)):
                if self.lives(mine) and mine not in self.tombs.get(v, ()):
                    files.state.setdefault(v, {}).setdefault(mine, x)

    def derived_of(self, row: data.Row, epoch: int | None = None) -> list[data.Row]:
        """Rows of altered operators that a row brings: of a snapshot which began before the table, or of a late delta."""
        if not (self.world.derives_chunks if epoch is None else self.world.derives_late_deltas):
            return []
        programs = [p for p in self.files.saved.programs if epoch is None or epoch < p.since]
        pairs = (pair for p in programs for pair in p.altered if not p.beside)
        return [(after, *row[1:]) for after, old in pairs if old == row[0]]

    def begin_scan(self, effect: core.BeginSnapshot) -> None:
        world = self.world
        first = m.Chunk(InstanceId(self.name), effect.session, 0, effect.base, False, 0, WATERMARK_NONE)
        self.send(effect.learner, world.rnd.choice(("bulk", "delta")), first, [])
        self.scans[(effect.learner, effect.session)] = [1, None, effect.vnodes, effect.base]
        if effect.at_window:
            rows = {(v, r) for v in effect.vnodes for r in self.files.state.get(v, {})}
            self.left[(effect.learner, effect.session)] = rows
        world.after(world.rnd.randint(0, 10), self.scan, self.life, effect.learner, effect.session)

    def stop_scan(self, effect: core.StopScan) -> None:
        self.scans.pop((effect.learner, effect.session), None)
        self.left.pop((effect.learner, effect.session), None)

    def contribute(self, effect: core.Contribute) -> None:
        prepare = effect.prepare
        message = m.Partials(prepare.step, prepare.attempt, InstanceId(self.name))
        staged = [self.staged[f] for f in effect.fragments]
        for leader, vnodes in effect.leaders:
            body: dict[int, list[data.Partial]] = {}
            for parts in staged:
                for v, part in parts.items():
                    if v in vnodes:
                        body.setdefault(v, []).append(part)
            self.send(leader, "fragment", message, body)

    def compute(self, life: int, prepare: m.Prepare, helpers: Any, chains: Any) -> None:
        if not self.alive or life != self.life:
            return
        if self.stands:
            self.world.after(self.stands_until - self.world.clock.now, self.compute, life, prepare, helpers, chains)
            return
        out = []
        step, attempt, low, high = prepare.step, prepare.attempt, prepare.low, prepare.high
        if any((step, attempt, h) not in self.partials for h in helpers):
            return  # Released while the instance stood still: a real instance computes before it handles other messages.
        if self.world.code.random() < self.world.code_fails and not self.world.net.fair:
            self.take(core.ComputeFailed(step, attempt, "user code: it failed"))
            return
        partials = [self.partials[(step, attempt, h)] for h in helpers]
        node = self.world.node_of(self.files.saved.programs, step)
        mine = self.bodies.setdefault(CommitId(step, attempt), {})
        for chain, vnodes in chains:
            late = fired = 0
            body: Body = {}
            for v in vnodes:
                parts = [p for heard in partials for p in heard.get(v, ())]
                state = self.files.state.get(v, NOTHING)
                body[v], n_late, n_fired = data.after_images(node, step.epoch, state, parts, low, high)
                late, fired = late + n_late, fired + n_fired
            out.append((chain, vnodes, late, fired))
            mine[InstanceId(self.name), chain] = body
        self.take(core.Computed(step, attempt, tuple(out)))

    def begin_apply(self, effect: core.Apply) -> None:
        self.apply(effect.commit_id)

    def apply(self, commit_id: CommitId, torn: bool = False) -> None:
        files = self.files
        bodies = [(v, body[v]) for delta, body in files.log.get(commit_id, ()) for v in delta.vnodes if body[v]]
        self.world.checks.applies(self, commit_id)
        if torn:
            rows = [(v, {row: x}) for v, part in bodies for row, x in part.items()]
            bodies = rows[: self.world.rnd.randint(0, len(rows))]
        for v, part in bodies:
            if v in files.loaded and commit_id.step <= files.loaded[v]:
                self.world.checks.fail(
                    f"{self.name} applies {commit_id} of virtual node {v} after a snapshot that has it"
                )
            files.appended.setdefault(v, set()).add(commit_id.step)
            part = part | {row: x for r, x in part.items() for row in self.derived_of(r, commit_id.step.epoch)}
            live = {r: x for r, x in part.items() if self.lives(r)}
            files.state[v] = data.apply(files.state.get(v, {}), live)
            for left in self.left.values():
                left.difference_update((v, r) for r in part)
            if self.archive.kept:
                self.archive.changed(v, live)
            if self.world.keeps_tombs:
                self.tombs.setdefault(v, set()).update(r for r, x in live.items() if x is None)

    def scan(self, life: int, learner: str, session: int) -> None:
        """Send the next chunk of the current state."""
        scan = self.scans.get((learner, session))
        if not self.alive or life != self.life or scan is None:
            return
        if self.stands:
            self.world.after(self.stands_until - self.world.clock.now, self.scan, life, learner, session)
            return
        number, cursor, vnodes, base = scan
        left = self.left.get((learner, session))
        if left and self.world.waits_out and any(r in self.files.state.get(v, {}) for v, r in left):
            self.send(
                learner, "bulk", m.Chunk(InstanceId(self.name), session, number, base, False, 0, WATERMARK_NONE), []
            )
            scan[0] = number + 1
            self.world.after(self.world.rnd.choice((5, 20, 100)), self.scan, life, learner, session)
            return
        # Newer operators first: a learner derives the rows of the operators before them.
        order = (lambda at: (at[0], -at[1][0], at[1])) if self.world.sends_altered_first else (lambda at: at)
        there = ((v, r) for v in vnodes for r in self.files.state.get(v, {}))
        rows = sorted((at for at in there if cursor is None or order(at) > order(cursor)), key=order)
        if left is not None:
            rows = []
        part, last = rows[:CHUNK_ROWS], len(rows) <= CHUNK_ROWS
        chunk = m.Chunk(InstanceId(self.name), session, number, base, last, 0, WATERMARK_NONE)
        self.send(learner, "bulk", chunk, [(v, r, self.files.state[v][r]) for v, r in part])
        if last:
            del self.scans[(learner, session)]
            self.left.pop((learner, session), None)
            return
        scan[0], scan[1] = number + 1, part[-1]
        self.world.after(self.world.rnd.choice((1, 2, 5, 20)), self.scan, life, learner, session)

    # ---- checkpoints
    def follow(self, effect: core.Archive) -> None:
        if self.world.stored:
            self.archive.follow(effect.vnodes)

    def write_checkpoint(self, effect: core.WriteCheckpoint) -> None:
        self.archive.write(effect)

    def load_ahead(self, effect: core.LoadAhead) -> None:
        """A part is loaded at once; a restore may never request it."""
        pin = self.world.store.pins.get(effect.origin) if self.loading is None else None
        for v in effect.vnodes if pin is not None else ():
            if (file := self.world.store.files.get(pin.chains[v][0])) is not None:
                self.files.state[v] = data.apply(self.files.state.get(v, {}), file.rows.get(v, {}))

    def restore(self, effect: core.Restore) -> None:
        self.loading = Loading(self, effect)

    def read(self, generation: int, commit_id: CommitId, low: int, high: int, vnodes: Any) -> list[Any] | None:
        """Fired rows, or None: refused, or gone."""
        if not self.alive or not self.core.may_read(generation, commit_id, vnodes):
            return None
        out: list[Any] = []
        node = self.world.node_of(self.files.saved.programs, commit_id.step)
        for v in vnodes:
            out += data.fired_rows(node, commit_id.step.epoch, self.files.state.get(v, {}), low, high)
        return out


PERFORM: dict[type, Callable[[Host, Any], None]] = {
    core.Contribute: Host.contribute,
    core.Compute: Host.begin_compute,
    core.SendDelta: Host.send_delta,
    core.LogDelta: Host.log,
    core.Apply: Host.begin_apply,
    core.Save: Host.save,
    core.ForgetLog: Host.forget_log,
    core.ForgetAttempt: Host.forget_attempt,
    core.Forget: Host.release,
    core.Drop: Host.drop,
    core.Erase: Host.erase,
    core.LoadChunk: Host.load,
    core.BeginSnapshot: Host.begin_scan,
    core.StopScan: Host.stop_scan,
    core.Archive: Host.follow,
    core.WriteCheckpoint: Host.write_checkpoint,
    core.LoadAhead: Host.load_ahead,
    core.Restore: Host.restore,
}
