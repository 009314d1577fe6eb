"""How a thread waits for memory to change: it polls, ever less often, and then sleeps until a descriptor is readable.

A loop that only polls is worse than one that sleeps wherever processor time is limited. It must never decide what to do.
"""

from __future__ import annotations

import os
import select
import threading
import time

SPINS, YIELDS, NAPS = 0, 30, 90
"""The first SPINS polls follow without a pause; up to YIELDS each lets other threads run first; up to NAPS each sleeps
NAP_SECONDS first. SPINS is 0: a thread that spins keeps the interpreter's lock from the one that has something to send."""

NAP_SECONDS = 0.0001
WAIT_MILLISECONDS, STALL_MILLISECONDS = 1, 5
"""Pause between two polls after that, and after STALL_SECONDS."""

STALL_SECONDS = 0.2
SLEEPY_SECONDS = 0.01
"""Nothing was done for this long: it is worth the effort to wait for the doorbell."""

PROBE_MILLISECONDS = 150
"""Without a completion for this long the peer's device is probed; it has 0.46 s to answer (see queue_pair)."""

ANSWER_MILLISECONDS = (2, 4, 8, 16, 32)
"""A sleeping thread's pauses before it looks for the answer to its probe. A busy peer takes longer: then it stays awake."""

LISTEN_SECONDS = 0.02
"""How often a busy channel reads its TCP connection."""

DRAIN_SECONDS = 1.0
"""How long a channel that ends waits for slots that its peer knows to have arrived."""

LAST_WORDS_SECONDS = 0.1
"""A link that broke: how long the peer may take to say why."""


class PollPace:
    """Knows when something was done last, and so how long to pause."""

    def __init__(self) -> None:
        self._polls = 0
        self._active = time.monotonic()

    def worked(self) -> None:
        """Something was done; any thread may call this."""
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
        """Nothing was done for so long that the thread should wait for the doorbell."""
        return time.monotonic() - self._active > SLEEPY_SECONDS

    @property
    def milliseconds(self) -> int:
        """The longer pause."""
        return STALL_MILLISECONDS if time.monotonic() - self._active > STALL_SECONDS else WAIT_MILLISECONDS


class Waker:
    """Wakes the thread that waits on it. Waking is allowed from any thread, also when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()

    def wake(self) -> None:
        """The wait that is going on, or the next one, ends at once."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, milliseconds: int, *descriptors: int, writable: bool = False) -> set[int]:
        """Until it is woken, one of the descriptors is readable, or the time is over; returns the ready ones.

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
