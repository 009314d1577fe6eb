"""The driver of a run on this machine: its address, its status, placements and requests.

A driver that does not answer gives None or False here, not an error: the caller decides whether that matters.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from ferry.contract.errors import Fault, Unreachable
from ferry.contract.run_directory import DRIVER, DriverAddress
from ferry.contract.status import Status
from ferry_operator.control.decide import SubmitDesired
from ferry_operator.control.driver_client import BadAnswer, DriverClient


class LocalDriver:
    """The driver of one run. Each call names the process, because a run may have several drivers in turn."""

    def __init__(self, directory: Path, secret: str) -> None:
        self._file = directory / DRIVER
        self._secret = secret
        self._client = DriverClient()

    def status(self, pid: int, last: Status | None = None) -> Status | None:
        """Status of the driver with this process id; None while it does not answer. `last`: an earlier one."""
        url = self._url(pid)
        try:
            return None if url is None else self._client.status(url, self._secret, last)
        except BadAnswer:
            return None

    def submit(self, pid: int, action: SubmitDesired) -> bool:
        """Submit a placement; True if the driver has accepted it."""
        url = self._url(pid)
        if url is None:
            return False
        try:
            self._client.submit(url, self._secret, action, token=0)
        except Fault:
            return False
        return True

    def limit_copies(self, pid: int, bandwidth: int) -> None:
        """Set the bandwidth of copies; the status of the driver confirms it."""
        if (url := self._url(pid)) is not None:
            with contextlib.suppress(Fault):
                self._client.limit_copies(url, self._secret, bandwidth)

    def stop(self, pid: int) -> bool:
        """Ask for the end of the run after the current epoch; True if the driver has accepted the request."""
        url = self._url(pid)
        return url is not None and self._client.stop(url, self._secret)

    def checkpoint(self, pid: int, name: str | None) -> int:
        """Ask for a durable checkpoint; its number. Raises DriverRefuses, Unreachable."""
        url = self._url(pid)
        if url is None:
            raise Unreachable("the driver does not answer yet: it is starting")
        return self._client.checkpoint(url, self._secret, name)

    def suspend(self, pid: int) -> bool:
        """Ask for a last checkpoint and the end of the run; True if the driver accepts. Raises DriverRefuses."""
        url = self._url(pid)
        if url is None:
            return False
        try:
            self._client.suspend(url, self._secret)
        except Unreachable:
            return False
        return True

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _url(self, pid: int) -> str | None:
        """The URL of the endpoint, if this process has written it."""
        try:
            address = DriverAddress.load(self._file.read_text())
            return address.url if address.pid == pid else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class StatusWatch:
    """Polls the status in a thread, so that a slow driver never delays the supervisor."""

    PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 1.5
    FRESH_SECONDS = 5.0
    """Greatest age of a valid answer. The longest pause and the longest call are shorter."""

    def __init__(self, directory: Path, secret: str) -> None:
        self._client = LocalDriver(directory, secret)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._latest: tuple[Status, float] | None = None
        self._answered: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def latest(self, pid: int | None) -> Status | None:
        """The last answer of the driver with this process id, if it is fresh."""
        with self._lock:
            if pid != self._pid:
                self._pid, self._latest, self._answered = pid, None, None
            if self._latest is None or time.monotonic() - self._latest[1] > self.FRESH_SECONDS:
                return None
            return self._latest[0]

    @property
    def silent(self) -> float | None:
        """Seconds since the last answer of this driver; None: it has not answered yet."""
        with self._lock:
            return None if self._answered is None else time.monotonic() - self._answered

    def forget(self) -> None:
        """Drop the last answer, because an action may have made it stale."""
        with self._lock:
            self._latest = None

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join(timeout=5.0)
        self._client.close()

    def _run(self) -> None:
        while not self._end.is_set():
            with self._lock:
                pid, last = self._pid, self._latest[0] if self._latest is not None else None
            began = time.monotonic()
            status = self._client.status(pid, last) if pid is not None else None
            now = time.monotonic()
            with self._lock:
                if status is not None and pid == self._pid:
                    self._latest, self._answered = (status, now), now
            pause = min(3 * (now - began), self.PAUSE_SECONDS_MAX)  # a large status must not keep the driver busy
            self._end.wait(max(self.PAUSE_SECONDS, pause))
