"""Moves: one step of the groups towards what is desired, between two epochs.

Desired --> joined --> Warm --> in step --> cut --> cleaned        (groups.regroup decides, the journal makes it so)
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId
from ferry.contract.routing import Group
from ferry.protocol import groups as g
from ferry.protocol.adoption import Adoption
from ferry.protocol.coordinator_io import Desired, Phase


class Moves(Adoption):
    """What is desired, and how far it is."""

    def _on_desired(self, event: Desired) -> None:
        if self.desired is None or event.number > self.desired.number:
            if len(event.placements) != self.table.virtual_nodes:
                raise Bug(f"{len(event.placements)} placements for {self.table.virtual_nodes} virtual nodes")
            self.desired, self.refused = event, {}

    def refuse(self, instance: InstanceId, vnode: int, reason: str) -> None:
        """Leave a move alone for a while."""
        self.refused[(instance, vnode)] = True

    def _on_warm(self, event: m.Warm) -> None:
        for key in [(event.instance, v) for v in event.vnodes]:
            present = key in self.learning and (event.version >= self.learning[key] or not self.rules.warm_version)
            if present and event.instance in self.alive:
                self.warm[key] = event.label
        if not self.rules.between_epochs and self.phase not in (Phase.JOURNAL, Phase.ASK):
            self._regroup()

    def _pace(self) -> g.Pace:
        """Nothing new begins in the gap after a cut."""
        epoch = self.committed.step.epoch if self.committed else -1
        in_gap = self.cut_at is not None and epoch - self.cut_at < self.settings.pace.gap
        return g.Pace(batch=0) if in_gap else self.settings.pace

    def _wanted(self, pace: g.Pace) -> tuple[list[Group], list[g.Change]]:
        placements = self.desired.placements if self.desired else ()
        return g.regroup(
            self.table, placements, self.alive, self.warm, self.committed, self.refused, pace, self.generation,
            self.rules,
        )  # fmt: skip

    def _regroup(self) -> None:
        """One step towards what is desired; between two epochs."""
        if self.writing is not None or not self.journal_up or not (self.desired or self.view.learned):
            return
        for key, since in list(self.joined.items()):
            if key[1] not in self.view.learned.get(key[0], {}):
                del self.joined[key]
            elif self.now - since > self.settings.warm_ms:
                self.refused[key] = True
        groups, changes = self._wanted(self._pace())
        if changes:
            if any(c.kind == "cut" for c in changes):
                self.cut_at = self.committed.step.epoch if self.committed else -1
            self._journal(self._next(groups), tuple(changes))

    def pending(self) -> bool:
        """Whether group changes wait for an epoch, be it for the gap to pass: without data, a tick has to make one."""
        if self.phase is not Phase.IDLE or self.writing is not None or not self.journal_up:
            return False
        return bool(self.view.learned) or bool(self.desired and self._wanted(self.settings.pace)[1])
