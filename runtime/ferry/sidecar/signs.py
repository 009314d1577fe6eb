"""Signs of life of a busy instance for its parent: one small mapped file, written without a system call.

    turn number | in the user's code | step, attempt | current computation

The turn number grows with each pass of the loop, and with each part of a long operation. It holds no time: the reader
uses its own clock, so a changed wall clock has no effect.
"""

from __future__ import annotations

import json
import mmap
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.records import record
from ferry.contract.user_code import line_in
from ferry.sidecar import ALIVE, REASON

_TURN = struct.Struct("<q")
_WORK = struct.Struct("<qqqqqq")
"""kind of work, epoch, operator, generation, number, bytes of the text"""
_NOTHING, _OWN, _USERS = range(3)
_BYTES = 1024
_TEXT_AT = _TURN.size + _WORK.size


@record
class Computing:
    """The present computation of an instance, or its last one before the process ended."""

    commit_id: CommitId
    what: str
    users: bool
    """The user's code runs."""


@record
class SignsSeen:
    """Content of the file."""

    turn: int
    computing: Computing | None


class Signs:
    """The instance's end: the loop writes, and the thread of the pulse reads."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _BYTES)
        self._turn = 0
        self.computing: Computing | None = None
        self._since = 0.0

    def begin(self, path: Path) -> None:
        """From now on the parent sees it."""
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self.turns()

    def turns(self) -> None:
        """The loop makes a pass, or goes on with a long operation."""
        self._turn += 1
        _TURN.pack_into(self._map, 0, self._turn)

    @contextmanager
    def computes(self, computing: Computing) -> Iterator[None]:
        """Around an operation that may take any time."""
        text = computing.what.encode()[: _BYTES - _TEXT_AT]
        (epoch, operator), (generation, number) = computing.commit_id
        self._map[_TEXT_AT : _TEXT_AT + len(text)] = text
        kind = _USERS if computing.users else _OWN
        _WORK.pack_into(self._map, _TURN.size, kind, epoch, operator, generation, number, len(text))
        self._since, self.computing = time.monotonic(), computing
        try:
            yield
        finally:
            self.computing = None
            _WORK.pack_into(self._map, _TURN.size, _NOTHING, 0, 0, 0, 0, 0)

    def computes_for(self) -> tuple[str, int]:
        """The present computation, and its milliseconds so far; empty: none."""
        computing, since = self.computing, self._since
        return ("", 0) if computing is None else (computing.what, int((time.monotonic() - since) * 1000))


ENDED = "ended"
"""File in the instance's directory: how its previous process ended, as its parent has seen it."""

CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


@record
class EndedLife:
    """How the process of an instance ended, unless it was told to."""

    code: int
    """as of `multiprocessing`: negative for a signal"""
    computing: Computing | None
    words: str = ""
    """the line of the user's code that has ended it, if known"""


def write_end(directory: Path, code: int) -> None:
    """Write the file; called by the parent."""
    seen = look(directory / ALIVE)
    computing = seen.computing if seen is not None else None
    document: dict[str, object] = {"code": code, "commit_id": None if computing is None else computing.commit_id}
    document |= {
        "what": "" if computing is None else computing.what,
        "users": computing is not None and computing.users,
        "words": _words(directory),
    }
    (directory / ENDED).write_text(json.dumps(document))


def _words(directory: Path) -> str:
    try:
        return line_in((directory / REASON).read_text("utf-8")) or ""
    except OSError:
        return ""


def read_end(directory: Path) -> EndedLife | None:
    """How the life before ended; None: unknown, or it was told to end."""
    try:
        document = json.loads((directory / ENDED).read_text())
        if document["commit_id"] is None:
            return EndedLife(document["code"], None)
        step, attempt = document["commit_id"]
        commit_id = CommitId(Step(*step), Attempt(*attempt))
        return EndedLife(
            document["code"], Computing(commit_id, document["what"], document["users"]), document.get("words", "")
        )
    except (FileNotFoundError, ValueError, KeyError):
        return None


def how(code: int) -> str:
    """How a process ended, in words."""
    if code == -signal.SIGKILL:
        return "SIGKILL, as when memory is short"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def crashed(directory: Path) -> bool:
    """Whether the life before crashed, rather than was killed."""
    end = read_end(directory)
    return end is not None and end.code in CRASHES


def look(path: Path) -> SignsSeen | None:
    """The parent's end; None before the loop has begun, and after its end."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _BYTES:
        return None
    (turn,) = _TURN.unpack_from(content)
    kind, epoch, operator, generation, number, size = _WORK.unpack_from(content, _TURN.size)
    if kind == _NOTHING:
        return SignsSeen(turn, None)
    what = content[_TEXT_AT : _TEXT_AT + size].decode(errors="replace")
    return SignsSeen(
        turn, Computing(CommitId(Step(epoch, operator), Attempt(generation, number)), what, kind == _USERS)
    )
