"""One queue pair with its protection domain and completion queues, and the memory regions that its device may reach.

It must never grant a right that is not needed (the peer may write to rings and credit words only, and may read
nothing), never wait inside a verbs call (pyverbs holds the interpreter's lock), and never leave a work request to the
garbage collector: pyverbs up to 64 leaks every one of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ferry.channel.rdma.neighbour import resolve
from ferry.channel.rdma.pages import HugePages
from ferry.channel.rdma.verbs import PORT, DeviceUnusable, Port, QueuePairAddress, ScatterGatherEntry, status_name
from ferry.contract.errors import Exhausted, Unreachable

SGES = 8
"""Scatter/gather entries of one work request."""

INLINE_BYTES = 32

TIMEOUT, RETRIES = 14, 6
"""4.096 us * 2**14 * (6 + 1) = 0.46 s until an unanswered request is an error. Seven retries mean endless on some
devices."""

_BATCH = 16
_RNR_TIMER = 12
_HOPS = 64

_opening = threading.Lock()


class MemoryRegion:
    """A shared mapping (a fork never copies it) that the device may reach; the peer may write to it only if `remote`.

    A `mapping` without `remote` is only read: pages of files can always be pinned for that. Other regions are in huge pages
    as far as there are some.
    """

    def __init__(
        self,
        lib: SimpleNamespace,
        domain: Any,
        size: int,
        remote: bool,
        mapping: mmap.mmap | None,
        pages: HugePages,
    ) -> None:
        self._own = mapping is None
        block = pages.take(size) if mapping is None else None
        offset = 0
        if block is not None:
            self._map, offset, _ = block
        else:
            self._map = mmap.mmap(-1, size) if mapping is None else mapping
        self._closes = self._own and block is None
        self._pin: Any = (ctypes.c_char * size).from_buffer(self._map, offset)
        if block is not None:
            weakref.finalize(self._pin, pages.give, block)  # every view keeps it
        self.size = size
        self.address = ctypes.addressof(self._pin)
        self.view = memoryview(self._pin).cast("B")
        access = lib.enums.IBV_ACCESS_LOCAL_WRITE if self._own or remote else 0
        access |= lib.enums.IBV_ACCESS_REMOTE_WRITE if remote else 0
        try:
            self._mr = lib.MR(domain, size, access, address=self.address)
        except lib.PyverbsError as error:
            self._mr = None
            self.close()
            raise Exhausted(f"{size} bytes cannot be pinned: {error}") from error
        self.lkey = int(self._mr.lkey)
        self.rkey = int(self._mr.rkey)

    def revoke(self) -> None:
        """From now on no request reaches this memory. The memory itself stays until `close`."""
        if self._mr is not None:
            self._mr.close()
            self._mr = None

    def close(self) -> None:
        """Revoke, and unmap the memory, or return its huge pages, when its last view is gone."""
        self.revoke()
        self._pin = None
        with contextlib.suppress(BufferError):
            self.view.release()
            if self._closes:
                self._map.close()


class QueuePair:
    """One reliable queue pair, in a protection domain of its own. Not locked: one thread at a time posts and polls."""

    def __init__(
        self,
        lib: SimpleNamespace,
        context: Any,
        port: Port,
        depth: int,
        receives: int,
        on_close: Callable[[], None],
        pages: HugePages,
    ) -> None:
        self._lib = lib
        self._pages = pages
        self._port = port
        self._on_close = on_close
        self._regions: list[MemoryRegion] = []
        self._stack = contextlib.ExitStack()
        self._failures: dict[int, str] = {}
        self.fd = -1
        """readable when a solicited write came after `request_notify`"""
        try:
            self._create(context, depth, receives)
        except BaseException as error:
            self._stack.close()
            if isinstance(error, lib.PyverbsError):
                raise DeviceUnusable(f"{port.device} gives no queue pair: {error}") from error
            raise
        self.psn = random.SystemRandom().getrandbits(24)
        self.qp_num = int(self._qp.qp_num)

    def _create(self, context: Any, depth: int, receives: int) -> None:
        lib = self._lib
        self._pd = self._keep(lib.PD(context))
        with _opening:
            before = _event_fds()
            self._comp_channel = self._keep(lib.CompChannel(context))
            # The attribute came with rdma-core 57.
            self.fd = getattr(self._comp_channel, "fd", None) or (_event_fds() - before).pop()
        os.set_blocking(self.fd, False)
        # After an error unsignaled requests complete, too: there must be room for all.
        self._send_cq = self._keep(lib.CQ(context, 2 * depth + _BATCH))
        self._recv_cq = self._keep(lib.CQ(context, receives + _BATCH, channel=self._comp_channel))
        caps = lib.QPCap(max_send_wr=depth, max_recv_wr=receives, max_send_sge=SGES, max_inline_data=INLINE_BYTES)
        asked = lib.QPInitAttr(
            qp_type=lib.enums.IBV_QPT_RC, scq=self._send_cq, rcq=self._recv_cq, sq_sig_all=0, cap=caps
        )
        self._qp = self._keep(lib.QP(self._pd, asked))
        self._receive_wr = self._keep(lib.RecvWR(wr_id=0, num_sge=1, sg=[lib.SGE(0, 0, 0)]))

    def _keep(self, thing: Any) -> Any:
        self._stack.callback(thing.close)
        return thing

    @property
    def address(self) -> QueuePairAddress:
        """The address with which the peer connects to this queue pair."""
        return QueuePairAddress(self.qp_num, self.psn, self._port.gid.address, self._port.mtu)

    def region(self, size: int, *, remote: bool, mapping: mmap.mmap | None = None) -> MemoryRegion:
        """Memory that the device may reach; `remote`: the peer may write to it. Raises Exhausted."""
        region = MemoryRegion(self._lib, self._pd, size, remote, mapping, self._pages)
        self._regions.append(region)
        return region

    def connect(self, peer: QueuePairAddress, timeout: int = TIMEOUT, retries: int = RETRIES) -> None:
        """Make it ready to send and to receive. The peer may write, and only write. Raises DeviceUnusable."""
        assert 0 <= retries <= RETRIES
        resolve(self._port.gid.address, peer.gid)
        lib = self._lib
        attributes = lib.QPAttr(port_num=PORT)
        attributes.qp_access_flags = lib.enums.IBV_ACCESS_REMOTE_WRITE
        try:
            self._qp.to_init(attributes)
            attributes.path_mtu = min(self._port.mtu, peer.mtu)
            attributes.dest_qp_num, attributes.rq_psn = peer.qp_num, peer.psn
            attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 0, _RNR_TIMER
            route = lib.GlobalRoute(dgid=lib.GID(peer.gid.exploded), sgid_index=self._port.gid.gid_index)
            route.hop_limit = _HOPS
            attributes.ah_attr = lib.AHAttr(port_num=PORT, is_global=1, gr=route)
            self._qp.to_rtr(attributes)
            attributes.sq_psn, attributes.timeout = self.psn, timeout
            attributes.retry_cnt, attributes.rnr_retry, attributes.max_rd_atomic = retries, RETRIES, 0
            self._qp.to_rts(attributes)
        except lib.PyverbsError as error:
            raise DeviceUnusable(f"{self._port.device} cannot connect to {peer.gid}: {error}") from error

    @property
    def in_order(self) -> bool:
        """Whether the device guarantees that the last byte of a write becomes visible last; known once connected."""
        try:
            return bool(self._qp.query_data_in_order(self._lib.enums.IBV_WR_RDMA_WRITE))
        except (AttributeError, self._lib.PyverbsError):
            return False

    # -- sending ------------------------------------------------------------------------------------------------------

    def post_write(
        self,
        entries: Sequence[ScatterGatherEntry],
        address: int,
        rkey: int,
        wr_id: int,
        *,
        signaled: bool = False,
        inline: bool = False,
        imm_data: int | None = None,
        solicited: bool = False,
    ) -> None:
        """Post one WRITE; `imm_data`: the peer gets a completion with it; `solicited`: one that makes its `fd`
        readable."""
        lib = self._lib
        enums = lib.enums
        flags = (
            (enums.IBV_SEND_SIGNALED if signaled else 0)
            | (enums.IBV_SEND_INLINE if inline else 0)
            | (enums.IBV_SEND_SOLICITED if solicited else 0)
        )
        sges = [lib.SGE(entry.address, entry.length, entry.lkey) for entry in entries]
        request = lib.SendWR(
            wr_id=wr_id,
            opcode=enums.IBV_WR_RDMA_WRITE if imm_data is None else enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=len(sges),
            sg=sges,
            send_flags=flags,
            imm_data=imm_data or 0,
        )
        try:
            request.set_wr_rdma(rkey, address)
            self._qp.post_send(request)
        except lib.PyverbsError as error:
            raise Unreachable(f"a request could not be posted: {error}") from error
        finally:
            request.close()
            for sge in sges:
                sge.close()

    def poll(self) -> int:
        """The greatest `wr_id` among new completions, or 0. Raises Unreachable for a request that failed, after those."""
        last = 0
        for done in self._completions(self._send_cq):
            last = int(done.wr_id)
        return last

    def _completions(self, queue: Any) -> list[Any]:
        """New completions until the first failure, which is raised when no completion came before it."""
        good = []
        for done in queue.poll(_BATCH)[1]:
            if int(done.status) != int(self._lib.enums.IBV_WC_SUCCESS):
                self._failures.setdefault(id(queue), status_name(int(done.status)))
                break
            good.append(done)
        if not good and id(queue) in self._failures:
            raise Unreachable(f"connection lost: RDMA request failed: {self._failures[id(queue)]}")
        return good

    # -- receiving ----------------------------------------------------------------------------------------------------

    def post_receives(self, count: int = 1) -> None:
        """Post receives, for immediate data; from `connect` on."""
        try:
            for _ in range(count):
                self._qp.post_recv(self._receive_wr)
        except self._lib.PyverbsError as error:
            raise Unreachable(f"a receive could not be posted: {error}") from error

    def poll_receives(self) -> list[int]:
        """Received immediate data; each used up one receive. Raises Unreachable when the queue pair failed."""
        try:
            return [int(done.imm_data) & 0xFFFFFFFF for done in self._completions(self._recv_cq)]
        except Unreachable:
            self.poll()  # the failed request has the reason, the flushed receives after it do not
            raise

    def request_notify(self) -> None:
        """The next solicited write makes `fd` readable. Poll receives once more after this."""
        self._recv_cq.req_notify(True)

    def ack_events(self) -> None:
        """Take the events that made `fd` readable; never waits."""
        # EAGAIN ends the loop: the descriptor does not block.
        with contextlib.suppress(self._lib.PyverbsError):
            while True:
                self._comp_channel.get_cq_event(self._recv_cq)
                self._recv_cq.ack_events(1)

    def barrier(self) -> None:
        """After this, all writes of the device before the last read word are visible."""
        self._lib.barrier()

    # -- ending -------------------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        """The fence: after this no request of the peer, however late, reaches memory of this queue pair."""
        for region in self._regions:
            region.revoke()

    def close(self) -> None:
        """Revoke, then destroy everything in order; once. No other thread may use the queue pair any more."""
        try:
            self.revoke()
            self._stack.close()
            for region in self._regions:
                region.close()
        finally:
            self._on_close()


def _event_fds() -> set[int]:
    fds = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[infinibandevent]":
                fds.add(int(name))
    return fds
