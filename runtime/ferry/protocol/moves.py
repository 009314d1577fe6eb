"""Moves: one step of the groups towards what is desired, between two epochs.

Desired --> joined --> Warm --> in sync --> switched --> cleaned        (groups.regroup decides, the journal makes it so)
"""

from __future__ import annotations

from collections.abc import Sequence

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId
from ferry.contract.routing import Group
from ferry.protocol import groups as g
from ferry.protocol.adoption import Adoption
from ferry.protocol.bars import Bar
from ferry.protocol.coordinator_io import Desired, Note, Phase
from ferry.protocol.membership import GivenUp


class Moves(Adoption):
    """What is desired, and how far it is."""

    def _on_desired(self, event: Desired) -> None:
        if self.desired is None or event.number > self.desired.number:
            if len(event.placements) != self.table.virtual_nodes:
                raise Bug(f"{len(event.placements)} placements for {self.table.virtual_nodes} virtual nodes")
            self.desired, self.refused = event, {}

    def refuse(self, instance: InstanceId, vnodes: Sequence[int], reason: str) -> None:
        """Leave these moves alone for a while."""
        for key in [(instance, v) for v in vnodes]:
            before = self.refused[key].bar if key in self.refused else None
            bar = Bar.after(before, self.now, self.settings.retry_ms, self.settings.retry_max_ms)
            self.refused[key] = GivenUp(bar, reason)
        text = f"{len(vnodes)} copies on {instance} are given up, and begun again in {bar.wait / 1000:g} s: {reason}"
        self._do(Note("given-up", self.step_now, text=text))

    def given_up(self) -> dict[tuple[InstanceId, int], GivenUp]:
        """Moves that are left alone for a while, by (learner, virtual node)."""
        return {key: refusal for key, refusal in self.refused.items() if self.now < refusal.bar.until}

    def _on_learned(self, event: m.Learned) -> None:
        """A move that comes along has the time that it needs, and so have those that wait for it."""
        for v, leader in self.view.learned.get(event.instance, {}).items():
            if leader == event.leader and (event.instance, v) in self.joined:
                self.joined[(event.instance, v)] = self.now

    def _on_warm(self, event: m.Warm) -> None:
        for key in [(event.instance, v) for v in event.vnodes]:
            present = key in self.learning and (event.version >= self.learning[key] or not self.rules.warm_version)
            if present and event.instance in self.alive:
                self.warm[key] = event.label
        if not self.rules.between_epochs and self.phase not in (Phase.JOURNAL, Phase.ASK):
            self._regroup()

    def _pace(self) -> g.Pace:
        """Nothing new begins in the gap after a switchover."""
        epoch = self.committed.step.epoch if self.committed else -1
        in_gap = self.switched_at is not None and epoch - self.switched_at < self.settings.pace.gap
        return g.Pace(batch=0) if in_gap else self.settings.pace

    def placements(self) -> Sequence[g.Placement]:
        """Where every virtual node should be.

        As long as nobody has said it, where it is, and groups that lack some of their first members have them again: an
        instance may have been too late for the first table, or be back without its files.
        """
        if self.desired is not None:
            return self.desired.placements
        return tuple(map(g.completed, self.table.groups, self.first))

    def _nothing_wanted(self) -> bool:
        """Whether groups may stay as they are, without looking at each."""
        if self.desired is not None or self.view.learned:
            return False
        return all(len(group.in_sync) >= len(first) for group, first in zip(self.table.groups, self.first, strict=True))

    def _wanted(self, pace: g.Pace) -> tuple[list[Group], list[g.GroupChange]]:
        return g.regroup(
            self.table,
            self.placements(),
            self.alive,
            self.warm,
            self.committed,
            self.given_up(),
            pace,
            self.generation,
            self.rules,
            self._led_in_peace,
        )

    def _regroup(self) -> None:
        """One step towards what is desired; between two epochs."""
        if self.writing is not None or not self.journal_up or self._nothing_wanted() or self._away():
            return
        stuck: dict[InstanceId, list[int]] = {}
        for (i, v), since in list(self.joined.items()):
            if v not in self.view.learned.get(i, {}):
                del self.joined[(i, v)]
            elif self.now - since > self.settings.warm_ms:
                stuck.setdefault(i, []).append(v)
        for i in sorted(stuck):
            leaders = sorted({self.view.learned[i][v]: True for v in stuck[i]})
            seconds = self.settings.warm_ms / 1000
            self.refuse(i, stuck[i], f"nothing has come from {', '.join(leaders[:4])} for {seconds:g} s")
        groups, changes = self._wanted(self._pace())
        for c in changes:
            if c.kind == "in-sync":
                self.refused.pop((c.instance, c.vnode), None)
        if changes:
            if any(c.kind == "switched" for c in changes):
                self.switched_at = self.committed.step.epoch if self.committed else -1
            self._journal(self._next(groups), tuple(changes))

    def _led_in_peace(self, instance: InstanceId) -> bool:
        """Whether an instance may be made a leader: not as long as one that others could not reach is kept apart."""
        return True

    def pending(self) -> bool:
        """Whether group changes wait for an epoch, be it for the gap to pass: without data, a tick has to make one."""
        if self.phase is not Phase.IDLE or self.writing is not None or not self.journal_up or self._nothing_wanted():
            return False
        return bool(self.view.learned) or bool(self._wanted(self.settings.pace)[1])
