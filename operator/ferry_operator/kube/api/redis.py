"""A few commands to the Redis of the installation: does it answer, and may it forget a run?

The runtime talks to Redis through its registry; the operator only asks why no driver answers, and cleans up.
"""

from __future__ import annotations

import socket
import ssl
from urllib.parse import unquote, urlsplit

from ferry.contract import places
from ferry.contract.addresses import netloc

SECONDS = 2.0
ANSWER_MAX = 64 * 1024


def problem(url: str) -> str | None:
    """Why the server cannot be used, or None."""
    return _talk(url, [["PING"]])


def forget(url: str, run: str) -> str | None:
    """Delete what a run has left there; the reason when that was not possible. Heartbeats run out by themselves."""
    return _talk(url, [["DEL", *places.lasting(run)]])


def _talk(url: str, commands: list[list[str]]) -> str | None:
    """Send commands, each of which is answered in one line; the first error."""
    parts = urlsplit(url)
    where = parts.path if parts.scheme == "unix" else netloc(parts.hostname or "localhost", parts.port or 6379)
    everything = [*_login(parts.username, parts.password), *_database(parts.scheme, parts.path), *commands]
    try:
        with _connect(parts.scheme, parts.hostname, parts.port, parts.path) as line, line.makefile("rb") as answers:
            for command in everything:
                line.sendall(_encode(command))
                answer = answers.readline(ANSWER_MAX).decode(errors="replace").strip()
                if not answer or answer.startswith("-"):
                    return f"Redis at {where} refuses {command[0]}: {answer[1:] or 'it closed the connection'}"
    except OSError as error:
        return f"Redis at {where} does not answer: {error}"
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
