"""Channels to the other instances: one side of each pair dials, messages wait until the channel is open.

Whoever is not on the board is dialled by nobody, so an entry that disappears (with what Redis held, say) is made again.

Were both sides to dial when they have something to send, two connections could open at once, one of them would be
replaced, and what was queued on it lost: an attempt would stall until its deadline. So the instance with the smaller name
dials, ahead of need, every instance that is on the board. Must never block the instance's loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from ferry.board import Board
from ferry.channel.base import Channel, Endpoint, Lane
from ferry.contract.errors import FerryError, Unreachable
from ferry.contract.places import Registration

log = logging.getLogger("ferry.sidecar")

LOOK_SECONDS = 0.1
BACK_OFF_SECONDS_MAX = 2.0

WAITING_MESSAGES_MAX = 4096
"""Messages that wait for one peer's channel; older ones go first. What is lost costs a new attempt, not state."""


@dataclass(frozen=True, slots=True)
class Post:
    """One message on its way."""

    lane: Lane
    kind: int
    head: bytes
    body: tuple[pa.Buffer, ...]


@dataclass(slots=True)
class Dial:
    """How dialling one life of a peer goes."""

    incarnation: str
    failures: int = 0
    not_before: float = 0.0


class Peers:
    """Open channels by peer name (drivers', too), and what waits for one."""

    def __init__(self, me: str, board: Board) -> None:
        self._me = me
        self._board = board
        self._lock = threading.Lock()
        self._open: dict[str, Channel] = {}
        self._waiting: dict[str, list[Post]] = {}
        self._dials: dict[str, Dial] = {}
        self._wake = threading.Event()
        self._entry: Registration | None = None
        self._signing = threading.Lock()

    def start(self, endpoint: Endpoint, entry: Registration) -> None:
        """Be on the board, and begin to dial; both as soon as Redis answers."""
        self._entry = entry
        threading.Thread(target=self._run, args=(endpoint,), name="peers", daemon=True).start()

    def leave(self) -> None:
        """Be on the board no more."""
        with self._signing, suppress(Unreachable):
            entry, self._entry = self._entry, None
            if entry is not None:
                self._board.unregister(entry)

    def opened(self, peer: str, channel: Channel) -> None:
        """A channel is open: what waited goes first."""
        with self._lock:
            self._open[peer] = channel
            for post in self._waiting.pop(peer, []):
                self._post(channel, post)

    def closed(self, peer: str) -> None:
        """A channel is gone."""
        with self._lock:
            self._open.pop(peer, None)
        self._wake.set()

    def post(self, peer: str, lane: Lane, kind: int, head: bytes, body: tuple[pa.Buffer, ...]) -> None:
        """Queue a message for a peer, whether its channel is open or not."""
        post = Post(lane, kind, head, body)
        with self._lock:
            channel = self._open.get(peer)
            if channel is not None:
                self._post(channel, post)
                return
            self._waiting[peer] = [*self._waiting.get(peer, [])[-WAITING_MESSAGES_MAX + 1 :], post]
        self._wake.set()

    def send_nowait(self, peer: str, lane: Lane, kind: int, head: bytes, body: tuple[pa.Buffer, ...]) -> bool:
        """Send if the channel is open and the lane has credit."""
        with self._lock:
            channel = self._open.get(peer)
        try:
            return channel is not None and channel.send_nowait(lane, kind, 0, head, body)
        except FerryError:
            return False

    def _post(self, channel: Channel, post: Post) -> None:
        try:
            channel.post(post.lane, post.kind, 0, post.head, post.body)
        except FerryError as error:
            log.warning("%s could not send to %s: %s", self._me, channel.peer, error)

    # ---- dialling
    def _run(self, endpoint: Endpoint) -> None:
        signed = False
        while True:
            with suppress(Unreachable):  # Redis is away: the channels that are open stay.
                if not signed:
                    self._sign(self._board.register)
                    signed = True
                found = self._board.registrations()
                if all(entry.instance != self._me for entry in found):
                    self._sign(self._board.register_again)
                for entry in found:
                    if entry.instance > self._me:
                        self._part_from_predecessor(entry)
                        if entry.instance not in self._open:
                            self._dial(endpoint.connect, entry)
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _sign(self, register: Callable[[Registration], None]) -> None:
        with self._signing:
            if self._entry is not None:
                register(self._entry)

    def _part_from_predecessor(self, entry: Registration) -> None:
        """Close the channel to a life that has a successor: one that is frozen, or cut off, would keep it open."""
        dial = self._dials.get(entry.instance)
        with self._lock:
            channel = self._open.get(entry.instance)
        if channel is not None and dial is not None and dial.incarnation != entry.incarnation:
            log.info("%s: %s has a successor", self._me, entry.instance)
            channel.close("it has a successor")
            with self._lock:
                if self._open.get(entry.instance) is channel:
                    del self._open[entry.instance]

    def _dial(self, connect: Callable[..., Channel], entry: Registration) -> None:
        dial = self._dials.get(entry.instance)
        if dial is None or dial.incarnation != entry.incarnation:
            dial = self._dials[entry.instance] = Dial(entry.incarnation)
        if time.monotonic() < dial.not_before:
            return
        try:
            connect(entry.instance, (entry.host, entry.port), timeout=1.0)
            dial.failures = 0
        except (FerryError, OSError) as error:
            dial.failures += 1
            dial.not_before = time.monotonic() + min(0.05 * 2**dial.failures, BACK_OFF_SECONDS_MAX)
            log.debug("%s cannot reach %s: %s", self._me, entry.instance, error)
