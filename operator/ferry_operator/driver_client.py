"""Talks to the driver's control endpoint: status, desired placement, stop.

A driver that does not answer is no error here but None or False: whether that matters is decided elsewhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from ferry.contract.certificates import authority, client_context
from ferry.contract.documents import Status
from ferry.contract.tickets import derived


class DriverClient:
    """The driver of one run, whichever process it is at the moment."""

    def __init__(self, directory: Path, secret: str) -> None:
        self._file = directory / "driver.json"
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {derived(secret, 'control')}"},
            verify=client_context(authority(secret)), timeout=2.0, trust_env=False,
        )  # fmt: skip

    def status(self, pid: int) -> Status | None:
        """Status of the driver with this process id; None while it does not answer."""
        url = self._url(pid)
        if url is None:
            return None
        try:
            answer = self._http.get(f"{url}/status")
            return Status.from_wire(answer.json()) if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError, TypeError, KeyError):
            return None

    def submit(self, pid: int, number: int, placements: Sequence[Sequence[str]]) -> bool:
        """Hand over a desired placement; True when the driver has taken it."""
        url = self._url(pid)
        if url is None:
            return False
        document = {"number": number, "placements": [list(p) for p in placements]}
        try:
            return self._http.put(f"{url}/desired", json=document).is_success
        except httpx.HTTPError:
            return False

    def stop(self, pid: int) -> bool:
        """Ask for the end after the epoch under way; True when the driver has heard it."""
        url = self._url(pid)
        try:
            return url is not None and self._http.post(f"{url}/stop").is_success
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _url(self, pid: int) -> str | None:
        """Where the endpoint is, if it is this process that wrote it."""
        try:
            document = json.loads(self._file.read_text())
            return str(document["url"]).rstrip("/") if document["pid"] == pid else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class StatusWatch:
    """Asks for the status again and again in a thread, so that a slow driver never holds up the supervisor."""

    PAUSE_SECONDS = 0.1
    FRESH_SECONDS = 3.0
    """An older answer counts as none."""

    def __init__(self, directory: Path, secret: str) -> None:
        self._client = DriverClient(directory, secret)
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._latest: tuple[Status, float] | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def latest(self, pid: int | None) -> Status | None:
        """The last answer of the driver with this process id, if it is fresh."""
        with self._lock:
            if pid != self._pid:
                self._pid, self._latest = pid, None
            if self._latest is None or time.monotonic() - self._latest[1] > self.FRESH_SECONDS:
                return None
            return self._latest[0]

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
            took = time.monotonic() - began
            with self._lock:
                if status is not None and pid == self._pid:
                    self._latest = (status, began)
            self._end.wait(max(self.PAUSE_SECONDS, 3 * took))  # a large status must not keep the driver busy
