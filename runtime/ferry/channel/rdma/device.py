"""Selects a device and one of its addresses; a device is used only after it has carried bytes in a self-test.

It must never choose a device silently: the error names the reason against each of the others.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Collection
from ipaddress import IPv6Address, ip_address
from typing import Any

from ferry.channel.rdma import fork
from ferry.channel.rdma.memory import PAGE_BYTES, RingShape
from ferry.channel.rdma.pages import HugePages
from ferry.channel.rdma.queue_pair import QueuePair
from ferry.channel.rdma.verbs import PORT, DeviceUnusable, Gid, Port, ScatterGatherEntry, device_names, library
from ferry.contract.errors import Fault

GIDS_MAX = 256
SELF_TEST_SECONDS = 2.0
_BRIDGES = ("docker", "cni", "br-", "veth", "virbr", "flannel")
_PATTERN = b"ferry self-test!"


class Device:
    """An open device. It closes after `close`, with its last queue pair. Raises DeviceUnusable."""

    def __init__(self, name: str, own: Collection[str] = (), gid_index: int | None = None) -> None:
        self._lib = lib = library()
        self._lock = threading.Lock()
        self._queue_pairs = 0
        self._closing = False
        self.pages = HugePages()
        """for memory of queue pairs from now on"""
        self._context: Any = None
        self.in_order = False
        """bytes of a write become visible in order, so that a footer can be trusted; known after the self-test"""
        fork.hold()
        try:
            self._context = lib.Context(name=name)
            state = self._context.query_port(PORT)
            if int(state.state) != int(lib.enums.IBV_PORT_ACTIVE):
                raise DeviceUnusable(f"{name}: its port is not active")
            self.port = Port(name, choose_gid(name, self._gids(), own, gid_index), int(state.active_mtu))
        except lib.PyverbsError as error:
            self.close()
            raise DeviceUnusable(f"{name}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _gids(self) -> list[Gid]:
        v2 = int(self._lib.enums.IBV_GID_TYPE_ROCE_V2)
        gids = []
        for entry in self._context.query_gid_table(GIDS_MAX):
            if entry.port_num == PORT:
                address = IPv6Address(self._context.query_gid(PORT, entry.gid_index).gid)
                netdev = ""
                with contextlib.suppress(OSError, AttributeError):
                    netdev = socket.if_indextoname(entry.ndev_ifindex)
                gids.append(Gid(entry.gid_index, address, 2 if int(entry.gid_type) == v2 else 0, netdev))
        return gids

    def queue_pair(self, depth: int, receives: int) -> QueuePair:
        """A new queue pair. Raises DeviceUnusable."""
        with self._lock:
            if self._closing:
                raise DeviceUnusable(f"{self.port.device} is closed")
            self._queue_pairs += 1
        try:
            return QueuePair(self._lib, self._context, self.port, depth, receives, self._one_closed, self.pages)
        except BaseException:
            self._one_closed()
            raise

    def _one_closed(self) -> None:
        with self._lock:
            self._queue_pairs -= 1
            self._end()

    def close(self) -> None:
        """Close, now or with the last queue pair; harmless when closed."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._end()

    def _end(self) -> None:
        if self._closing and not self._queue_pairs:
            if self._context is not None:
                self._context.close()
            self.pages.close()
            fork.drop()


def choose_gid(device: str, gids: Collection[Gid], own: Collection[str], index: int | None) -> Gid:
    """The address with the best rank, or with the index. Raises DeviceUnusable when there is none."""
    mine = frozenset(_mapped(address) for address in own)
    live = [gid for gid in gids if int(gid.address) and (index is None or gid.gid_index == index)]
    if not live:
        raise DeviceUnusable(f"{device}: no address" if index is None else f"{device}: no address with index {index}")
    return min(live, key=lambda gid: rank(gid, mine))


def rank(gid: Gid, own: Collection[IPv6Address]) -> tuple[bool, bool, bool, bool, bool, int]:
    """Sort key of an address, lower is better: routable, of this process, not of a container bridge, global, IPv4; then
    the first."""
    return (
        gid.version != 2,
        gid.address not in own,
        gid.netdev.startswith(_BRIDGES),
        gid.address.is_link_local,
        gid.address.ipv4_mapped is None,
        gid.gid_index,
    )


def _mapped(address: str) -> IPv6Address:
    parsed = ip_address(address)
    return parsed if isinstance(parsed, IPv6Address) else IPv6Address(f"::ffff:{parsed}")


def self_test(device: Device, shape: RingShape) -> None:
    """Write to itself, with rings of the real size. Raises DeviceUnusable when the bytes do not arrive."""
    name = device.port.device
    pair = device.queue_pair(shape.send_depth, shape.receives)
    try:
        ring = pair.region(max(shape.ring_bytes, PAGE_BYTES), remote=True)
        stage = pair.region(max(shape.ring_bytes, PAGE_BYTES), remote=False)
        stage.view[: len(_PATTERN)] = _PATTERN
        pair.connect(pair.address)
        device.in_order = pair.in_order
        end = ring.size - len(_PATTERN)
        entry = ScatterGatherEntry(stage.address, len(_PATTERN), stage.lkey)
        pair.post_write([entry], ring.address + end, ring.rkey, 1, signaled=True)
        deadline = time.monotonic() + SELF_TEST_SECONDS
        while not pair.poll():
            if time.monotonic() > deadline:
                raise DeviceUnusable(f"{name}: a write to itself was not finished after {SELF_TEST_SECONDS} s")
            time.sleep(0.001)
        if ring.view[end:] != _PATTERN:
            raise DeviceUnusable(f"{name}: a write to itself was finished, but its bytes did not arrive")
    except DeviceUnusable:
        raise
    except Fault as error:
        raise DeviceUnusable(f"{name}: {error}") from error
    finally:
        pair.close()


def choose_device(
    shape: RingShape, own: Collection[str] = (), name: str | None = None, gid_index: int | None = None
) -> Device:
    """The first device that passes its self-test. Raises DeviceUnusable with the reasons against all of them."""
    reasons = []
    names = device_names() if name is None else [name]
    for candidate in names:
        try:
            device = Device(candidate, own, gid_index)
        except DeviceUnusable as error:
            reasons.append(str(error))
            continue
        try:
            self_test(device, shape)
            return device
        except DeviceUnusable as error:
            device.close()
            reasons.append(str(error))
    raise DeviceUnusable("no RDMA device can be used: " + ("; ".join(reasons) or "there is none"))
