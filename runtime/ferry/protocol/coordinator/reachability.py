"""Pairs of instances that cannot reach each other, according to failed attempts: they are kept apart for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ferry.contract.names import InstanceId
from ferry.protocol.backoff import Backoff
from ferry.protocol.coordinator.blame import Pair, around, pair
from ferry.protocol.coordinator.groups import Regrouped
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState
from ferry.protocol.view import Chain


class Reachability:
    """The pairs that are kept apart."""

    def __init__(self, driver: DriverState, journaling: Journaling, members: Membership) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self.apart: dict[Pair, Backoff] = {}
        """Pairs that could not reach each other; they are kept apart for a while."""
        self._failed: dict[Pair, int] = {}
        """When an attempt last failed because of a pair, in ms."""
        self._failing_since: int | None = None
        """Since when the step under way fails because of the same pairs."""
        self._failing_pairs: set[Pair] = set()
        """The pairs because of which it has failed."""

    def are_apart(self, a: InstanceId, b: InstanceId) -> bool:
        """Whether these two are kept apart now."""
        backoff = self.apart.get(pair(a, b)) if self.apart else None
        return backoff is not None and self._driver.now < backoff.until

    def helpers(self) -> tuple[InstanceId, ...]:
        """Helpers that every leader can reach; if there are none, those whose last failure is the longest ago.

        A connection may be repaired before its pause ends, so each helper gets its turn before the job is stopped.
        """
        every = self._members.helpers()
        if not self.apart:
            return every
        failed = {h: self._failed_last(h) for h in every}
        longest_ago = min(failed.values(), default=-1)
        return tuple(h for h in every if failed[h] == longest_ago)

    def _failed_last(self, helper: InstanceId) -> int:
        """When an attempt last failed because this helper and a leader, apart now, did not hear each other; -1: none."""
        leaders = self._journaling.view.led
        return max((self._failed[pair(helper, i)] for i in leaders if self.are_apart(helper, i)), default=-1)

    def may_lead(self, instance: InstanceId) -> bool:
        """Whether an instance may become a leader: not while it is kept apart from others."""
        now = self._driver.now
        return not any(instance in found and now < backoff.until for found, backoff in self.apart.items())

    def unusable(self, helping: Iterable[InstanceId]) -> str:
        """Which of these helpers a leader cannot hear; empty: none."""
        if not self.apart:
            return ""
        usable = self.helpers()
        deaf = [(h, i) for h in helping if h not in usable for i in self._journaling.view.led if self.are_apart(h, i)]
        return f"{', '.join(f'{h} and {i}' for h, i in deaf[:4])} cannot reach each other" if deaf else ""

    def keep_apart(self, pairs: Iterable[Pair]) -> None:
        """An attempt has failed because of these pairs. Pairs of earlier attempts of the step stay apart with them.

        Otherwise the pause of a pair ends before the last pair is known, and no attempt works around all of them.
        """
        settings = self._driver.settings
        pairs = list(pairs)
        self._failed.update(dict.fromkeys(pairs, self._driver.now))
        for a, b in pairs:
            if not self.are_apart(a, b):
                before = self.apart.get((a, b))
                backoff = Backoff.after(before, self._driver.now, settings.retry_ms, settings.retry_max_ms)
                self.apart[(a, b)] = backoff
                text = f"{a} and {b} cannot reach each other: kept apart for {backoff.wait / 1000:g} s"
                self._driver.note("apart", text)
        if pairs:
            until = max(self.apart[each].until for each in pairs)
            for each in self._failing_pairs & self.apart.keys():
                self.apart[each] = replace(self.apart[each], until=max(self.apart[each].until, until))

    def fails_for_long(self, pairs: Iterable[Pair]) -> bool:
        """An attempt fails because of these pairs. Returns whether it is time to stop the job."""
        failing, driver = set(pairs), self._driver
        if self._failing_since is None or not self._failing_pairs.issuperset(failing):
            self._failing_since = driver.now
            self._failing_pairs.update(failing)
        if driver.now - self._failing_since < driver.settings.apart_ms:
            return False
        names = ", ".join(f"{a} and {b}" for a, b in sorted(failing))
        driver.halt(
            "failed",
            f"{names} cannot reach each other, and no other leader or helper has worked around it for "
            f"{driver.settings.apart_ms / 1000:.0f} s: repair the network between them",
        )
        return True

    def worked_around(self, slow: Mapping[Chain, InstanceId]) -> Regrouped:
        """Groups that work around instances that are apart, or slow."""
        table, members = self._journaling.table, self._members
        helpers, generation = members.helpers(), self._driver.generation
        return around(table.groups, helpers, members.alive, self.are_apart, slow, generation)

    def step_committed(self) -> None:
        """The step succeeded: the deadline of the next step begins again."""
        self._failing_since = None
        self._failing_pairs.clear()
