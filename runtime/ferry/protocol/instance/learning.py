"""Snapshots at both ends: what a learner still needs, and what a leader is sending.

    learner:  wanted --> Fetch --> Chunk 0, 1, ... last --> whole --> Warm after every commit --> in sync
                ^                     | gap, stall, lost leader
                '---------------------'  (begin again, from nothing)

The copy from one leader is cut into sessions of a few virtual nodes each, one after the other, so that finished
sessions stay: a move of hours loses minutes when a connection breaks.

A snapshot is a scan begun when the leader had committed `base`. It reaches the learner's commit id once every delta
after `base` was applied here, without a gap, and none up to `base`: rows are appended, so a step that came both ways
would count twice. Hence a learner drops the rows that it applied before the first chunk, and takes no chunk of a leader
with another committed step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.routing import Version
from ferry.protocol.instance.io import BeginSnapshot, Drop, LoadChunk, StopScan
from ferry.protocol.instance.state import InstanceState
from ferry.protocol.io import Send
from ferry.protocol.steps import step_of, successor

LEARN_STALL_MS = 10_000
"""A snapshot without progress for this long is requested again."""

SESSION_VNODES = 32
"""Virtual nodes per snapshot: they have to begin again together."""

SESSIONS_AT_ONCE = 2
"""Number of snapshots requested from one leader at a time: while one ends the next one is on its way."""


@dataclass(slots=True)
class Session:
    """One snapshot that is being received."""

    number: int
    """0 until it is requested: earlier sessions come first."""
    leader: InstanceId
    vnodes: tuple[int, ...]
    version: Version
    """The table under which it began."""
    progress: int
    """When the last chunk came."""
    next_chunk: int = 0
    base: CommitId | None = None
    complete: bool = False
    warm: bool = False
    """Complete as of the committed step of this instance."""
    since: Step | None = None
    applied: Step | None = None
    """Deltas of the steps `since`..`applied` were applied here, without a gap."""
    early: Step | None = None
    """The last step with changes applied here before the first chunk."""
    ahead: Step | None = None
    """The leader had committed this step, and this instance had not: begin again once it has."""
    at_window: bool = False
    """It carries no rows: it ends when the leader's state as of `base` has expired."""

    def anew(self, version: Version, now: int) -> Session:
        """The same session, from the beginning."""
        return Session(0, self.leader, self.vnodes, version, now, at_window=self.at_window)


class Learning:
    """The learner's side: one session per leader and occasion."""

    def __init__(
        self, state: InstanceState, stall_ms: int = LEARN_STALL_MS, session_vnodes: int = SESSION_VNODES
    ) -> None:
        self._state = state
        self._stall_ms = stall_ms
        self._session_vnodes = session_vnodes
        self._sessions: list[Session] = []
        self._version = Version(0, 0)
        self._count = 0
        self._announced: dict[InstanceId, int] = {}
        """Number of chunks of each leader that the driver knows of."""

    def vnodes(self, complete: bool = False) -> dict[int, bool]:
        """Virtual nodes being learned; with `complete` only those with a complete snapshot."""
        return {v: True for s in self._sessions if s.complete or not complete for v in s.vnodes}

    @property
    def warm(self) -> dict[int, bool]:
        """Virtual nodes held completely as of the committed step."""
        return {v: True for s in self._sessions if s.warm for v in s.vnodes}

    def keep(self, wanted: Mapping[int, InstanceId], version: Version) -> list[int]:
        """A new table: continue copies from the same leader; returns the virtual nodes that have to begin."""
        self._version = version
        kept = []
        for s in self._sessions:
            # Complete copies stay, from whichever leader: the driver may know of them.
            still = tuple(
                v for v in s.vnodes if wanted.get(v) == s.leader and (s.complete or self._at_window(v) == s.at_window)
            )
            # A snapshot under way brings all its virtual nodes: with fewer wanted it has to begin again.
            if still == s.vnodes or (still and (s.complete or not s.number)):
                s.vnodes = still
                kept.append(s)
            else:
                self._goes(s)
        self._sessions = kept
        self._ask_next()
        covered = self.vnodes()
        return [v for v in wanted if v not in covered]

    def begin(self, leader: InstanceId, vnodes: tuple[int, ...]) -> None:
        """Request snapshots from the leader, one after the other; copies at the boundary of a window delay none."""
        for kind in (False, True):
            mine = tuple(v for v in vnodes if self._at_window(v) == kind)
            for at in range(0, len(mine), self._session_vnodes):
                piece = mine[at : at + self._session_vnodes]
                self._sessions.append(Session(0, leader, piece, self._version, self._state.now, at_window=kind))
        self._ask_next()

    def _at_window(self, vnode: int) -> bool:
        view = self._state.view
        return view is not None and (vnode, self._state.me) in view.at_window

    def _ask_next(self) -> None:
        under_way: dict[InstanceId, int] = {}
        for s in self._sessions:
            busy = s.number > 0 and not s.complete and not s.at_window
            under_way[s.leader] = under_way.get(s.leader, 0) + busy
        for s in [x for x in self._sessions if not x.number]:
            if s.at_window or under_way[s.leader] < SESSIONS_AT_ONCE:
                under_way[s.leader] += not s.at_window
                self._count += 1
                s.number, s.version, s.progress = self._count, self._version, self._state.now
                self._state.do(Send(s.leader, m.Fetch(self._state.me, self._version, self._count, s.vnodes)))

    def _again(self, s: Session) -> None:
        self._sessions.remove(s)
        if s.at_window:  # Its chunks are signs of life without rows.
            self._goes(s)
        if self._state.rules.drop_stale:
            self._state.do(Drop(s.vnodes))
        # Before sessions that were not requested yet.
        self._sessions.insert(0, s.anew(self._version, self._state.now))
        self._ask_next()

    def _goes(self, s: Session) -> None:
        """A removed session must not count as progress of later ones."""
        if s.leader in self._announced:
            self._announced[s.leader] = max(0, self._announced[s.leader] - s.next_chunk)

    def on_chunk(self, chunk: m.Chunk) -> None:
        """Load the next chunk; after a gap the snapshot begins again."""
        s = next((x for x in self._sessions if x.number == chunk.session and x.leader == chunk.leader), None)
        if s is None or s.complete or s.ahead is not None or chunk.number < s.next_chunk:
            return
        if chunk.number > s.next_chunk or (s.next_chunk and chunk.base != s.base):
            self._again(s)
            return
        if chunk.number == 0 and self._state.rules.once and not self._made_apart(s, chunk):
            return
        s.next_chunk += 1
        s.base, s.progress = chunk.base, self._state.now
        self._state.do(LoadChunk(chunk))
        if chunk.last:
            s.complete = True
            self._ask_next()
            self.report()

    def _made_apart(self, s: Session, chunk: m.Chunk) -> bool:
        """Whether the new snapshot and the deltas applied here are disjoint, or are made so."""
        base, now = (
            step_of(chunk.base, self._state.saved.programs),
            step_of(self._state.saved.committed, self._state.saved.programs),
        )
        if base > now:
            s.ahead = base
            return False
        # If the leader is behind, this session lacks the deltas in between, which were applied here before it began.
        if (base < now and self._state.rules.missed_delta) or (s.early is not None and s.early > base):
            self._again(s)
            return False
        if s.early is not None:
            self._state.do(Drop(s.vnodes))
        return True

    def applied(self, step: Step, deltas: Sequence[m.Delta]) -> None:
        """A step was applied: update the sessions that had its delta."""
        for s in self._sessions:
            s.warm = False
            if s.next_chunk == 0 and any(not set(s.vnodes).isdisjoint(d.vnodes) for d in deltas):
                s.early = step
            if not any(d.leader == s.leader and not d.chain and _covers(d.vnodes, s.vnodes) for d in deltas):
                continue  # Its delta may come late; a gap shows with the next one.
            if s.applied is None or successor(s.applied, self._state.saved.programs) != step:
                s.since = step
            s.applied = step

    def wants(self, late: m.Delta) -> bool:
        """Whether all virtual nodes of the delta of the committed step still miss it here.

        A snapshot begun after that step includes it. The delta is applied as a whole or not at all: since it was sent,
        one of its virtual nodes may have got another leader, and come by another snapshot, or be held.
        """
        mine = [s for s in self._sessions if s.leader == late.leader and not set(s.vnodes).isdisjoint(late.vnodes)]
        if self._state.rules.once and any(
            s.next_chunk and step_of(s.base, self._state.saved.programs) >= late.step for s in mine
        ):
            return False
        missing = [s for s in mine if s.applied != late.step and _covers(late.vnodes, s.vnodes)]
        return bool(missing) and _covers(tuple(v for s in missing for v in s.vnodes), late.vnodes)

    def report(self) -> None:
        """Report complete snapshots as of the committed step to the driver; restart snapshots that cannot become
        complete."""
        now = step_of(self._state.saved.committed, self._state.saved.programs)
        for s in [x for x in self._sessions if x.ahead is not None and x.ahead <= now]:
            self._again(s)
        for s in [x for x in self._sessions if x.complete or (x.at_window and x.next_chunk)]:
            base = step_of(s.base, self._state.saved.programs)
            if now < base:
                continue  # Only without the rule `once`: complete as soon as this instance commits that step, too.
            gapless = s.since is not None and s.since <= successor(base, self._state.saved.programs)
            reached = s.applied if gapless and s.applied is not None else base
            if reached < now and self._state.rules.missed_delta:
                if successor(reached, self._state.saved.programs) != now:
                    self._again(s)
                continue  # Else the delta of the committed step is on its way.
            if not s.complete:
                continue  # Checked early: a delta that is missing now delays the end.
            s.warm = True
            self._save_learned()
            self._state.tell(m.Warm(self._state.me, self._state.saved.committed, s.vnodes, s.version))

    def _save_learned(self) -> None:
        """Recorded before the report: the driver may make this instance a member, and it may crash before it gets the
        table."""
        learned = tuple(sorted(self.warm))
        if learned != self._state.saved.learned:
            self._state.save(learned=learned)

    def peer_lost(self, peer: InstanceId) -> None:
        """Snapshots from that leader begin again."""
        self._announced.pop(peer, None)
        for s in [x for x in self._sessions if x.leader == peer and x.number and not x.complete]:
            self._again(s)

    def tick(self) -> None:
        """Restart snapshots without progress; report progress to the driver."""
        now = self._state.now
        for s in [x for x in self._sessions if x.number and not x.complete and now - x.progress > self._stall_ms]:
            self._again(s)
        chunks: dict[InstanceId, int] = {}
        for s in self._sessions:
            chunks[s.leader] = chunks.get(s.leader, 0) + s.next_chunk
        for leader, count in chunks.items():
            if count > self._announced.get(leader, 0):
                self._state.tell(m.Learned(self._state.me, leader, count))
        self._announced = {leader: max(count, self._announced.get(leader, 0)) for leader, count in chunks.items()}


class Teaching:
    """The leader's side: the scans under way."""

    def __init__(self, state: InstanceState) -> None:
        self._state = state
        self._scans: dict[tuple[InstanceId, int], tuple[int, ...]] = {}
        self._heard: dict[InstanceId, int] = {}
        """The last session that a connected learner has requested."""

    def begin(self, fetch: m.Fetch) -> None:
        """Start a scan. It replaces scans of the same virtual nodes; a repeated request would mix two scans in a
        session."""
        if fetch.session <= self._heard.get(fetch.learner, 0):
            return
        self._heard[fetch.learner] = fetch.session
        wanted, view = dict.fromkeys(fetch.vnodes, True), self._state.view
        at_window = view is not None and all((v, fetch.learner) in view.at_window for v in fetch.vnodes)
        self._stop(lambda learner, vnodes: learner == fetch.learner and any(v in wanted for v in vnodes))
        self._scans[(fetch.learner, fetch.session)] = fetch.vnodes
        committed = self._state.saved.committed
        self._state.do(BeginSnapshot(fetch.learner, fetch.session, fetch.vnodes, committed, at_window))

    def keep(self, taught: Mapping[InstanceId, Sequence[int]]) -> None:
        """A new table: end scans that no learner needs any more."""
        wanted = {learner: dict.fromkeys(vnodes) for learner, vnodes in taught.items()}
        self._stop(lambda learner, vnodes: not all(v in wanted.get(learner, {}) for v in vnodes))

    def peer_lost(self, peer: InstanceId) -> None:
        """The peer's next life numbers its sessions from the start."""
        self._heard.pop(peer, None)
        self._stop(lambda learner, _: learner == peer)

    def _stop(self, unwanted: Callable[[InstanceId, tuple[int, ...]], bool]) -> None:
        """End the scans for which `unwanted` (learner, vnodes) is true."""
        for key in [k for k, v in self._scans.items() if unwanted(k[0], v)]:
            del self._scans[key]
            self._state.do(StopScan(*key))


def _covers(have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    return have == want or set(want) <= set(have)
