"""The store of durable checkpoints as an actor, the writes of an instance into it, and the loads of an instance from it.

Only whole files exist: a write that was cut short leaves no file. A write may fail and is retried under another name. A
reader may be slow. A removal of files that has begun continues after the death of its driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId
from ferry.contract.programs import Programs
from ferry.contract.results import result_of
from ferry.protocol import instance as core
from tests.sim import data

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.world import World

SCAN_ROWS = 3
"""Rows in one part of a scan."""
YOUNG = 120
"""Time that a file stays after it was first seen without a writer: a zombie may still name it."""


@dataclass(slots=True)
class Manifest:
    """A checkpoint, and the reference state of its moment."""

    name: str
    number: int
    generation: int
    commit: m.Commit
    chains: dict[int, list[str]]
    truth: data.Reference
    emitted: dict[int, tuple[CommitId, int]]
    sink: dict[int, Any]
    covered: dict[CommitId, Any]
    programs: Programs
    since: dict[int, int]
    """First epochs of the programs until then. In another life of the job a program may have another one."""

    @property
    def files(self) -> list[str]:
        return sorted({name for chain in self.chains.values() for name in chain})


@dataclass(slots=True)
class Part:
    """The content of one file: a scan of one virtual node, or changes of several."""

    rows: dict[int, data.Rows] = field(default_factory=dict)
    name: str = ""
    stored: bool = False


@dataclass(slots=True)
class StoredRows:
    """A file."""

    rows: dict[int, data.Rows]
    writer: Host
    life: int


class Store:
    """The store, which outlives all processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, StoredRows] = {}
        self.manifests: dict[str, Manifest] = {}
        self.pins: dict[str, Manifest] = {}
        """Manifests whose files a restore needs, by the name of the restore."""
        self.lost: dict[str, bool] = {}
        """Files that a fault has removed."""
        self.unneeded: dict[str, int] = {}
        """Files that no writer needs any more, with the time when that was first seen."""
        self.names = 0

    def delay(self) -> int:
        """The delay of one request."""
        rnd = self.world.rnd
        return rnd.randint(30, 150) if rnd.random() < 0.08 and not self.world.net.fair else rnd.randint(1, 6)

    def fails(self) -> bool:
        return self.world.rnd.random() < 0.1 and not self.world.net.fair

    # ---- files
    def put(self, host: Host, part: Part, then: Callable[[], None]) -> None:
        self.names += 1
        name = f"{host.name}-{host.life}-{self.names}"
        if not part.stored:
            part.name = name
        self.world.after(self.delay(), self._arrive, host, host.life, part, name, then)

    def _arrive(self, host: Host, life: int, part: Part, name: str, then: Callable[[], None]) -> None:
        """Write a part. If an earlier checkpoint still writes it, it may be written twice: the first file counts."""
        ended = not host.alive or host.life != life
        if self.fails() or (ended and self.world.rnd.random() < 0.5):
            if not ended:
                self.put(host, part, then)
            return
        self.files[name] = StoredRows(part.rows, host, life)
        if not part.stored:
            part.name, part.stored = name, True
        if not ended:
            then()

    def listed(self) -> list[Manifest]:
        """All manifests, the newest first."""
        return sorted(self.manifests.values(), key=lambda one: (one.number, one.generation), reverse=True)

    def state(self, manifest: Manifest, vnode: int) -> data.Rows | None:
        """The rows that a restore would load; None if a file is missing."""
        rows: data.Rows = {}
        for name in manifest.chains[vnode]:
            if name not in self.files:
                return None
            rows = data.apply(rows, self.files[name].rows.get(vnode, {}))
        return rows

    def verify(self, manifest: Manifest) -> None:
        """Check that a checkpoint has the whole state as of its commit id."""
        world, truth = self.world, manifest.truth
        if len(manifest.chains) != world.vnodes:
            world.checks.fail(f"{manifest.name} has virtual nodes {sorted(manifest.chains)} of {world.vnodes}")
        for v in manifest.chains:
            if gone := [name for name in manifest.chains[v] if name not in self.files and name not in self.lost]:
                world.checks.fail(f"{manifest.name} names {gone}, which are not in the store")
            have = self.state(manifest, v)
            if have is None:
                continue
            have, want = self.living(manifest, have), self.living(manifest, truth.live[v])
            if have != want:
                world.checks.fail(f"{manifest.name} has {have} for virtual node {v}, not {want}")

    def living(self, manifest: Manifest, rows: data.Rows) -> data.Rows:
        """The rows that matter after the epoch of the checkpoint."""
        highs, epoch = manifest.truth.highs, manifest.commit.commit_id.step.epoch
        ran, timers = manifest.truth.ran, self.world.timers
        return {r: x for r, x in rows.items() if r[0] in ran and data.lives(timers, r, highs, epoch)}

    # ---- removal
    def collect(self, keep: int, goes_on: Callable[[], bool]) -> Iterator[int]:
        """Remove old manifests, then unneeded files, one after the other; yields the delay of each request."""
        pinned, listed = self.pinned(), self.listed()
        for manifest in listed[keep:]:
            yield 4 * self.delay()
            self.manifests.pop(manifest.name, None)
        candidates = [name for name, file in self.files.items() if not self.in_flight(name, file)]
        yield self.delay()
        named = {name for one in self.listed() for name in one.files}
        yield self.delay()
        if self.world.collects_pinned_last:
            pinned = self.pinned()
        for name in candidates:
            if name not in named and name not in pinned:
                yield self.delay()
                if not goes_on():
                    return
                self.files.pop(name, None)

    def pinned(self) -> set[str]:
        return {name for one in self.pins.values() for name in one.files}

    def in_flight(self, name: str, file: StoredRows) -> bool:
        """Whether a file may become part of a checkpoint: its writer has it in a chain, or had it a moment ago."""
        writer, now = file.writer, self.world.clock.now
        if writer.alive and writer.life == file.life and name in writer.archive.names():
            return True
        return now - self.unneeded.setdefault(name, now) < YOUNG


# ---- what an instance writes ---------------------------------------------------------------------------------------
@dataclass(slots=True)
class Kept:
    """For one virtual node: a scan, the changes since it began, and the scan that will replace it."""

    scan: Part = field(default_factory=Part)
    whole: bool = False
    changes: list[Part] = field(default_factory=list)
    again: Kept | None = None


class Archive:
    """Scans and changes of the virtual nodes that an instance leads, in one life, for checkpoints."""

    def __init__(self, host: Host) -> None:
        self.host, self.world = host, host.world
        self.kept: dict[int, Kept] = {}
        self.shadow: dict[int, data.Rows] = {}

    def follow(self, vnodes: tuple[int, ...]) -> None:
        for v in [v for v in self.kept if v not in vnodes]:
            del self.kept[v]
            self.shadow.pop(v, None)
        for v in vnodes:
            if v not in self.kept:
                kept = self.kept[v] = Kept()
                self.begin(v, kept)

    def begin(self, vnode: int, kept: Kept) -> None:
        kept.scan.rows = {vnode: {}}
        self.world.after(self.world.rnd.randint(0, 8), self.scan, self.host.life, vnode, kept, None)

    def scan(self, life: int, vnode: int, kept: Kept, cursor: data.Row | None) -> None:
        """Scan the next rows of the current state."""
        host, mine = self.host, self.kept.get(vnode)
        if not host.alive or life != host.life or mine is None or (kept is not mine and kept is not mine.again):
            return
        state = host.files.state.get(vnode, {})
        rows = sorted(r for r in state if cursor is None or r > cursor)
        part = rows[:SCAN_ROWS]
        kept.scan.rows[vnode].update((r, state[r]) for r in part)
        if len(rows) <= SCAN_ROWS:
            kept.whole = True
        else:
            self.world.after(self.world.rnd.choice((1, 2, 5, 20)), self.scan, life, vnode, kept, part[-1])

    def changed(self, vnode: int, rows: data.Rows) -> None:
        if vnode in self.kept:
            self.shadow.setdefault(vnode, {}).update(rows)

    def names(self) -> set[str]:
        """Names of all files that a checkpoint may still name."""
        chains = [one for kept in self.kept.values() for one in (kept, kept.again) if one is not None]
        return {part.name for one in chains for part in (one.scan, *one.changes)}

    def write(self, effect: core.WriteCheckpoint) -> None:
        """Freeze the changes until now, and answer when the store has all files of the current state."""
        frozen, self.shadow = Part(self.shadow), {}
        whole = all(kept.whole for kept in self.kept.values()) or not self.world.scans_whole
        for v, kept in self.kept.items():
            for one in (kept, kept.again):
                if one is not None:
                    one.changes.append(frozen)
            if kept.again is not None and kept.again.whole:
                kept = self.kept[v] = kept.again
            if kept.again is None and self.world.rnd.random() < 0.3:
                kept.again = Kept()
                self.begin(v, kept.again)
        if not whole:
            self.answer(self.host.life, effect, b"")
            return
        chains = {v: [kept.scan, *kept.changes] for v, kept in self.kept.items()}
        parts = list({id(part): part for chain in chains.values() for part in chain}.values())

        def stored() -> None:
            if all(part.stored for part in parts):
                names = [[v, [part.name for part in chain]] for v, chain in chains.items()]
                self.answer(self.host.life, effect, json.dumps(names).encode())

        for part in parts:
            if not part.stored:
                self.world.store.put(self.host, part, stored)
        if all(part.stored for part in parts):
            stored()

    def answer(self, life: int, effect: core.WriteCheckpoint, chains: bytes) -> None:
        """Answer the driver; an instance that stands still answers later."""
        host = self.host
        if not host.alive or host.life != life:
            return
        if host.stands:
            self.world.after(10, self.answer, life, effect, chains)
            return
        self.world.to_driver(
            host, "", m.Checkpointed(InstanceId(host.name), effect.number, effect.version, effect.epoch, chains)
        )


# ---- what an instance loads ----------------------------------------------------------------------------------------
class Loading:
    """The files of a checkpoint, one after the other."""

    def __init__(self, host: Host, effect: core.Restore) -> None:
        self.host, self.world, self.commit = host, host.world, effect.commit
        self.vnodes = effect.vnodes
        pin = self.world.store.pins.get(effect.commit.origin)
        self.todo = [(v, name) for v in effect.vnodes for name in pin.chains[v]] if pin is not None else []
        self.reason = "" if pin is not None else "it is not pinned"
        results, epoch = effect.commit.results, effect.commit.commit_id.step.epoch
        highs = [result_of(results, operator).high for operator in range(len(host.floors))]
        host.floors, host.released = highs, epoch
        for v in effect.vnodes:
            for known in (host.files.loaded, host.files.appended, host.tombs):
                known.pop(v, None)
        self.world.after(self.world.store.delay(), self.go_on, host.life)

    def go_on(self, life: int) -> None:
        host, store, commit = self.host, self.world.store, self.commit
        if not host.alive or life != host.life or host.loading is not self:
            return
        if host.stands or store.fails():
            self.world.after(10, self.go_on, life)
            return
        if self.todo:
            vnode, name = self.todo.pop(0)
            if name in store.files:
                rows = {r: x for r, x in store.files[name].rows.get(vnode, {}).items() if host.lives(r)}
                host.files.state[vnode] = data.apply(host.files.state.get(vnode, {}), rows)
                self.world.after(store.delay(), self.go_on, life)
                return
            self.reason = f"{name} is missing"
            # An instance that still loads after the job has begun without it is no member.
            journal = self.world.journal
            origin = journal.origin if journal is not None and journal.restoring else ""
            if name not in store.lost and origin == commit.origin and host.ways is None:
                self.world.checks.fail(f"{host.name} needs {name} for {commit.origin}: it was removed")
        host.loading = None
        if not self.reason:
            host.stale, host.lost_at = False, -1
        host.take(core.Restored(commit, self.reason))
