"""How a thread waits for memory to change: it looks, ever less often, and then sleeps until a descriptor is readable.

A loop that only looks is worse than one that sleeps wherever processor time is limited. It must never decide what to do.
"""

from __future__ import annotations

import os
import select
import threading
import time

SPINS, YIELDS, NAPS = 0, 30, 90
"""Looks without a pause; then, up to this many, with one that lets other threads run; then after NAP_SECONDS. None is
without a pause: a thread that only looks keeps the interpreter's lock from the thread that has something to send."""

NAP_SECONDS = 0.0001
WAIT_MILLISECONDS, STALL_MILLISECONDS = 1, 5
"""Pause between two looks after that, and after STALL_SECONDS."""

STALL_SECONDS = 0.2
SLEEPY_SECONDS = 0.01
"""Nothing was done for this long: it is worth the effort to fall asleep."""

PROBE_MILLISECONDS = 150
"""Without a completion for this long the peer's device is asked; it has 0.46 s to answer (see link)."""

ANSWER_MILLISECONDS = (2, 4, 8, 16, 32)
"""A sleeper's pauses until it looks for the answer; later it looks as one that is awake, for a busy peer not at once."""

LISTEN_SECONDS = 0.02
"""How often a busy channel looks at its TCP connection."""

DRAIN_SECONDS = 1.0
"""How long a channel that ends waits for slots that its peer knows to have arrived."""

LAST_WORDS_SECONDS = 0.1
"""A link that broke: how long the peer may take to say why."""


class PollPace:
    """When something was done last, and how to wait for more."""

    def __init__(self) -> None:
        self._looks = 0
        self._active = time.monotonic()

    def worked(self) -> None:
        """Something was done; any thread may say so."""
        self._looks = 0
        self._active = time.monotonic()

    def nap(self) -> bool:
        """A short pause; False when it is time for a longer one."""
        self._looks += 1
        if self._looks > NAPS:
            return False
        if self._looks > SPINS:
            time.sleep(0 if self._looks <= YIELDS else NAP_SECONDS)
        return True

    @property
    def sleepy(self) -> bool:
        """Nothing was done for long enough to fall asleep."""
        return time.monotonic() - self._active > SLEEPY_SECONDS

    @property
    def milliseconds(self) -> int:
        """The longer pause."""
        return STALL_MILLISECONDS if time.monotonic() - self._active > STALL_SECONDS else WAIT_MILLISECONDS


class Bell:
    """Wakes the thread that waits on it. Ringing is allowed from any thread, also when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._registered: tuple[int, ...] = ()

    def ring(self) -> None:
        """The wait that is going on, or the next one, ends at once."""
        with self._lock:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def wait(self, milliseconds: int, *descriptors: int, writable: bool = False) -> set[int]:
        """Until it rings, one of the descriptors is readable, or the time is over; returns the ready ones.

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
