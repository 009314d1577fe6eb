"""Which carrier is chosen: what the job says against what is there, and that nothing falls back in silence."""

from __future__ import annotations

import logging
import mmap
from ipaddress import IPv6Address

import pytest
from fake_verbs import FakeDevice

from ferry.channel import choice
from ferry.channel.choice import NOT_ASKED, TCP_ASKED, Choice, Party
from ferry.channel.rdma import endpoint
from ferry.channel.rdma.endpoint import RdmaEndpoint
from ferry.channel.rdma.memory import PAGE_BYTES, Limits, RingShape
from ferry.channel.rdma.pages import HUGE_BYTES, HugePages
from ferry.channel.rdma.verbs import DeviceUnusable, Gid, Port
from ferry.channel.tcp.endpoint import TcpEndpoint
from ferry.contract.settings import TransportSettings

THERE_IS_NONE = "no RDMA device can be used: there is none"
PLENTY, LITTLE = Limits(None, False, 1000), Limits(64 << 10, False, 1000)


class Present(FakeDevice):
    def __init__(self, in_order: bool = False) -> None:
        super().__init__()
        self.in_order, self.closed = in_order, False
        self.port = Port("mlx5_0", Gid(3, IPv6Address("::ffff:10.1.2.3"), 2, "eth0"), 5)

    def close(self) -> None:
        self.closed = True


class Machine:
    """Has a device, or none; remembers what it was asked for."""

    def __init__(self, device: Present | None) -> None:
        self.device = device
        self.asked: list[tuple[object, ...]] = []

    def choose_device(self, *asked: object) -> Present:
        self.asked.append(asked)
        if self.device is None:
            raise DeviceUnusable(THERE_IS_NONE)
        return self.device

    def choose(self, *own: str, **settings: object) -> Choice:
        def nothing(*_: object) -> None:
            return None

        party = Party("0.0", "job", b"secret", nothing, nothing, nothing)
        return choice.choose(TransportSettings(**settings), own, party)  # type: ignore[arg-type]


def machine(monkeypatch: pytest.MonkeyPatch, device: Present | None, limits: Limits = PLENTY) -> Machine:
    one = Machine(device)
    monkeypatch.setattr(choice, "choose_device", one.choose_device)
    monkeypatch.setattr(endpoint.Limits, "here", lambda: limits)
    return one


@pytest.mark.parametrize("present", [False, True], ids=["no device", "a device"])
@pytest.mark.parametrize(
    ("settings", "kind", "reason", "looks"),
    [
        ({"mode": "tcp"}, "tcp", TCP_ASKED, False),
        ({"mode": "tcp", "expected": True}, "tcp", TCP_ASKED, False),
        ({"mode": "auto"}, "tcp", NOT_ASKED, False),
        ({"mode": "auto", "expected": True}, "rdma", THERE_IS_NONE, True),
        ({"mode": "rdma"}, "rdma", None, True),
        ({"mode": "rdma", "expected": True}, "rdma", None, True),
    ],
)
def test_what_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, object],
    kind: str,
    reason: str | None,
    looks: bool,
    present: bool,
) -> None:
    """`reason`: without a device; None: it is refused."""
    here = machine(monkeypatch, Present() if present else None)
    with caplog.at_level(logging.WARNING):
        if reason is None and not present:
            with pytest.raises(DeviceUnusable, match=f"transport.mode is rdma, and {THERE_IS_NONE}"):
                here.choose(**settings)
        else:
            found = here.choose(**settings)
            fast = looks and present
            assert (found.kind, found.expected) == ("rdma" if fast else "tcp", looks)
            assert found.reason == ("" if fast else reason)
            assert isinstance(found.endpoint, RdmaEndpoint if fast else TcpEndpoint)
    assert bool(here.asked) == looks
    told = [one for one in caplog.messages if THERE_IS_NONE in one]
    assert len(told) == (settings["mode"] == "auto" and looks and not present), "a fallback is said aloud, once"


def test_what_is_said_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch, Present(in_order=True))
    found = here.choose("10.1.2.3", "a-name", mode="rdma", device="mlx5_0", gid_index=3, slots=4, slot_bytes=4096)
    assert here.asked == [(RingShape(4, 4096), ["10.1.2.3"], "mlx5_0", 3)], "a name is no address"
    assert (found.device, found.gid, found.mtu, found.notify) == ("mlx5_0", "10.1.2.3", 4096, "footer")
    assert here.choose(mode="rdma", notify="imm").notify == "imm"


def test_rings_are_in_as_many_huge_pages_as_the_job_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Present()
    here = machine(monkeypatch, device)
    found = here.choose(mode="rdma")
    assert device.pages.take(PAGE_BYTES) is None and found.huge_bytes == 0
    found = here.choose(mode="rdma", huge_bytes=HUGE_BYTES)
    device.pages = (
        HugePages(HUGE_BYTES, lambda size: mmap.mmap(-1, size)) if device.pages.maximum == HUGE_BYTES else None
    )
    assert device.pages.take(PAGE_BYTES) is not None and found.huge_bytes == PAGE_BYTES
    assert found.small_pages == "" and device.pages.take(4 * HUGE_BYTES) is None and "more than" in found.small_pages
    slow = here.choose(mode="tcp", huge_bytes=HUGE_BYTES)
    assert slow.huge_bytes == 0 and slow.small_pages == ""


@pytest.mark.parametrize(("mode", "fallback"), [("auto", True), ("rdma", False)])
def test_only_auto_lets_a_link_go_on_over_tcp(monkeypatch: pytest.MonkeyPatch, mode: str, fallback: bool) -> None:
    found = machine(monkeypatch, Present()).choose(mode=mode, expected=True, pinned_bytes=4 << 20)
    assert isinstance(found.endpoint, RdmaEndpoint)
    settings = found.endpoint._settings
    assert (settings.fallback, settings.pinned_bytes_max) == (fallback, 4 << 20)


def test_only_a_device_is_lent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    found = machine(monkeypatch, Present()).choose(mode="rdma", lend_bytes=1 << 20)
    found.lend(memory)
    assert isinstance(found.endpoint, RdmaEndpoint) and found.endpoint._lent.mappings == (memory,)
    assert found.lend_bytes == 1 << 20 and found.lent_bytes == 0
    tcp = machine(monkeypatch, None).choose(expected=True, lend_bytes=1 << 20)
    tcp.lend(memory)
    assert (tcp.kind, tcp.lend_bytes, tcp.lent_bytes) == ("tcp", 0, 0)


def test_what_will_be_lent_counts_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(monkeypatch, Present(), Limits(2 << 20, False, 1000))
    assert here.choose(expected=True).kind == "rdma"
    found = here.choose(expected=True, lend_bytes=1 << 20)
    assert found.kind == "tcp" and "that lend 1048576 bytes pin 2105344 bytes" in found.reason


def test_memory_that_may_not_be_pinned_is_a_reason_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Present()
    here = machine(monkeypatch, device, LITTLE)
    found = here.choose(expected=True)
    assert found.kind == "tcp" and "LimitMEMLOCK" in found.reason and device.closed
    with pytest.raises(DeviceUnusable, match="LimitMEMLOCK"):
        here.choose(mode="rdma")
