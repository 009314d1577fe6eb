"""Channels between endpoints of one process: the same channel and frames, with a queue instead of a network.

For tests: delivery happens in `MemoryNetwork.pump`, called by the test (deterministic) or by one thread of the network.
It must never be used between processes, and never deliver inside a sender's call.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from collections.abc import Callable

from ferry.channel.base import HANDSHAKE_SECONDS, REPLACED, Channel, Endpoint, Handler, LinkState, OnClose, OnOpen
from ferry.channel.flow import FlowChannel, reason_of
from ferry.contract.errors import Refusal, Unreachable


class MemoryNetwork:
    """Connects endpoints. Steps run in the order in which they were queued, one at a time."""

    def __init__(self, threaded: bool = False) -> None:
        self._condition = threading.Condition()
        self._steps: deque[Callable[[], None]] = deque()
        self._listeners: dict[tuple[str, int], MemoryEndpoint] = {}
        self.threaded = self._running = threaded
        self._pumping = threading.RLock()
        if threaded:
            threading.Thread(target=self._run, name="memory-network", daemon=True).start()

    def pump(self, limit: int = 1_000_000) -> int:
        """Deliver until no step is left; returns the number of steps. At most `limit` steps."""
        done = 0
        while done < limit:
            with self._pumping:
                with self._condition:
                    if not self._steps:
                        return done
                    step = self._steps.popleft()
                step()
            done += 1
        return done

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._steps or not self._running)
                if not self._running:
                    return
            self.pump()

    def stop(self) -> None:
        """End the network's thread, if it has one."""
        with self._condition:
            self._running = False
            self._condition.notify_all()

    def soon(self, step: Callable[[], None]) -> None:
        """Queue a step."""
        with self._condition:
            self._steps.append(step)
            self._condition.notify_all()

    def register(self, endpoint: MemoryEndpoint, address: tuple[str, int]) -> tuple[str, int]:
        """Give an endpoint an address; port 0 takes the next one."""
        with self._condition:
            host, port = address
            port = port or 1 + max((p for _, p in self._listeners), default=0)
            if (host, port) in self._listeners:
                raise Unreachable(f"{endpoint.name} cannot listen on {host}:{port}: it is taken")
            self._listeners[host, port] = endpoint
            return host, port

    def at(self, address: tuple[str, int]) -> MemoryEndpoint | None:
        """The endpoint that listens there."""
        return self._listeners.get(address)

    def forget(self, endpoint: MemoryEndpoint) -> None:
        """Remove an endpoint's addresses."""
        with self._condition:
            for address in [a for a, e in self._listeners.items() if e is endpoint]:
                del self._listeners[address]

    def admission(self) -> threading.RLock:
        """Held while connections change: no delivery happens then."""
        return self._pumping


class MemoryTransport:
    """The transport of one side of a pair; `partner` is the other side."""

    name = "memory"
    partner: MemoryTransport

    def __init__(self, owner: MemoryEndpoint, peer: str, job: str, on_message: Handler, network: MemoryNetwork) -> None:
        self.channel = FlowChannel(peer, job, on_message, self)
        self.link = LinkState(peer, "memory", "")
        self._owner = owner
        self._network = network
        self._lock = threading.Lock()
        self._scheduled = False

    def queued(self, size: int) -> None:
        self.wake()

    def wake(self) -> None:
        with self._lock:
            if self._scheduled or self.channel.closed is not None:
                return
            self._scheduled = True
        self._network.soon(self._carry)

    def _carry(self) -> None:
        """Move one gather to the partner."""
        with self._lock:
            self._scheduled = False
        gather = self.channel.collect()
        if not gather:
            return
        self.partner.arrive(b"".join(gather))
        self.channel.handed_over()
        self.wake()

    def arrive(self, data: bytes) -> None:
        """Bytes from the partner: complete frames, unless a test sends other bytes."""
        if self.channel.closed is not None:
            return
        try:
            self.channel.feed(memoryview(data))
        except Exception as error:  # a handler's failure ends its connection, as on a network
            self.channel.close(reason_of(error))

    def flush(self, timeout: float) -> bool:
        """Without a thread of the network the caller delivers."""
        if not self._network.threaded:
            self._network.pump()
        return self.channel.wait_handed_over(timeout)

    def close(self, reason: str) -> None:
        self._network.soon(lambda: self._owner.ended(self, reason))
        self._network.soon(lambda: self.partner.arrive(self.channel.bye(reason)))


class MemoryEndpoint(Endpoint):
    """An endpoint on a MemoryNetwork."""

    def __init__(
        self,
        network: MemoryNetwork,
        name: str,
        job: str,
        secret: bytes,
        on_message: Handler,
        on_open: OnOpen,
        on_close: OnClose,
    ) -> None:
        self.name = name
        self._network = network
        self._job = job
        self._secret = secret
        self._on_message = on_message
        self._on_open = on_open
        self._on_close = on_close
        self._transports: dict[str, MemoryTransport] = {}
        self._closing = False

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        return self._network.register(self, (host, port))

    def connect(self, peer: str, address: tuple[str, int], timeout: float = HANDSHAKE_SECONDS) -> Channel:
        if peer == self.name:
            raise Refusal(f"{peer} does not connect to itself: hand the message over locally")
        other = self._network.at(address)
        if other is None or self._closing:
            raise Unreachable(
                f"{self.name} cannot reach {peer} at {address[0]}:{address[1]}: no endpoint listens there"
            )
        known = hmac.compare_digest(self._secret, other._secret)
        if not known or (self._job, peer) != (other._job, other.name):
            raise Refusal(f"{peer} refused the handshake: the secret, the job or the names of the two sides differ")
        with self._network.admission():
            mine = MemoryTransport(self, peer, self._job, self._on_message, self._network)
            theirs = MemoryTransport(other, self.name, self._job, other._on_message, self._network)
            mine.partner, theirs.partner = theirs, mine
            other.opened(theirs)
            self.opened(mine)
        return mine.channel

    def opened(self, transport: MemoryTransport) -> None:
        """Make it the peer's connection; the end of the old one is reported first."""
        peer = transport.channel.peer
        old = self._transports.pop(peer, None)
        if old is not None:
            old.channel.close(REPLACED)
            self._on_close(peer, REPLACED)
        self._transports[peer] = transport
        self._on_open(peer, transport.channel)

    def ended(self, transport: MemoryTransport, reason: str) -> None:
        """A channel was closed."""
        peer = transport.channel.peer
        if self._transports.get(peer) is transport:
            del self._transports[peer]
            self._on_close(peer, reason)

    def channel(self, peer: str) -> Channel | None:
        transport = self._transports.get(peer)
        return None if transport is None or transport.channel.closed is not None else transport.channel

    def links(self) -> tuple[LinkState, ...]:
        return tuple(t.link for _, t in sorted(self._transports.items()) if t.channel.closed is None)

    def kill(self) -> None:
        """End like a killed process: no callback runs here, and the peers see broken connections."""
        self._closing = True
        self._network.forget(self)
        with self._network.admission():
            transports, self._transports = list(self._transports.values()), {}
            for transport in transports:
                transport.channel.close("killed")

    def close(self) -> None:
        self._closing = True
        self._network.forget(self)
        with self._network.admission():
            for transport in list(self._transports.values()):
                transport.channel.close("endpoint closed")
                self.ended(transport, "endpoint closed")
