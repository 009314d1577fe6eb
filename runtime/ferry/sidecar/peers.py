"""Channels to the other instances: one side of each pair dials, messages wait until the channel is open.

No peer dials an instance that is not in the registry, so a lost entry (when Redis loses its data) is written again.
When a later life of this instance is in the registry, this one must not be heard any more: it ends.

If both sides dialled when they have a message, two connections could open at once; one of them would be replaced, and
its queued messages lost: an attempt would stall until its deadline. So the instance with the smaller name dials, ahead
of need, every instance that is in the registry. Must never block the instance's loop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from ferry.channel.base import Channel, Endpoint, Lane
from ferry.channel.dialling import Dialler
from ferry.contract.errors import FerryError, Refusal, Unreachable
from ferry.contract.places import Registration
from ferry.registry import JobRegistry, MemberCache

log = logging.getLogger("ferry.sidecar")

LOOK_SECONDS, CALM_SECONDS = 0.1, 1.0
"""Interval of reads of the registry: while a peer is missing, and when all are connected."""

WAITING_MESSAGES_MAX, WAITING_BYTES_MAX, WAITING_SECONDS = 4096, 64 * 1024 * 1024, 30.0
"""Messages that wait for one peer's channel, their bytes, and for how long; older ones are dropped first. A lost
message costs a new attempt, not state."""


@dataclass(frozen=True, slots=True)
class Post:
    """One outgoing message."""

    lane: Lane
    kind: int
    head: bytes
    body: tuple[pa.Buffer, ...]

    @property
    def size(self) -> int:
        """Bytes of head and body."""
        return len(self.head) + sum(memoryview(part).nbytes for part in self.body)


@dataclass(slots=True)
class Queue:
    """Messages that wait for one peer's channel."""

    since: float
    posts: deque[Post] = field(default_factory=deque)
    bytes: int = 0

    def add(self, post: Post) -> None:
        """Add a message; the oldest are dropped beyond the bounds."""
        self.posts.append(post)
        self.bytes += post.size
        while len(self.posts) > 1 and (len(self.posts) > WAITING_MESSAGES_MAX or self.bytes > WAITING_BYTES_MAX):
            self.bytes -= self.posts.popleft().size


class Peers:
    """Open channels by peer name (drivers' too), and messages that wait for one."""

    def __init__(
        self,
        me: str,
        registry: JobRegistry,
        superseded: Callable[[Registration], None],
        on_refused: Callable[[str, str], None] = lambda peer, why: None,
    ) -> None:
        """`superseded` is called, on a thread of its own, with the registration of a later life of this instance.

        `on_refused(peer, reason)` gets a message that can never be sent; it is called with a lock held.
        """
        self._me = me
        self._registry = registry
        self._member_cache = MemberCache(registry)
        self._superseded = superseded
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._open: dict[str, Channel] = {}
        self._waiting: dict[str, Queue] = {}
        self._dialler: Dialler | None = None
        self._wake = threading.Event()
        self._entry: Registration | None = None
        self._signing = threading.Lock()

    def start(self, endpoint: Endpoint, entry: Registration) -> None:
        """Register, and begin to dial; both as soon as Redis answers."""
        self._entry = entry
        self._dialler = Dialler(self._me, endpoint.connect)
        threading.Thread(target=self._run, args=(self._dialler,), name="peers", daemon=True).start()

    def leave(self) -> None:
        """Leave the registry."""
        with self._signing, suppress(Unreachable):
            entry, self._entry = self._entry, None
            if entry is not None:
                self._registry.unregister(entry)

    def opened(self, peer: str, channel: Channel) -> None:
        """A channel is open: waiting messages go first."""
        with self._lock:
            self._open[peer] = channel
            waited = self._waiting.pop(peer, None)
            for post in waited.posts if waited is not None else ():
                self._post(channel, post)

    def closed(self, peer: str) -> None:
        """A channel is closed."""
        with self._lock:
            self._open.pop(peer, None)
        if self._dialler is not None:
            self._dialler.closed(peer)
        self._wake.set()

    def post(self, peer: str, lane: Lane, kind: int, head: bytes, body: tuple[pa.Buffer, ...]) -> None:
        """Queue a message for a peer, whether its channel is open or not."""
        post = Post(lane, kind, head, body)
        with self._lock:
            channel = self._open.get(peer)
            if channel is not None:
                self._post(channel, post)
                return
            self._waiting.setdefault(peer, Queue(time.monotonic())).add(post)
        self._wake.set()

    def send_nowait(self, peer: str, lane: Lane, kind: int, head: bytes, body: tuple[pa.Buffer, ...]) -> bool:
        """Send if the channel is open and the lane has credit."""
        with self._lock:
            channel = self._open.get(peer)
        try:
            return channel is not None and channel.send_nowait(lane, kind, 0, head, body)
        except Refusal as refused:
            self._on_refused(peer, str(refused))
            return False
        except FerryError:
            return False

    def _post(self, channel: Channel, post: Post) -> None:
        try:
            channel.post(post.lane, post.kind, 0, post.head, post.body)
        except Refusal as refused:
            log.error("%s can never send this to %s: %s", self._me, channel.peer, refused)
            self._on_refused(channel.peer, str(refused))
        except FerryError as error:
            log.warning("%s could not send to %s: %s", self._me, channel.peer, error)

    # ---- dialling
    def _run(self, dialler: Dialler) -> None:
        while True:
            missing = True
            with suppress(Unreachable):  # Redis is unreachable: open channels stay.
                missing = self._look(dialler)
            looked = time.monotonic()
            self._wake.wait(LOOK_SECONDS if missing else CALM_SECONDS)
            time.sleep(max(0.0, looked + LOOK_SECONDS - time.monotonic()))
            self._wake.clear()

    def _look(self, dialler: Dialler) -> bool:
        """Register again if needed, and dial missing peers; returns whether to look again soon."""
        self._member_cache.look()
        self._sign()
        missing = False
        for entry in self._member_cache.entries.values():
            if entry.instance > self._me:
                self._close_predecessor(dialler.life(entry.instance), entry)
                if entry.instance not in self._open:
                    missing |= dialler.hopeful(entry)
                    dialler.dial(entry)
        return missing | self._anything_waits()

    def _sign(self) -> None:
        there = self._member_cache.entries.get(self._me)
        with self._signing:
            if self._entry is None:
                return
            if there is None or there.incarnation < self._entry.incarnation:
                there = self._registry.register(self._entry)
            if there.incarnation <= self._entry.incarnation:
                return
            self._entry = None
        self._superseded(there)

    def _close_predecessor(self, life: str | None, entry: Registration) -> None:
        """Close the channel to a life with a successor: a frozen or disconnected one would keep it open."""
        with self._lock:
            channel = self._open.get(entry.instance)
        if channel is not None and life is not None and life != entry.incarnation:
            log.info("%s: %s has a successor", self._me, entry.instance)
            channel.close("it has a successor")
            with self._lock:
                if self._open.get(entry.instance) is channel:
                    del self._open[entry.instance]

    def _anything_waits(self) -> bool:
        """Whether messages wait for a channel; messages that waited too long are dropped."""
        late = time.monotonic() - WAITING_SECONDS
        with self._lock:
            for peer in [peer for peer, queue in self._waiting.items() if queue.since < late]:
                log.warning("%s drops %d messages for %s", self._me, len(self._waiting.pop(peer).posts), peer)
            return bool(self._waiting)
