"""The driver of a run of this machine: where it listens, its status, a placement, requests.

A driver that does not answer is no error here but None or False: whether that matters is decided elsewhere.
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
    """The driver of one run, whichever process it is at the moment."""

    def __init__(self, directory: Path, secret: str) -> None:
        self._file = directory / DRIVER
        self._secret = secret
        self._client = DriverClient()

    def status(self, pid: int) -> Status | None:
        """Status of the driver with this process id; None while it does not answer."""
        url = self._url(pid)
        try:
            return None if url is None else self._client.status(url, self._secret)
        except BadAnswer:
            return None

    def submit(self, pid: int, action: SubmitDesired) -> bool:
        """Hand over a desired placement; True when the driver has taken it."""
        url = self._url(pid)
        if url is None:
            return False
        try:
            self._client.submit(url, self._secret, action, token=0)
        except Fault:
            return False
        return True

    def limit_copies(self, pid: int, bandwidth: int) -> None:
        """Tell it what copies may use; its status says when it has heard that."""
        if (url := self._url(pid)) is not None:
            with contextlib.suppress(Fault):
                self._client.limit_copies(url, self._secret, bandwidth)

    def stop(self, pid: int) -> bool:
        """Ask for the end after the epoch under way; True when the driver has heard it."""
        url = self._url(pid)
        return url is not None and self._client.stop(url, self._secret)

    def checkpoint(self, pid: int, name: str | None) -> int:
        """Ask for a durable checkpoint; its number. Raises DriverRefuses, Unreachable."""
        url = self._url(pid)
        if url is None:
            raise Unreachable("the driver does not serve yet")
        return self._client.checkpoint(url, self._secret, name)

    def suspend(self, pid: int) -> bool:
        """Ask for a last checkpoint and the end after it; True when the driver has heard it. Raises DriverRefuses."""
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
        """Where the endpoint is, if it is this process that wrote it."""
        try:
            one = DriverAddress.load(self._file.read_text())
            return one.url if one.pid == pid else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class StatusWatch:
    """Asks for the status again and again in a thread, so that a slow driver never holds up the supervisor."""

    PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 1.5
    FRESH_SECONDS = 5.0
    """An older answer counts as none. The longest pause and the longest call take less."""

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
        """Seconds since this driver has answered; None: it has not yet."""
        with self._lock:
            return None if self._answered is None else time.monotonic() - self._answered

    def forget(self) -> None:
        """Drop the last answer: what was done since may have changed it."""
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
                pid = self._pid
            began = time.monotonic()
            status = self._client.status(pid) if pid is not None else None
            now = time.monotonic()
            with self._lock:
                if status is not None and pid == self._pid:
                    self._latest, self._answered = (status, now), now
            pause = min(3 * (now - began), self.PAUSE_SECONDS_MAX)  # a large status must not keep the driver busy
            self._end.wait(max(self.PAUSE_SECONDS, pause))
