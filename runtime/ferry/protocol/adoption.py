"""The first look of a new driver: ask every member, decide what is committed, finish it everywhere.

ask -> finish -> idle        no answer from the only holder of something: wait, then stop; never go on empty
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.protocol import recovery
from ferry.protocol.coordinator_io import Phase
from ferry.protocol.membership import Membership


class Adoption(Membership):
    """How a driver takes over what the one before it has left."""

    def _adopt_when_answered(self) -> None:
        """Decide what is committed, once every in-sync member has answered or its time is up."""
        silent = [i for i in recovery.needed(self.view, self.rules) if i not in self.answers]
        waited = self.now - self.phase_since
        if silent and waited < self.settings.start_ms:
            return
        found = recovery.survey(
            self.table, self.view, self.answers, self.newest, self.settings.operators, self.generation, self.rules
        )
        epochs = found.best.step.epoch if found.best is not None else -1
        if silent and epochs < self.settings.ended and waited < self.settings.return_ms:
            return  # Files of an older day only: who is silent may have what Spark has seen the end of.
        if found.dead:
            self._halt(
                "unavailable",
                f"no copy of virtual nodes {found.dead[:8]} (of {len(found.dead)}) as of {found.best} is left: "
                "bring back the workers that held it, with their files, or make a new job",
            )
        elif found.missing:
            # Before the first epoch nobody holds anything: the first workers may take as long as they need.
            gone = not any(self._at_work(i) for i in silent)
            if gone and waited >= self.settings.return_ms and not self.table.initial:
                self._halt(
                    "away",
                    f"virtual nodes {found.missing[:8]} (of {len(found.missing)}) are held only by {silent[:4]}, not seen "
                    f"for {self.settings.return_ms / 1000:.0f} s: start the worker again with its state directory",
                )
        else:
            self._adopt(found)

    def _adopt(self, found: recovery.Survey) -> None:
        source = found.source
        if source is not None and found.best is not None:
            self.committed = found.best
            self.low, self.meta, self.late, self.fired = source.low, source.meta, source.late, source.fired
            self.high = source.high if self.rules.watermark_adopt else WATERMARK_NONE
            self.commit = m.Commit(
                found.best, self.generation, source.low, source.high, source.meta, source.late, source.fired
            )
            self.final = self.rules.final_told and any(
                a.released >= found.best.step.epoch for a in (*self.answers.values(), source)
            )
        for i, a in self.answers.items():
            self._obeys(i)
            if a.committed == found.best:
                self.put[i] = True
        self.answers = {}
        self._enter(Phase.FINISH)
        self._journal(self._next(found.groups), tuple(found.changes))
