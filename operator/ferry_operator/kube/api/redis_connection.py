"""One connection to Redis: commands of the operator and their answers, in Redis's protocol (RESP2). Not thread-safe."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ferry.contract.addresses import netloc

SECONDS = 2.0
"""Time to connect, and time of each wait for an answer."""

LINE_MAX = 64 * 1024
ANSWER_MAX = 64 * 1024 * 1024
"""Bytes of one text in an answer, such as the list of clients."""


CA = "ssl_ca_data"
"""In the query of a URL: the certificate that a server's certificate has to lead to, as PEM. The client of runs reads it."""


class RedisRefusal(Exception):
    """Redis refuses a command."""


def where(url: str) -> str:
    """The address in the URL, without a password."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else netloc(parts.hostname or "localhost", parts.port or 6379)


def database(url: str) -> int:
    """The number of the database in the URL."""
    parts = urlsplit(url)
    number = parts.path.strip("/")
    return int(number) if parts.scheme != "unix" and number.isdigit() else 0


class RedisConnection:
    """A connection with a login. Raises OSError without an answer, RedisRefusal for a refused login."""

    def __init__(self, url: str) -> None:
        self._line = _connect(url)
        try:
            self._answers = self._line.makefile("rb")
            for command in _greetings(url):
                self.call(*command)
        except BaseException:
            self._line.close()
            raise

    def __enter__(self) -> RedisConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._line.close()

    def call(self, *words: str | int) -> Any:
        """The answer to one command. Raises RedisRefusal, OSError."""
        self._line.sendall(_encode(words))
        answer = self.read()
        if isinstance(answer, RedisRefusal):
            raise answer
        return answer

    def calls(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """The answers to some commands, which are sent together; a refusal is an answer. Raises OSError."""
        self._line.sendall(b"".join(map(_encode, commands)))
        return [self.read() for _ in commands]

    def read(self) -> Any:
        """The next answer: a text, a number, None, a list of answers or a refusal. Raises OSError."""
        line = self._answers.readline(LINE_MAX)
        if not line.endswith(b"\r\n"):
            raise ConnectionError("it closed the connection")
        kind, text = line[:1], line[1:-2].decode(errors="replace")
        if kind == b"+":
            return text
        if kind == b"-":
            return RedisRefusal(text)
        number = int(text)
        if kind == b":":
            return number
        if number < 0:
            return None
        if kind == b"*":
            return [self.read() for _ in range(number)]
        if kind != b"$" or number > ANSWER_MAX:
            raise ConnectionError(f"an answer is no answer of Redis: {line[:40]!r}")
        data = self._answers.read(number + 2)
        if len(data) != number + 2:
            raise ConnectionError("it closed the connection")
        return data[:-2].decode(errors="replace")


def _connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(SECONDS)
        line.connect(parts.path)
        return line
    line = socket.create_connection((parts.hostname or "localhost", parts.port or 6379), timeout=SECONDS)
    if parts.scheme != "rediss":
        return line
    try:
        trusted = parse_qs(parts.query).get(CA)
        context = ssl.create_default_context(cadata=trusted[0] if trusted else None)
        return context.wrap_socket(line, server_hostname=parts.hostname)
    except BaseException:
        line.close()
        raise


def _greetings(url: str) -> list[list[str]]:
    """The commands that log in and choose the database."""
    parts, number = urlsplit(url), database(url)
    user = [unquote(parts.username)] if parts.username else []
    login = [["AUTH", *user, unquote(parts.password)]] if parts.password else []
    return [*login, *([["SELECT", str(number)]] if number else [])]


def _encode(command: Sequence[str | int]) -> bytes:
    parts = [f"*{len(command)}\r\n".encode()]
    for word in command:
        data = str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
