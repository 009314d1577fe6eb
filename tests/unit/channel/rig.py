"""The transport_flags behind one face, so that every test of the contract runs over all of them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from fake_verbs import FakeDevice

from ferry.channel.base import Channel, DeferredCredit, Endpoint, Lane, Message
from ferry.channel.flow import FlowChannel
from ferry.channel.memory import MemoryEndpoint, MemoryNetwork, MemoryTransport
from ferry.channel.rdma.connection import ConnectionFactory, LinkLost
from ferry.channel.rdma.device import choose_device
from ferry.channel.rdma.endpoint import Notify, RdmaEndpoint, RdmaSettings
from ferry.channel.rdma.link_control import LinkPhase
from ferry.channel.rdma.memory import Limits
from ferry.channel.rdma.transport import RdmaTransport
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.channel.tcp.transport import TcpTransport
from ferry.contract.errors import Exhausted

WAIT = 5.0
SECRET = b"a secret of the job"


class Party:
    """An endpoint that records what it is told."""

    def __init__(self, make: Callable[..., Endpoint], name: str, job: str, secret: bytes) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.opened: queue.Queue[tuple[str, Channel]] = queue.Queue()
        self.closed: queue.Queue[tuple[str, str]] = queue.Queue()
        self.events: list[str] = []
        self.handler: Callable[[Message], DeferredCredit | None] | None = None
        self.endpoint = make(name, job, secret, self._message, self._open, self._close)
        self.name = name

    def _message(self, message: Message) -> DeferredCredit | None:
        self.messages.put(message)
        return self.handler(message) if self.handler else None

    def _open(self, peer: str, channel: Channel) -> None:
        self.events.append("open")
        self.opened.put((peer, channel))

    def _close(self, peer: str, reason: str) -> None:
        self.events.append(reason)
        self.closed.put((peer, reason))

    def next(self) -> Message:
        return self.messages.get(timeout=WAIT)

    def take(self, count: int) -> list[Message]:
        return [self.next() for _ in range(count)]

    def reason(self) -> str:
        return self.closed.get(timeout=WAIT)[1]


class Rig:
    """Makes endpoints of one carrier and ends them.

    Carriers: memory, tcp, and RDMA (`rdma` over a real device, `fake` over memory, `none` without room for any link, so
    that everything stays on TCP) with -footer or -imm.
    """

    def __init__(self, carrier: str, settings: RdmaSettings | None = None) -> None:
        kind, _, notify = carrier.partition("-")
        self.carrier = "rdma" if notify else kind
        self._network = MemoryNetwork(threaded=True)
        self._parties: list[Party] = []
        self._make: Callable[..., Endpoint] = TcpEndpoint
        if kind == "memory":
            self._make = partial(MemoryEndpoint, self._network)
        elif notify:
            none = {"fallback": True, "pinned_bytes_max": 1} if kind == "none" else {}
            self._settings = settings or RdmaSettings(notify=Notify(notify), **none)
            self._real = kind == "rdma"
            self._make = self._rdma

    def _rdma(self, *arguments: object) -> Endpoint:
        shape = self._settings.shape
        device = choose_device(shape) if self._real else FakeDevice()
        limits = Limits.here() if self._real else Limits(None, True, 0)
        return RdmaEndpoint(*arguments, device=device, settings=self._settings, limits=limits)  # type: ignore[arg-type]

    def party(self, name: str, job: str = "job", secret: bytes = SECRET) -> Party:
        party = Party(self._make, name, job, secret)
        self._parties.append(party)
        return party

    def pair(self) -> tuple[Party, Party, Channel, Channel]:
        """a connected to b: (a, b, a's channel, b's channel)."""
        a, b = self.party("a"), self.party("b")
        channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
        assert a.opened.get(timeout=WAIT) == ("b", channel)
        return a, b, channel, b.opened.get(timeout=WAIT)[1]

    def inject(self, channel: Channel, raw: bytes) -> None:
        """Put bytes on the wire behind the channel's back."""
        assert isinstance(channel, FlowChannel)
        transport = channel.transport
        if isinstance(transport, MemoryTransport):
            self._network.soon(lambda: transport.partner.arrive(raw))
        elif isinstance(transport, RdmaTransport):
            control = transport._control
            eventually(lambda: control.established is not None or self._settings.fallback)
            assert channel.flush(WAIT)

            def put() -> bool:
                with transport.connection.sending:
                    return control.phase is not LinkPhase.FALLING_BACK and not control.send([memoryview(raw)])

            eventually(put)
            transport._waker.wake()
        else:
            assert isinstance(transport, TcpTransport)
            transport.connection.socket.sendall(raw)

    def end(self) -> None:
        for party in self._parties:
            party.endpoint.close()
        self._network.stop()


class NoRoom:
    """A factory whose endpoint has no room for a link now."""

    def __init__(self, factory: ConnectionFactory) -> None:
        self.factory = factory

    def open(self, peer: str) -> None:
        raise Exhausted("TCP is preferred")


def prefer(channel: Channel, rdma: bool) -> None:
    """Have a channel that may use RDMA leave its link for TCP and stay there, or try a link again at once."""
    assert isinstance(channel, FlowChannel) and isinstance(channel.transport, RdmaTransport)
    transport, control = channel.transport, channel.transport._control
    factory = getattr(control._factory, "factory", control._factory)
    if rdma:
        control._factory = factory
        control._leads, control._retry_at = True, 0.0
    else:
        control._factory = NoRoom(factory)  # type: ignore[assignment]
        transport._failure = LinkLost("TCP is preferred")
    transport._waker.wake()


def defer_all(lane: Lane) -> tuple[list[DeferredCredit], Callable[[Message], DeferredCredit | None]]:
    """A handler that keeps the credit of one lane, and where it keeps it."""
    kept: list[DeferredCredit] = []

    def handler(message: Message) -> DeferredCredit | None:
        if message.lane != lane:
            return None
        kept.append(DeferredCredit())
        return kept[-1]

    return kept, handler


def eventually(true: Callable[[], object], seconds: float = WAIT) -> None:
    """Return when it is true; fail when it does not become true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def settled(channel: Channel) -> None:
    """Everything queued has left."""
    assert channel.flush(WAIT)


def job_of(channel: Channel) -> int:
    assert isinstance(channel, FlowChannel)
    return channel._job


def together(*calls: Callable[[], object]) -> None:
    """Run the calls at one time, each on a thread, to their end."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        barrier.wait(WAIT)
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
