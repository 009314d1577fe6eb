"""The journal's writer: one swap at a time, off the loop's thread, retried while the journal is unreachable.

A write without an answer has an unknown outcome, so no epoch is prepared until the outcome is known.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from ferry.contract.errors import Refusal, StateUnavailable, Superseded, Unreachable
from ferry.contract.routing import Table, Version
from ferry.protocol import coordinator as core
from ferry.registry import JournalStore

log = logging.getLogger("ferry.coordinator")

RETRY_SECONDS = 0.3


class JournalWriter:
    """Reads and swaps the journal; reports to the loop through `post`."""

    def __init__(self, journal: JournalStore) -> None:
        self._journal = journal
        self._writes: queue.SimpleQueue[core.Journal] = queue.SimpleQueue()
        self._post: Callable[[core.Event], None] = lambda event: None

    def read(self) -> Table | None:
        """The journaled table, None for a new job. Waits for the journal."""
        while True:
            try:
                return self._journal.read()
            except Unreachable as error:
                log.warning("waiting for the journal: %s", error)
                time.sleep(RETRY_SECONDS)

    def start(self, post: Callable[[core.Event], None]) -> None:
        """Begin to serve writes."""
        self._post = post
        threading.Thread(target=self._run, name="journal", daemon=True).start()
        threading.Thread(target=self._watch, name="journal-watch", daemon=True).start()

    def swap(self, table: Table, expected: Version | None) -> None:
        """Swap now, for a coordinator that has stopped. Raises Superseded, and Unreachable when the outcome is
        unknown."""
        self._journal.swap(table, expected)

    def check(self, generation: int) -> None:
        """Raise Superseded when the journaled table is of another generation, Unreachable when it cannot be read
        now."""
        found = self._journal.read()
        if found is None or found.version.generation != generation:
            raise Superseded(f"generation {generation} is over: another driver has taken over, or the journal is gone")

    def write(self, effect: core.Journal) -> None:
        """Queue a swap; its result comes as an event."""
        self._writes.put(effect)

    def _run(self) -> None:
        while True:
            effect = self._writes.get()
            while not self._written(effect):
                self._post(core.JournalReachable(False))
                time.sleep(RETRY_SECONDS)
            # The watch polls; it may miss a short outage and its end.
            self._post(core.JournalReachable(True))

    def _written(self, effect: core.Journal) -> bool:
        try:
            self._journal.swap(effect.table, effect.expected)
        except Superseded as refused:
            return self._refused(str(refused))
        except Unreachable as error:
            log.warning("group changes wait: %s", error)
            return False
        self._post(core.Journaled(effect.table.version))
        return True

    def _refused(self, reason: str) -> bool:
        try:
            journaled = self._journal.read()
        except Unreachable as error:
            log.warning("group changes wait: %s", error)
            return False
        except (Refusal, StateUnavailable):
            journaled = None  # the journal is gone, as the reason says
        self._post(core.JournalRefused(reason, journaled))
        return True

    def _watch(self) -> None:
        """Report to the loop whether group changes are possible now."""
        up = True
        while True:
            now = self._journal.is_reachable()
            if now != up:
                log.warning("the journal is %s", "back" if now else "away: group changes wait, epochs go on")
                self._post(core.JournalReachable(now))
            up = now
            time.sleep(self._journal.look_seconds)
