"""Snapshots at both ends: what a learner still needs, and what a leader is sending.

    learner:  wanted --> Fetch --> Chunk 0, 1, ... last --> whole --> Warm after every commit --> in sync
                ^                     | gap, stall, lost leader
                '---------------------'  (begin again, from nothing)

What is learned of a leader is cut into sessions of a few virtual nodes each, one after the other, so that what has come
stays: a move of hours loses minutes when a connection breaks.

A snapshot is a scan begun when the leader had committed `base`. It is what the learner's label says once every delta after
`base` was put here, without a gap, and none up to `base`: rows are appended, so a step that came by both ways would
count twice. Hence a learner drops what it put before the first chunk, and takes no chunk of a leader that is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.protocol.instance_io import DRIVER, BeginSnapshot, Drop, Effect, LoadChunk, StopScan
from ferry.protocol.rules import Rules
from ferry.protocol.sending import Send
from ferry.protocol.steps import step_of, successor

SESSION_VNODES = 32
"""Virtual nodes that come by one snapshot: what has to begin again together."""

SESSIONS_AT_ONCE = 2
"""Snapshots that are asked of one leader at one time: while one ends the next one is on its way."""


@dataclass(slots=True)
class Session:
    """One snapshot being received."""

    number: int
    """0 while it is not asked for: those before it come first."""
    leader: InstanceId
    vnodes: tuple[int, ...]
    version: Version
    """The table under which it was begun."""
    progress: int
    """When the last chunk came."""
    next_chunk: int = 0
    base: CommitId | None = None
    complete: bool = False
    warm: bool = False
    """Whole as of the committed step of this instance."""
    since: Step | None = None
    put: Step | None = None
    """Deltas of the steps `since`..`put`, without a gap, were put here."""
    early: Step | None = None
    """The last step of which something was put here before the first chunk."""
    ahead: Step | None = None
    """The leader had committed this step, and this instance had not: begin again once it has."""


class Learning:
    """The learner's side: one session per leader and occasion."""

    def __init__(
        self,
        me: InstanceId,
        operators: int,
        rules: Rules,
        stall_ms: int,
        do: Callable[[Effect], None],
        whole: Callable[[], None] = lambda: None,
        session_vnodes: int = SESSION_VNODES,
    ) -> None:
        self.me = me
        self.operators = operators
        self.rules = rules
        self.stall_ms = stall_ms
        self.do = do
        self.whole = whole
        self.session_vnodes = session_vnodes
        self.sessions: list[Session] = []
        self.version = Version(0, 0)
        self.count = 0
        self.now = 0
        self.announced: dict[InstanceId, int] = {}
        """How many chunks of each leader the driver was told of."""

    def vnodes(self, complete: bool = False) -> dict[int, bool]:
        """Virtual nodes being learned; with `complete` only those whose snapshot is whole."""
        return {v: True for s in self.sessions if s.complete or not complete for v in s.vnodes}

    @property
    def warm(self) -> dict[int, bool]:
        """Virtual nodes that are held whole as of the committed step."""
        return {v: True for s in self.sessions if s.warm for v in s.vnodes}

    def keep(self, wanted: Mapping[int, InstanceId], version: Version) -> list[int]:
        """A new table: go on with what is still learned from the same leader; the virtual nodes that have to be begun."""
        self.version = version
        kept = []
        for s in self.sessions:
            still = tuple(v for v in s.vnodes if wanted.get(v) == s.leader)
            # A snapshot under way still brings all its virtual nodes: with fewer wanted it has to begin again.
            if still == s.vnodes or (still and (s.complete or not s.number)):
                s.vnodes = still
                kept.append(s)
            elif s.leader in self.announced:
                # What goes is no measure of what still comes.
                self.announced[s.leader] = max(0, self.announced[s.leader] - s.next_chunk)
        self.sessions = kept
        self._ask_next()
        covered = self.vnodes()
        return [v for v in wanted if v not in covered]

    def begin(self, leader: InstanceId, vnodes: tuple[int, ...]) -> None:
        """Ask the leader for snapshots, one after the other."""
        for at in range(0, len(vnodes), self.session_vnodes):
            piece = vnodes[at : at + self.session_vnodes]
            self.sessions.append(Session(0, leader, piece, self.version, self.now))
        self._ask_next()

    def _ask_next(self) -> None:
        under_way: dict[InstanceId, int] = {}
        for s in self.sessions:
            under_way[s.leader] = under_way.get(s.leader, 0) + (s.number > 0 and not s.complete)
        for s in [x for x in self.sessions if not x.number]:
            if under_way[s.leader] < SESSIONS_AT_ONCE:
                under_way[s.leader] += 1
                self.count += 1
                s.number, s.version, s.progress = self.count, self.version, self.now
                self.do(Send(s.leader, m.Fetch(self.me, self.version, self.count, s.vnodes)))

    def _again(self, s: Session) -> None:
        self.sessions.remove(s)
        if self.rules.drop_stale:
            self.do(Drop(s.vnodes))
        # Before those that were not asked for yet.
        self.sessions.insert(0, Session(0, s.leader, s.vnodes, self.version, self.now))
        self._ask_next()

    def on_chunk(self, chunk: m.Chunk, committed: CommitId | None) -> None:
        """Load the next chunk; a gap begins the snapshot again."""
        s = next((x for x in self.sessions if x.number == chunk.session and x.leader == chunk.leader), None)
        if s is None or s.complete or s.ahead is not None or chunk.number < s.next_chunk:
            return
        if chunk.number > s.next_chunk or (s.next_chunk and chunk.base != s.base):
            self._again(s)
            return
        if chunk.number == 0 and self.rules.once and not self._apart(s, chunk, committed):
            return
        s.next_chunk += 1
        s.base, s.progress = chunk.base, self.now
        self.do(LoadChunk(chunk))
        if chunk.last:
            s.complete = True
            self._ask_next()
            self.report(committed)

    def _apart(self, s: Session, chunk: m.Chunk, committed: CommitId | None) -> bool:
        """Whether the snapshot that begins and the deltas that were put here have nothing in common, or are made so."""
        base, now = step_of(chunk.base, self.operators), step_of(committed, self.operators)
        if base > now:
            s.ahead = base
            return False
        # With the leader behind, what lies between was put here before this session, and would be missed at its end.
        if (base < now and self.rules.missed_delta) or (s.early is not None and s.early > base):
            self._again(s)
            return False
        if s.early is not None:
            self.do(Drop(s.vnodes))
        return True

    def put(self, step: Step, deltas: Sequence[m.Delta]) -> None:
        """A step was put; which sessions had its delta?"""
        for s in self.sessions:
            s.warm = False
            if s.next_chunk == 0 and any(not set(s.vnodes).isdisjoint(d.vnodes) for d in deltas):
                s.early = step
            if not any(d.leader == s.leader and not d.chain and _covers(d.vnodes, s.vnodes) for d in deltas):
                continue  # It may come late; a gap shows with the next one.
            if s.put is None or successor(s.put, self.operators) != step:
                s.since = step
            s.put = step

    def wants(self, late: m.Delta) -> bool:
        """Whether the delta of the committed step is still missing here, for all that it brings.

        A snapshot begun after that step has it. It is put as a whole or not at all: since it was sent, one of its virtual
        nodes may have another leader, and come by another snapshot, or be held.
        """
        mine = [s for s in self.sessions if s.leader == late.leader and not set(s.vnodes).isdisjoint(late.vnodes)]
        if self.rules.once and any(s.next_chunk and step_of(s.base, self.operators) >= late.step for s in mine):
            return False
        missing = [s for s in mine if s.put != late.step and _covers(late.vnodes, s.vnodes)]
        return bool(missing) and _covers(tuple(v for s in missing for v in s.vnodes), late.vnodes)

    def report(self, committed: CommitId | None) -> None:
        """Tell the driver which snapshots are whole as of the committed step; begin those again that never will be."""
        now = step_of(committed, self.operators)
        for s in [x for x in self.sessions if x.ahead is not None and x.ahead <= now]:
            self._again(s)
        for s in [x for x in self.sessions if x.complete]:
            base = step_of(s.base, self.operators)
            if now < base:
                continue  # Only without the rule `once`: whole as soon as this instance commits that step, too.
            gapless = s.since is not None and s.since <= successor(base, self.operators)
            reached = s.put if gapless and s.put is not None else base
            if reached < now and self.rules.missed_delta:
                if successor(reached, self.operators) != now:
                    self._again(s)
                continue  # Else the delta of the committed step is on its way.
            s.warm = True
            self.whole()
            self.do(Send(DRIVER, m.Warm(self.me, committed, s.vnodes, s.version)))

    def peer_lost(self, peer: InstanceId) -> None:
        """Snapshots from that leader begin again."""
        self.announced.pop(peer, None)
        for s in [x for x in self.sessions if x.leader == peer and x.number and not x.complete]:
            self._again(s)

    def tick(self, now: int) -> None:
        """Begin snapshots again that do not move; tell the driver of those that do."""
        self.now = now
        for s in [x for x in self.sessions if x.number and not x.complete and now - x.progress > self.stall_ms]:
            self._again(s)
        chunks: dict[InstanceId, int] = {}
        for s in self.sessions:
            chunks[s.leader] = chunks.get(s.leader, 0) + s.next_chunk
        for leader, count in chunks.items():
            if count > self.announced.get(leader, 0):
                self.do(Send(DRIVER, m.Learned(self.me, leader, count)))
        self.announced = {leader: max(count, self.announced.get(leader, 0)) for leader, count in chunks.items()}


class Teaching:
    """The leader's side: the scans under way."""

    def __init__(self, do: Callable[[Effect], None]) -> None:
        self.do = do
        self.scans: dict[tuple[InstanceId, int], tuple[int, ...]] = {}
        self.heard: dict[InstanceId, int] = {}
        """The last session that a learner has asked for, while it is connected."""

    def begin(self, fetch: m.Fetch, base: CommitId | None) -> None:
        """A new request replaces those for the same virtual nodes; one that came twice would mix two scans in a session."""
        if fetch.session <= self.heard.get(fetch.learner, 0):
            return
        self.heard[fetch.learner] = fetch.session
        wanted = dict.fromkeys(fetch.vnodes, True)
        self.stop(lambda learner, vnodes: learner == fetch.learner and any(v in wanted for v in vnodes))
        self.scans[(fetch.learner, fetch.session)] = fetch.vnodes
        self.do(BeginSnapshot(fetch.learner, fetch.session, fetch.vnodes, base))

    def peer_lost(self, peer: InstanceId) -> None:
        """Its next life counts its sessions anew."""
        self.heard.pop(peer, None)
        self.stop(lambda learner, _: learner == peer)

    def stop(self, unwanted: Callable[[InstanceId, tuple[int, ...]], bool]) -> None:
        """End the scans for which `unwanted` (learner, vnodes) holds."""
        for key in [k for k, v in self.scans.items() if unwanted(k[0], v)]:
            del self.scans[key]
            self.do(StopScan(*key))


def _covers(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return have == want or set(want) <= set(have)
