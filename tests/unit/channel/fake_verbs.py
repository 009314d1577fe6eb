"""A device of one process: the face of `rdma.device.Device` and its links, with memory instead of a network.

It refuses what a device refuses (keys, bounds, rights, missing receives), so that the rings are tested without one.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import threading
from collections import deque
from ipaddress import IPv6Address

from ferry.channel.rdma.verbs import QueuePairAddress
from ferry.contract.errors import Unreachable

_lock = threading.RLock()
_links: dict[int, FakeLink] = {}
_numbers = itertools.count(33)
_keys = itertools.count(0x1003, 0x11)


class FakeRegion:
    def __init__(self, size, remote, mapping=None):
        self.size, self.remote, self.live = size, remote, True
        self.mapping = mapping or mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self.view = memoryview(self.mapping)
        self.local_key, self.remote_key = next(_keys), next(_keys)

    def holds(self, address, length):
        return self.address <= address and address + length <= self.address + self.size

    def revoke(self):
        self.live = False


class FakeLink:
    in_order = False

    def __init__(self, device):
        self.device, self.number, self.first = device, next(_numbers), 7
        self.regions, self.peer, self.failed, self.armed = [], None, False, False
        self.done, self.arrived, self.receives = deque(), deque(), 0
        self.posted = []
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        _links[self.number] = self

    @property
    def here(self):
        return QueuePairAddress(self.number, self.first, IPv6Address("::ffff:10.9.0.1"), 5)

    def region(self, size, *, remote, mapping=None):
        self.regions.append(FakeRegion(size, remote, mapping))
        return self.regions[-1]

    def connect(self, peer, timeout=14, retries=6):
        self.peer = peer

    def write(self, pieces, address, key, number, *, signal=False, inline=False, notice=None, wake=False):
        with _lock:
            data = b"".join(ctypes.string_at(piece.address, piece.length) for piece in pieces)
            for piece in pieces:
                ours = [r for r in self.regions if r.local_key == piece.key]
                assert ours and ours[0].holds(piece.address, piece.length), "a piece outside of its region"
            self.posted.append((number, len(pieces), len(data), notice, wake))
            ours = all(r.live for r in self.regions for piece in pieces if r.local_key == piece.key)
            problem = "WR_FLUSH_ERR" if self.failed else "LOC_PROT_ERR" if not ours else None
            problem = problem or self._deliver(data, address, key, notice, wake)
            if problem:
                self.failed = True
                self.done.append(problem)
            elif signal:
                self.done.append(number)

    def _deliver(self, data, address, key, notice, wake):
        other = _links.get(self.peer.number) if self.peer else None
        if other is None or other.failed or other.peer is None:
            return "RETRY_EXC_ERR"
        if data:
            target = [r for r in other.regions if r.remote_key == key and r.remote]
            if not target or not target[0].live or not target[0].holds(address, len(data)):
                other.failed = True
                return "REM_ACCESS_ERR"
            ctypes.memmove(address, data, len(data))
        if notice is not None:
            if not other.receives:
                return "RNR_RETRY_EXC_ERR"
            other.receives -= 1
            other.arrived.append(notice)
            if wake and other.armed:
                other.armed = False
                os.eventfd_write(other.fd, 1)
        return None

    def reap(self):
        last = 0
        with _lock:
            while self.done:
                last = self.done.popleft()
                if isinstance(last, str):
                    raise Unreachable(f"connection lost: RDMA request failed: {last}")
        return last

    def receive(self, count=1):
        with _lock:
            self.receives += count

    def notices(self):
        with _lock:
            found = list(self.arrived)
            self.arrived.clear()
        return found

    def arm(self):
        self.armed = True

    def disarm(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def barrier(self):
        pass

    def revoke(self):
        with _lock:
            for region in self.regions:
                region.revoke()

    def close(self):
        with _lock:
            self.revoke()
            _links.pop(self.number, None)
        os.close(self.fd)
        self.device.links.remove(self)


class FakeDevice:
    in_order = False

    def __init__(self):
        self.links = []

    def link(self, depth, receives):
        self.links.append(FakeLink(self))
        return self.links[-1]

    def close(self):
        pass
