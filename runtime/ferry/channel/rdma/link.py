"""One queue pair with all that belongs to it, and the memory that a device may reach.

It must never grant a right that is not needed (the peer may write to rings and credit words, and to nothing else; nobody
may read), never wait inside a verbs call, and never leave a work request to the garbage collector: pyverbs up to 64 leaks
every one of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from ferry.channel.rdma.verbs import PORT, DeviceUnusable, Piece, Port, QueuePairAddress, status_name
from ferry.contract.errors import Exhausted, Unreachable

SGES = 8
"""Entries of one gather."""

INLINE_BYTES = 32

TIMEOUT, RETRIES = 14, 6
"""4.096 us * 2**14 * (6 + 1) = 0.46 s until an unanswered request is an error. Seven retries would be for ever on some."""

_BATCH = 16
_RNR_TIMER = 12
_HOPS = 64

_opening = threading.Lock()


class Region:
    """A shared mapping (a fork never copies it) that the device may reach; the peer may write to it only if `remote`.

    A `mapping` that is given, and not `remote`, is only read: pages of files can be pinned so, for writing not always.
    """

    def __init__(self, lib: SimpleNamespace, domain: Any, size: int, remote: bool, mapping: mmap.mmap | None) -> None:
        self._own = mapping is None
        self._map = mmap.mmap(-1, size) if mapping is None else mapping
        self._pin: Any = (ctypes.c_char * size).from_buffer(self._map)
        self.size = size
        self.address = ctypes.addressof(self._pin)
        self.view = memoryview(self._map)
        access = lib.enums.IBV_ACCESS_LOCAL_WRITE if self._own or remote else 0
        access |= lib.enums.IBV_ACCESS_REMOTE_WRITE if remote else 0
        try:
            self._mr = lib.MR(domain, size, access, address=self.address)
        except lib.PyverbsError as error:
            raise Exhausted(f"{size} bytes cannot be pinned: {error}") from error
        self.local_key = int(self._mr.lkey)
        self.remote_key = int(self._mr.rkey)

    def revoke(self) -> None:
        """From now on nobody's request reaches this memory. The memory itself stays until `close`."""
        if self._mr is not None:
            self._mr.close()
            self._mr = None

    def close(self) -> None:
        """Revoke, and give the memory back as soon as nobody looks at it."""
        self.revoke()
        self._pin = None
        with contextlib.suppress(BufferError):
            self.view.release()
            if self._own:
                self._map.close()


class Link:
    """One reliable queue pair, in a protection domain of its own. Not locked: one thread at a time posts and reaps."""

    def __init__(
        self, lib: SimpleNamespace, context: Any, port: Port, depth: int, receives: int, on_close: Callable[[], None]
    ) -> None:
        self._lib = lib
        self._port = port
        self._on_close = on_close
        self._regions: list[Region] = []
        self._stack = contextlib.ExitStack()
        self._failures: dict[int, str] = {}
        self.fd = -1
        """becomes readable when a notice with `wake` came after `arm`"""
        try:
            self._create(context, depth, receives)
        except BaseException as error:
            self._stack.close()
            if isinstance(error, lib.PyverbsError):
                raise DeviceUnusable(f"{port.device} gives no queue pair: {error}") from error
            raise
        self.first = random.SystemRandom().getrandbits(24)
        self.number = int(self._qp.qp_num)

    def _create(self, context: Any, depth: int, receives: int) -> None:
        lib = self._lib
        self._domain = self._keep(lib.PD(context))
        with _opening:
            before = _event_fds()
            self._channel = self._keep(lib.CompChannel(context))
            # The attribute came with rdma-core 57.
            self.fd = getattr(self._channel, "fd", None) or (_event_fds() - before).pop()
        os.set_blocking(self.fd, False)
        # On an error requests that asked for no completion get one, too: there must be room for all.
        self._sent = self._keep(lib.CQ(context, 2 * depth + _BATCH))
        self._arrived = self._keep(lib.CQ(context, receives + _BATCH, channel=self._channel))
        caps = lib.QPCap(max_send_wr=depth, max_recv_wr=receives, max_send_sge=SGES, max_inline_data=INLINE_BYTES)
        asked = lib.QPInitAttr(qp_type=lib.enums.IBV_QPT_RC, scq=self._sent, rcq=self._arrived, sq_sig_all=0, cap=caps)
        self._qp = self._keep(lib.QP(self._domain, asked))
        self._receive = self._keep(lib.RecvWR(wr_id=0, num_sge=1, sg=[lib.SGE(0, 0, 0)]))

    def _keep(self, thing: Any) -> Any:
        self._stack.callback(thing.close)
        return thing

    @property
    def here(self) -> QueuePairAddress:
        """What the peer has to know to connect."""
        return QueuePairAddress(self.number, self.first, self._port.gid.address, self._port.mtu)

    def region(self, size: int, *, remote: bool, mapping: mmap.mmap | None = None) -> Region:
        """Memory that the device may reach; `remote`: the peer may write to it. Raises Exhausted."""
        region = Region(self._lib, self._domain, size, remote, mapping)
        self._regions.append(region)
        return region

    def connect(self, peer: QueuePairAddress, timeout: int = TIMEOUT, retries: int = RETRIES) -> None:
        """Ready to send and to receive. The peer may write, and only write."""
        assert 0 <= retries <= RETRIES
        lib = self._lib
        attributes = lib.QPAttr(port_num=PORT)
        attributes.qp_access_flags = lib.enums.IBV_ACCESS_REMOTE_WRITE
        try:
            self._qp.to_init(attributes)
            attributes.path_mtu = min(self._port.mtu, peer.mtu)
            attributes.dest_qp_num, attributes.rq_psn = peer.number, peer.first
            attributes.max_dest_rd_atomic, attributes.min_rnr_timer = 0, _RNR_TIMER
            route = lib.GlobalRoute(dgid=lib.GID(peer.gid.exploded), sgid_index=self._port.gid.number)
            route.hop_limit = _HOPS
            attributes.ah_attr = lib.AHAttr(port_num=PORT, is_global=1, gr=route)
            self._qp.to_rtr(attributes)
            attributes.sq_psn, attributes.timeout = self.first, timeout
            attributes.retry_cnt, attributes.rnr_retry, attributes.max_rd_atomic = retries, RETRIES, 0
            self._qp.to_rts(attributes)
        except lib.PyverbsError as error:
            raise DeviceUnusable(f"{self._port.device} cannot connect to {peer.gid}: {error}") from error

    @property
    def in_order(self) -> bool:
        """The device guarantees that the last byte of a write is seen last; asked when connected."""
        try:
            return bool(self._qp.query_data_in_order(self._lib.enums.IBV_WR_RDMA_WRITE))
        except (AttributeError, self._lib.PyverbsError):
            return False

    # -- sending ------------------------------------------------------------------------------------------------------

    def write(
        self,
        pieces: Sequence[Piece],
        address: int,
        key: int,
        number: int,
        *,
        signal: bool = False,
        inline: bool = False,
        notice: int | None = None,
        wake: bool = False,
    ) -> None:
        """Post one WRITE; `notice`: the peer gets a completion with it; `wake`: one that rings its doorbell."""
        lib = self._lib
        enums = lib.enums
        flags = (
            (enums.IBV_SEND_SIGNALED if signal else 0)
            | (enums.IBV_SEND_INLINE if inline else 0)
            | (enums.IBV_SEND_SOLICITED if wake else 0)
        )
        entries = [lib.SGE(piece.address, piece.length, piece.key) for piece in pieces]
        request = lib.SendWR(
            wr_id=number,
            opcode=enums.IBV_WR_RDMA_WRITE if notice is None else enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=len(entries),
            sg=entries,
            send_flags=flags,
            imm_data=notice or 0,
        )
        try:
            request.set_wr_rdma(key, address)
            self._qp.post_send(request)
        except lib.PyverbsError as error:
            raise Unreachable(f"a request could not be posted: {error}") from error
        finally:
            request.close()
            for entry in entries:
                entry.close()

    def reap(self) -> int:
        """The greatest number among new completions, or 0. Raises Unreachable for a request that failed, after those."""
        last = 0
        for done in self._good(self._sent):
            last = int(done.wr_id)
        return last

    def _good(self, queue: Any) -> list[Any]:
        """New completions until the first failure, which is raised when none came before it."""
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

    def receive(self, count: int = 1) -> None:
        """Post receives, for notices; from `connect` on."""
        try:
            for _ in range(count):
                self._qp.post_recv(self._receive)
        except self._lib.PyverbsError as error:
            raise Unreachable(f"a receive could not be posted: {error}") from error

    def notices(self) -> list[int]:
        """Notices that came; each used up one receive. Raises Unreachable when the queue pair failed."""
        try:
            return [int(done.imm_data) & 0xFFFFFFFF for done in self._good(self._arrived)]
        except Unreachable:
            self.reap()  # the request that failed tells why, not the receives that were flushed after it
            raise

    def arm(self) -> None:
        """The next notice with `wake` makes `fd` readable. Look for notices once more after this."""
        self._arrived.req_notify(True)

    def disarm(self) -> None:
        """Take what made `fd` readable; never waits."""
        # EAGAIN ends it: the descriptor does not block.
        with contextlib.suppress(self._lib.PyverbsError):
            while True:
                self._channel.get_cq_event(self._arrived)
                self._arrived.ack_events(1)

    def barrier(self) -> None:
        """What the device wrote before what was just read is visible after this."""
        self._lib.barrier()

    # -- ending -------------------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        """The fence: no request of the peer, however late, reaches any memory of this link after this."""
        for region in self._regions:
            region.revoke()

    def close(self) -> None:
        """Revoke, then end everything in order; once. No other thread may use the link any more."""
        try:
            self.revoke()
            self._stack.close()
            for region in self._regions:
                region.close()
        finally:
            self._on_close()


def _event_fds() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[infinibandevent]":
                found.add(int(name))
    return found
