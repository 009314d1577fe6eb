"""Opens channels: several at a time, each peer with its own back-off; the caller never waits.

It must never decide which peers to dial: its caller calls `dial` again and again, as long as a channel is wanted. A
peer that does not answer blocks only the thread of its own dial, briefly, and so never delays another peer.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ferry.contract.backoff import back_off
from ferry.contract.errors import FerryError, NobodyListens
from ferry.contract.places import Registration

log = logging.getLogger(__name__)

DIALS_MAX = 32
"""Dials under way at one time."""

REPEATS_MAX = 16
"""Dials of peers that did not answer before, among these: they never delay dials of new peers."""

CONNECT_SECONDS = 1.0

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.1, 2.0

PROMPT_SECONDS, PROMPT_TRIES = 0.1, 5
"""Early failures after the end of an established channel are retried: an ending process may listen for a moment longer
than it sends."""

STEADY_SECONDS = 2.0
"""A channel that lasted this long is dialled again at once when it ends; a shorter one counts as a failure."""

HOPEFUL_FAILURES = 5
"""With fewer failures a peer may answer soon; with more the back-off is near its longest."""

assert REPEATS_MAX < DIALS_MAX
assert back_off(HOPEFUL_FAILURES, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX) < BACK_OFF_SECONDS_MAX


@dataclass(slots=True)
class _Dial:
    """The dials of one incarnation of a peer."""

    incarnation: str
    failures: int = 0
    not_before: float = 0.0
    under_way: bool = False
    opened_at: float = 0.0
    tries: int = 1
    """number of tries in the next dial"""


class Dialler:
    """Dials on threads of its own. Every method may be called from any thread, and returns at once."""

    def __init__(
        self,
        me: str,
        connect: Callable[[str, tuple[str, int], float], object],
        on_ended: Callable[[str], None] = lambda peer: None,
    ) -> None:
        """`on_ended` gets a peer whose address refuses connections, on the thread of that dial."""
        self._me = me
        self._connect = connect
        self._on_ended = on_ended
        self._lock = threading.Lock()
        self._dials: dict[str, _Dial] = {}
        self._under_way = self._repeats = 0

    def dial(self, entry: Registration) -> None:
        """Dial this incarnation of a peer, unless a dial is under way, it is too early, or too many dials are under
        way."""
        with self._lock:
            dial = self._dials.get(entry.instance)
            if dial is not None and dial.under_way:
                return
            if dial is None or dial.incarnation != entry.incarnation:
                dial = self._dials[entry.instance] = _Dial(entry.incarnation)
            again = dial.failures > 0
            if time.monotonic() < dial.not_before or self._under_way >= DIALS_MAX:
                return
            if again and self._repeats >= REPEATS_MAX:
                return
            dial.under_way = True
            self._under_way += 1
            self._repeats += again
        threading.Thread(target=self._run, args=(dial, entry, again), name="dial", daemon=True).start()

    def life(self, peer: str) -> str | None:
        """The incarnation of a peer that was dialled last."""
        with self._lock:
            dial = self._dials.get(peer)
            return None if dial is None else dial.incarnation

    def hopeful(self, entry: Registration) -> bool:
        """Whether this incarnation of a peer may answer soon: it is new, or has not failed often."""
        with self._lock:
            dial = self._dials.get(entry.instance)
            return dial is None or dial.incarnation != entry.incarnation or dial.failures < HOPEFUL_FAILURES

    def closed(self, peer: str) -> None:
        """The channel to a peer has closed. It is dialled again at once only if the channel lasted."""
        with self._lock:
            dial = self._dials.get(peer)
            if dial is None or not dial.opened_at:
                return
            brief = time.monotonic() - dial.opened_at < STEADY_SECONDS
            dial.opened_at = 0.0
            if brief:
                self._failed(dial)
            else:
                dial.failures, dial.not_before, dial.tries = 0, 0.0, PROMPT_TRIES

    def _run(self, dial: _Dial, entry: Registration, again: bool) -> None:
        failure: Exception | None = None
        begin = time.monotonic()
        with self._lock:
            dial.opened_at = begin
            tries, dial.tries = dial.tries, 1
        while True:
            try:
                self._connect(entry.instance, (entry.host, entry.port), CONNECT_SECONDS)
                failure = None
                break
            except (FerryError, OSError) as error:
                failure = error
                log.debug("%s cannot reach %s: %s", self._me, entry.instance, error)
            tries -= 1
            if tries <= 0 or isinstance(failure, NobodyListens) or time.monotonic() - begin > PROMPT_SECONDS:
                break
            time.sleep(PROMPT_SECONDS / PROMPT_TRIES)
        with self._lock:
            dial.under_way = False
            self._under_way -= 1
            self._repeats -= again
            if failure is not None:
                dial.opened_at = 0.0
                self._failed(dial)
        if isinstance(failure, NobodyListens):
            self._on_ended(entry.instance)

    def _failed(self, dial: _Dial) -> None:
        dial.failures += 1
        wait = back_off(dial.failures, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        dial.not_before = time.monotonic() + wait * random.uniform(0.5, 1.0)
