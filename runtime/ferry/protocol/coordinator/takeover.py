"""Handles answers of instances: at the start of a new driver, and later from returning members.

ask -> finish -> idle        no answer from the only holder of some state: wait, then stop; never go on empty
answer -> admitted           with other state than its groups: diverged, no copy any more
"""

from __future__ import annotations

from dataclasses import replace

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId
from ferry.protocol.coordinator import groups as g
from ferry.protocol.coordinator import recovery
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState


class Takeover:
    """The takeover from the previous driver."""

    def __init__(
        self,
        driver: DriverState,
        journaling: Journaling,
        members: Membership,
        commits: Commits,
        restore: m.Commit | None,
    ) -> None:
        """`restore`: the first commit of a job whose table has an origin."""
        self._restore = restore
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._commits = commits
        self.newest: m.Answer | None = None
        """The answer with the highest committed step of an in-sync member, which may be lost since: that step is
        final."""

    def of_this_life(self, answer: m.Answer) -> m.Answer:
        """An answer about another life of the job counts as empty: steps were counted there, too."""
        if answer.origin == self._journaling.table.origin or not self._driver.rules.origin_answered:
            return answer
        return m.Answer(answer.instance, answer.generation, None, (), b"", (), (), origin=self._journaling.table.origin)

    # ---- the start: ask every member, decide which step is committed, finish it everywhere
    def heard(self, answer: m.Answer) -> None:
        """Take an answer while this driver asks."""
        if answer.instance in self._journaling.view.held:
            self.newest = recovery.newer(self.newest, answer)

    def survey(self) -> recovery.Survey | None:
        """The committed step, once every in-sync member has answered or its time is up; None while it is undecided."""
        driver, settings, answers = self._driver, self._driver.settings, self._members.answers
        table, view = self._journaling.table, self._journaling.view
        silent = [i for i in recovery.needed(view, driver.rules) if i not in answers]
        if silent and driver.waited < settings.start_ms:
            return None
        if table.restoring:
            return self._begun(silent)
        result = recovery.survey(table, view, answers, self.newest, driver.generation, driver.rules)
        epochs = result.best.step.epoch if result.best is not None else -1
        if silent and epochs < settings.ended and driver.waited < settings.return_ms:
            return None  # Only older files answered: a silent member may have the epoch that Spark has finished.
        if result.dead:
            driver.halt(
                "unavailable",
                f"no copy of virtual nodes {result.dead[:8]} (of {len(result.dead)}) as of {result.best} is left "
                "(after a reboot files count only if the job was stopped before): "
                "bring back the workers that held it, with their files, or make a new job",
            )
            return None
        if result.missing:
            self._wait_for(result.missing, silent)
            return None
        return result

    def _begun(self, silent: list[InstanceId]) -> recovery.Survey | None:
        """When all members load the same checkpoint: groups of the members that answered, once each group has one, or
        after the deadline for a holder of state."""
        lost, table, generation = dict.fromkeys(silent), self._journaling.table, self._driver.generation
        groups, changes, orphans = g.without(table, lost, generation)
        if orphans:
            there, busy = list(self._members.answers), any(map(self._members.is_at_work, silent))
            newest = max((self._members.asked[i] for i in there), default=self._driver.now)
            if busy or self._driver.now - newest < self._driver.settings.return_ms:
                return None
            groups, taken = g.elsewhere(table, orphans, groups, there, generation)
            changes += taken
        return recovery.Survey(None, None, groups, changes)

    def _wait_for(self, missing: list[int], silent: list[InstanceId]) -> None:
        """Only silent members may hold this state. Before the first epoch there is no state: they may take as long as
        they need."""
        gone = not any(map(self._members.is_at_work, silent))
        return_ms = self._driver.settings.return_ms
        if gone and self._driver.waited >= return_ms and not self._journaling.table.initial:
            self._driver.halt(
                "away",
                f"virtual nodes {missing[:8]} (of {len(missing)}) are held only by {silent[:4]}, not seen "
                f"for {return_ms / 1000:.0f} s: start the worker again with its state directory",
            )

    def adopt(self, result: recovery.Survey) -> g.Regrouped:
        """Make the surveyed step the committed one, and admit all that answered; returns the groups of the copies."""
        answers, source = self._members.answers, result.source
        if self._journaling.table.restoring:
            if self._restore is None:
                raise Bug(f"the driver has not read the checkpoint of {self._journaling.table.origin}")
            generation, origin = self._driver.generation, self._journaling.table.origin
            self._commits.restore(replace(self._restore, generation=generation, origin=origin))
            self._commits.readable = False
        if source is not None and result.best is not None:
            epoch = result.best.step.epoch
            applied = [i for i, answer in answers.items() if answer.committed == result.best]
            self._commits.adopt(result.best, source, applied)
            released = any(a.released >= epoch for a in (*answers.values(), source))
            self._commits.readable = not (self._driver.rules.final_announced and released)
        for i in list(answers):
            self._members.admit(i)
        return result.groups, result.changes

    def could_not_load(self, event: m.Unrestorable) -> None:
        """The checkpoint is damaged, or the store has lost a part of it: the driver must not choose another one."""
        if self._journaling.table.restoring and event.origin == self._journaling.table.origin:
            self._driver.halt("unrestorable", f"{event.instance}: {event.reason}")

    # ---- later: returning members, and members that obey another driver
    def refused(self, event: m.Refused) -> None:
        """An instance obeys another driver, which has taken over from this one."""
        generation = self._driver.generation
        if event.generation > generation:
            obeys = f"{event.instance} obeys generation {event.generation}, this is {generation}"
            self._driver.halt("superseded", obeys)

    def diverged(self) -> g.Losses:
        """Instances whose answer shows other state than their groups, and for which virtual nodes."""
        driver, view, target = self._driver, self._journaling.view, self._commits.target
        out = {}
        for i, answer in self._members.answers.items():
            lacks = recovery.lacking(answer, view, target, driver.rules)
            if lacks != {}:
                out[i] = lacks
        return out

    def without(self, diverged: g.Losses) -> g.Regrouped | None:
        """Groups without them; None when the job is stopped because no other member holds their state."""
        answers, commit = self._members.answers, self._commits.under_way
        groups, changes, orphans = g.without(self._journaling.table, diverged, self._driver.generation)
        if not orphans:
            return groups, changes
        who = ", ".join(f"{i} (has {answers[i].committed})" for i in sorted(diverged))
        self._driver.halt(
            "unavailable",
            f"virtual nodes {orphans[:8]} (of {len(orphans)}) were held only by {who}, which came back without the "
            f"state as of {commit.commit_id if commit else self._commits.committed}: "
            "bring back workers with those files, or make a new job",
        )
        return None

    def admit(self) -> bool:
        """Admit all that answered, except those left out; returns whether an in-sync member is among them."""
        members = self._members
        ready = [answer for i, answer in sorted(members.answers.items()) if not members.backs_off(i)]
        for answer in ready:
            members.admit(answer.instance)
            self._driver.send(answer.instance, m.Install(self._journaling.table))
            self._commits.tell(answer)
        return any(answer.instance in self._journaling.view.held for answer in ready)
