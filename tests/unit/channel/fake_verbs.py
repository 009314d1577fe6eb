"""A device of one process: the face of `rdma.device.Device` and its queue pairs, with memory instead of a network.

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
_queue_pairs: dict[int, FakeQueuePair] = {}
_qp_nums = itertools.count(33)
_keys = itertools.count(0x1003, 0x11)


class FakeRegion:
    def __init__(self, size, remote, mapping=None):
        self.size, self.remote, self.live = size, remote, True
        self.mapping = mapping or mmap.mmap(-1, size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self.view = memoryview(self.mapping)
        self.lkey, self.rkey = next(_keys), next(_keys)

    def holds(self, address, length):
        return self.address <= address and address + length <= self.address + self.size

    def revoke(self):
        self.live = False


class FakeQueuePair:
    in_order = False

    def __init__(self, device):
        self.device, self.qp_num, self.psn = device, next(_qp_nums), 7
        self.regions, self.peer, self.failed, self.armed = [], None, False, False
        self.done, self.arrived, self.receives = deque(), deque(), 0
        self.posted = []
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        _queue_pairs[self.qp_num] = self

    @property
    def address(self):
        return QueuePairAddress(self.qp_num, self.psn, IPv6Address("::ffff:10.9.0.1"), 5)

    def region(self, size, *, remote, mapping=None):
        self.regions.append(FakeRegion(size, remote, mapping))
        return self.regions[-1]

    def connect(self, peer, timeout=14, retries=6):
        self.peer = peer

    def post_write(
        self, entries, address, rkey, wr_id, *, signaled=False, inline=False, imm_data=None, solicited=False
    ):
        with _lock:
            data = b"".join(ctypes.string_at(entry.address, entry.length) for entry in entries)
            for entry in entries:
                ours = [r for r in self.regions if r.lkey == entry.lkey]
                assert ours and ours[0].holds(entry.address, entry.length), "an entry outside of its region"
            self.posted.append((wr_id, len(entries), len(data), imm_data, solicited))
            ours = all(r.live for r in self.regions for entry in entries if r.lkey == entry.lkey)
            problem = "WR_FLUSH_ERR" if self.failed else "LOC_PROT_ERR" if not ours else None
            problem = problem or self._deliver(data, address, rkey, imm_data, solicited)
            if problem:
                self.failed = True
                self.done.append(problem)
            elif signaled:
                self.done.append(wr_id)

    def _deliver(self, data, address, rkey, imm_data, solicited):
        other = _queue_pairs.get(self.peer.qp_num) if self.peer else None
        if other is None or other.failed or other.peer is None:
            return "RETRY_EXC_ERR"
        if data:
            target = [r for r in other.regions if r.rkey == rkey and r.remote]
            if not target or not target[0].live or not target[0].holds(address, len(data)):
                other.failed = True
                return "REM_ACCESS_ERR"
            ctypes.memmove(address, data, len(data))
        if imm_data is not None:
            if not other.receives:
                return "RNR_RETRY_EXC_ERR"
            other.receives -= 1
            other.arrived.append(imm_data)
            if solicited and other.armed:
                other.armed = False
                os.eventfd_write(other.fd, 1)
        return None

    def poll(self):
        last = 0
        with _lock:
            while self.done:
                last = self.done.popleft()
                if isinstance(last, str):
                    raise Unreachable(f"connection lost: RDMA request failed: {last}")
        return last

    def post_receives(self, count=1):
        with _lock:
            self.receives += count

    def poll_receives(self):
        with _lock:
            found = list(self.arrived)
            self.arrived.clear()
        return found

    def request_notify(self):
        self.armed = True

    def ack_events(self):
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
            _queue_pairs.pop(self.qp_num, None)
        os.close(self.fd)
        self.device.queue_pairs.remove(self)


class FakeDevice:
    in_order = False

    def __init__(self):
        self.queue_pairs = []

    def queue_pair(self, depth, receives):
        self.queue_pairs.append(FakeQueuePair(self))
        return self.queue_pairs[-1]

    def close(self):
        pass
