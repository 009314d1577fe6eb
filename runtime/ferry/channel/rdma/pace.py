"""Waiting for memory to change: polling, ever less often, and then sleeping until a descriptor is readable.

A loop that only polls is worse than one that sleeps wherever processor time is limited. It must never decide what to do.
"""

from __future__ import annotations

import os
import select
import threading
import time

SPINS, YIELDS, NAPS = 0, 30, 90
"""The first SPINS polls follow without a pause; up to YIELDS each lets other threads run first; up to NAPS each sleeps
NAP_SECONDS first. SPINS is 0: a spinning thread would keep the interpreter's lock from a sending one."""

NAP_SECONDS = 0.0001
WAIT_MILLISECONDS, STALL_MILLISECONDS = 1, 5
"""Pause between two polls after that, and after STALL_SECONDS."""

STALL_SECONDS = 0.2
SLEEPY_SECONDS = 0.01
"""After this long without work it pays to wait for the doorbell."""

PROBE_MILLISECONDS = 150
"""Without a completion for this long the peer's device is probed; it has 0.46 s to answer (see queue_pair)."""

ANSWER_MILLISECONDS = (2, 4, 8, 16, 32)
"""Pauses of a sleeping thread before it looks for the answer to its probe. A busy peer takes longer: then it stays
awake."""

LISTEN_SECONDS = 0.02
"""Interval at which a busy channel reads its TCP connection."""

DRAIN_SECONDS = 1.0
"""Longest wait of an ending channel for slots that its peer knows to have arrived."""

LAST_WORDS_SECONDS = 0.1
"""Longest wait, after a link broke, for the peer's reason."""


class PollPace:
    """Remembers the last work, and so the length of the next pause."""

    def __init__(self) -> None:
        self._polls = 0
        self._active = time.monotonic()

    def worked(self) -> None:
        """Work was done; any thread may call this."""
        self._polls = 0
        self._active = time.monotonic()

    def nap(self) -> bool:
        """A short pause; False when it is time for a longer one."""
        self._polls += 1
        if self._polls > NAPS:
            return False
        if self._polls > SPINS:
            time.sleep(0 if self._polls <= YIELDS else NAP_SECONDS)
        return True

    @property
    def sleepy(self) -> bool:
        """Whether the idle time is long enough to wait for the doorbell."""
        return time.monotonic() - self._active > SLEEPY_SECONDS

    @property
    def milliseconds(self) -> int:
        """The longer pause."""
        return STALL_MILLISECONDS if time.monotonic() - self._active > STALL_SECONDS else WAIT_MILLISECONDS


class Waker:
    """Wakes a waiting thread. Any thread may wake it, even after its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()

    def wake(self) -> None:
        """End the present wait, or the next one, at once."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, milliseconds: int, *descriptors: int, writable: bool = False) -> set[int]:
        """Wait until woken, until a descriptor is readable, or for the given time; returns the ready descriptors.

        `writable`: the first descriptor is also waited for until it can be written to.
        """
        wanted = (writable, self._descriptor, *descriptors)
        if wanted != self._registered:
            self._poller, self._registered = select.poll(), wanted
            for place, descriptor in enumerate(wanted[1:]):
                self._poller.register(descriptor, select.POLLIN | (select.POLLOUT if writable and place == 1 else 0))
        readable = {descriptor for descriptor, _ in self._poller.poll(milliseconds)}
        if self._descriptor in readable:
            os.eventfd_read(self._descriptor)
        return readable

    def close(self) -> None:
        """Harmless when closed."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
