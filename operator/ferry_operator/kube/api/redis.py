"""A few commands to the Redis of the installation: a ping, and the deletion of the entries of a run.

The runtime uses Redis through its registry. The operator pings Redis only while no driver answers, and cleans up.
"""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from ferry.contract import places
from ferry.contract.addresses import netloc

log = logging.getLogger("ferry.operator")

SECONDS = 2.0
LATE_SECONDS = 5.0
"""A ping without an answer after this time waits without a timeout, such as for a name server."""
AGAIN_SECONDS = 2.0
"""Between an answer and the next ping, for all callers together."""
ANSWER_MAX = 64 * 1024


def problem(url: str) -> str | None:
    """The reason that Redis is unusable, or None."""
    return _talk(url, [["PING"]])


def forget(url: str, run: str) -> str | None:
    """Delete the entries of a run; returns the reason of a failure, or None. Heartbeats expire on their own."""
    return _talk(url, [["DEL", *places.lasting(run)]])


class Redis:
    """The Redis of one installation. A caller waits for the answer."""

    def __init__(self, url: str) -> None:
        self._url = url

    def problem(self) -> str | None:
        """The reason that Redis is unusable, or None."""
        return problem(self._url)

    def forget(self, run: str) -> None:
        """Delete the entries of a run; a failure is logged."""
        why = forget(self._url, run)
        if why is not None:
            log.info("the Redis entries of run %s were not deleted: %s", run, why)


class RedisApart(Redis):
    """The same for callers that must not wait: a thread sends commands, and callers get the last answer. Thread-safe.

    A name server or a network without answers blocks this thread, and no job.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """None: the thread ends"""
        self._asked_at: float | None = None
        """start of the ping that waits for its answer"""
        self._last: tuple[str | None, float] = (None, -AGAIN_SECONDS)
        """the last answer, and its time"""
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="redis", daemon=True).start()

    def problem(self) -> str | None:
        """The last answer; None before the first one."""
        with self._lock:
            now = time.monotonic()
            if self._asked_at is None:
                if now - self._last[1] >= AGAIN_SECONDS:
                    self._asked_at = now
                    self._work.put(self._ask)
                return self._last[0]
            late = now - self._asked_at > LATE_SECONDS
            return f"Redis at {where(self._url)} does not answer within {LATE_SECONDS:g} s" if late else self._last[0]

    def forget(self, run: str) -> None:
        """Delete the entries of a run, later."""
        self._work.put(lambda: Redis.forget(self, run))

    def close(self) -> None:
        """End the thread, after the queued commands."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _ask(self) -> None:
        answer = Redis.problem(self)
        with self._lock:
            self._asked_at, self._last = None, (answer, time.monotonic())


def where(url: str) -> str:
    """The address in the URL, without a password."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else netloc(parts.hostname or "localhost", parts.port or 6379)


def _talk(url: str, commands: list[list[str]]) -> str | None:
    """Send commands with an answer of one line each; returns the first error, or None."""
    parts = urlsplit(url)
    everything = [*_login(parts.username, parts.password), *_database(parts.scheme, parts.path), *commands]
    try:
        with _connect(parts.scheme, parts.hostname, parts.port, parts.path) as line, line.makefile("rb") as answers:
            for command in everything:
                line.sendall(_encode(command))
                answer = answers.readline(ANSWER_MAX).decode(errors="replace").strip()
                if not answer or answer.startswith("-"):
                    return f"Redis at {where(url)} refuses {command[0]}: {answer[1:] or 'it closed the connection'}"
    except (OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded
        return f"Redis at {where(url)} does not answer: {error}"
    return None


def _connect(scheme: str, host: str | None, port: int | None, path: str) -> socket.socket:
    if scheme == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(SECONDS)
        line.connect(path)
        return line
    line = socket.create_connection((host or "localhost", port or 6379), timeout=SECONDS)
    return ssl.create_default_context().wrap_socket(line, server_hostname=host) if scheme == "rediss" else line


def _login(user: str | None, password: str | None) -> list[list[str]]:
    if not password:
        return []
    return [["AUTH", *([unquote(user)] if user else []), unquote(password)]]


def _database(scheme: str, path: str) -> list[list[str]]:
    number = path.strip("/")
    return [["SELECT", number]] if scheme != "unix" and number.isdigit() and number != "0" else []


def _encode(command: list[str]) -> bytes:
    parts = [f"*{len(command)}\r\n".encode()]
    for word in command:
        data = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
