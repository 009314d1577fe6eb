"""The sending half of a connection that may use RDMA: senders' own threads, and whoever makes progress, under one lock.

A failure that a sender meets is kept for the thread that makes progress. It must never read what the peer says.
"""

from __future__ import annotations

import sys
import time

from ferry.channel.rdma.connection import ConnectionFactory, LinkLost, RdmaConnection, ReassemblyBuffer
from ferry.channel.rdma.link_control import LinkControl, LinkPhase
from ferry.channel.rdma.pace import Bell, PollPace
from ferry.channel.tcp.channel import Opening, TcpChannel
from ferry.contract import limits
from ferry.contract.errors import FerryError, Unreachable


class RdmaSender(TcpChannel):
    """See RdmaChannel."""

    transport = "rdma"

    def __init__(self, opening: Opening, means: ConnectionFactory) -> None:
        super().__init__(opening)
        self._fallback = means.fallback
        self._carriage = LinkControl(opening.sock, self.peer, means, leads=opening.initiator != self.peer)
        self._bell = Bell()
        self._pace = PollPace()
        self._intake = ReassemblyBuffer(means.shape)
        self._asleep = False
        self._listened = 0.0
        self._failure: FerryError | None = None
        """of a sender's thread, for the one that makes progress"""
        self._wish: bool | None = None

    def _kick(self, size: int) -> None:
        if size <= limits.SLOT_BYTES and self._failure is None and self._wire.acquire(blocking=False):
            try:
                self._carriage.look()
                self._send(batches=1)
            except FerryError as error:
                self._failure = error
            finally:
                self._wire.release()
        self._rouse()

    def _rouse(self) -> None:
        # Set before the thread looks for the last time what there is to do, and read after there was something to do.
        if self._asleep:
            self._bell.ring()

    def _send(self, batches: int) -> bool:
        """With the wire lock: as much as there is room for; True when something went."""
        if self._carriage.stage is LinkPhase.FALLEN:
            return False  # what goes first is not known before the peer has said what it read
        moved = False
        for _ in range(batches):
            if not self._carriage.push():
                break
            if not self._rest:
                self._settle()
                self._rest = self._collect()
                if not self._rest:
                    break
            before = sum(map(len, self._rest))
            self._rest = self._carriage.put(self._rest)
            moved |= sum(map(len, self._rest)) != before
            if self._rest:
                break
        if not self._rest and not self._carriage.unsent:
            self._settle()
        if moved:
            self._pace.worked()
        return moved

    def _settle(self) -> None:
        if self._in_hand:
            self._handed_over()

    def flush(self, timeout: float) -> bool:
        """See Channel.flush; when it returns True, everything is in the peer's memory, or its kernel has it to send."""
        deadline = time.monotonic() + timeout
        while super().flush(max(0.0, deadline - time.monotonic())):
            with self._wire:
                pipe = self._carriage.outgoing
                if self._in_hand:
                    continue  # the link fell meanwhile
                if pipe is None:
                    return self._closed is None
                try:
                    target = pipe.settle()
                except Unreachable as error:  # what was sent may go over TCP: see RdmaChannel
                    self._failure, target = LinkLost(str(error)), sys.maxsize
            self._rouse()
            if self._landed(pipe, target, deadline):
                return self._closed is None
        return False

    def _landed(self, pipe: RdmaConnection, target: int, deadline: float) -> bool:
        """Wait for that request; False when it was not done in time, or never will be."""

        def over() -> bool:
            return pipe.posts.done >= target or self._closed is not None or self._carriage.outgoing is not pipe

        with self._lock:
            self._idle.wait_for(over, max(0.0, deadline - time.monotonic()))
            return pipe.posts.done >= target
