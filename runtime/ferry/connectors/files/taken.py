"""The record of taken files: the source takes every file of a directory exactly once, whatever its time.

A position names the files of its own epoch. A list on disk holds the files of earlier epochs, one line per position, chained
by `after`. A process that has lost the list compares the directory with the position's digest, and refuses to guess. Must
never forget a file that the directory still holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ferry.connectors.splits import Position
from ferry.contract.errors import Fault
from ferry.system.files import replacing

FORGET_SECONDS = 3600.0
"""A name is forgotten, and may be used for another file, when a process has not seen it for this time. A listing may lack an
entry for a moment, and a file that is taken twice would count twice."""

KEPT_LINES = 100
"""Last positions that a rewrite of the list keeps as separate lines: the number of offsets that Spark keeps."""

NAMES_SPARE = 10_000
"""The list is rewritten when it holds this many names more than twice the number of known files."""


class File(NamedTuple):
    """A file in a listing. The files of a listing are taken in the order of these fields."""

    mtime_ns: int
    name: str
    size: int


def digest(files: Iterable[File]) -> list[Any]:
    """[number, sum of hashes] of a set of files."""
    hashes = [_hash(file) for file in files]
    return [len(hashes), f"{sum(hashes) & (1 << 64) - 1:x}"]


@lru_cache(1 << 18)
def _hash(file: File) -> int:
    return int.from_bytes(hashlib.blake2b(repr(tuple(file)).encode(), digest_size=8).digest())


def files_of(position: Position) -> list[File]:
    """The files of the epoch that ends at a position."""
    return [File(*file) for file in position["files"]]


def origin() -> Position:
    """The position before the first file."""
    return {"id": "", "after": "", "files": [], "last": [0, ""], "present": digest([]), "taken": 0}


class Taken:
    """The files taken up to the last requested position."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log: Path | None = None
        self._at: str | None = None
        self._files: dict[str, File] = {}
        self._missed: dict[str, float] = {}
        self._changing: dict[str, File] = {}
        """Taken files that could not be read, in their last seen version. They may be replaced."""
        self._names = 0

    def keep(self, log: Path) -> None:
        """Keep the list in this file. Without a file, the list exists only in this process."""
        self._log = log
        for line in self._read():
            self._changing |= {name: File(mtime, name, size) for mtime, name, size in line.get("changing", ())}

    def new(self, position: Position, listed: list[File], forget: bool = True) -> list[File]:
        """The listed files that are not taken at this position. Raises Fault if a taken file was written again."""
        self._come_to(position, listed)
        if forget:
            self._forget({file.name for file in listed})
        for file in listed:
            known = self._files.get(file.name, file)
            if file not in (known, self._changing.get(file.name)):
                raise Fault(
                    f"{self._directory}/{file.name} was read, and then written again or replaced: a file is read once. "
                    "Restore or remove it, and write new records under a new name"
                )
        return [file for file in listed if file.name not in self._files]

    def after(self, position: Position, listed: list[File], files: list[File]) -> Position:
        """The position after `files`, which follow `position`."""
        assert self._at == position["id"] and files
        here = [file for file in listed if file.name in self._files]
        names = json.dumps([position["id"], files])
        return {
            **position,
            "id": hashlib.blake2b(names.encode(), digest_size=12).hexdigest(),
            "after": position["id"],
            "files": [list(file) for file in files],
            "last": max(position["last"], list(max(files)[:2])),
            "present": digest([*here, *files]),
            "taken": position["taken"] + len(files),
        }

    def known(self) -> list[File]:
        """All taken files that are not forgotten."""
        return list(self._files.values())

    def may_change(self, files: list[File]) -> None:
        """Allow the replacement of these files of the current epoch, which could not be read."""
        if changed := [file for file in files if self._changing.get(file.name) != file]:
            self._changing |= {file.name: file for file in changed}
            self._append({"id": self._at, "changing": [list(file) for file in changed]})

    def changes(self, name: str) -> bool:
        """Whether a taken file may be replaced."""
        return name in self._changing

    def _come_to(self, position: Position, listed: list[File]) -> None:
        """Advance the list to a position. Spark's log holds this position, so the list never holds an abandoned epoch."""
        if position["id"] == self._at:
            return
        if self._at is not None and position["after"] == self._at:
            self._files |= {file.name: file for file in files_of(position)}
            self._at = position["id"]
            self._append({"id": self._at, "after": position["after"], "files": position["files"]})
            return
        chain = self._chain(position["id"], position)
        if chain is None:
            files = [list(file) for file in self._guess(position, listed)]
            chain = [{"id": position["id"], "after": "", "files": files}]
        self._files, self._at, self._missed = _folded(chain), position["id"], {}
        self._rewrite(chain)

    def _guess(self, position: Position, listed: list[File]) -> list[File]:
        """The taken files without the list: the listed files up to the position's youngest file.

        Raises Fault if their digest differs from the position's digest.
        """
        old = [file for file in listed if list(file[:2]) <= position["last"]]
        now, then = digest(old), position["present"]
        if now == then:
            return old
        raise Fault(
            f"{self._directory}: the list of read files is lost ({self._log or 'it was kept nowhere'}), and the files up to "
            f"{position['last'][1]}, the youngest, have changed ({then[0]} then, {now[0]} now), so the read files are "
            "unknown. Restore the list, or put back removed files and take out new ones"
        )

    def _forget(self, names: set[str]) -> None:
        now = time.monotonic()
        self._missed = {name: self._missed.get(name, now) for name in self._files.keys() - names}
        gone = [name for name, since in self._missed.items() if now - since >= FORGET_SECONDS]
        for name in gone:
            del self._files[name]
            self._changing.pop(name, None)
        if gone:
            self._append({"id": self._at, "gone": gone})

    # ---- the list on disk
    def _chain(self, at: str | None, last: Position | None = None) -> list[dict[str, Any]] | None:
        """Lines up to a position, oldest first; None if a line is lost. `last`: a position, which names its own files."""
        lines: dict[str, dict[str, Any]] = {} if last is None else {last["id"]: {**last, "gone": []}}
        for line in self._read():
            if "files" in line:
                lines[line["id"]] = {**line, "gone": line.get("gone", [])}
            elif line["id"] in lines:
                lines[line["id"]]["gone"] += line.get("gone", [])
        chain: list[dict[str, Any]] = []
        while at:
            if at not in lines:
                return None
            chain.insert(0, lines[at])
            at = lines[at]["after"]
        return chain

    def _read(self) -> list[dict[str, Any]]:
        try:
            texts = self._log.read_bytes().splitlines() if self._log else []
        except FileNotFoundError:
            return []
        lines = []
        for text in texts:
            if (line := _line(text)) is not None:
                lines.append(line)  # A lost line breaks the chain of the positions that need it.
        return lines

    def _append(self, line: dict[str, Any]) -> None:
        if self._log is None:
            return
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as file:
            file.write(_text(line))
            os.fsync(file.fileno())
        self._names += len(line.get("files", ())) + len(line.get("gone", ())) + 1
        if (
            self._at
            and self._names > 2 * len(self._files) + NAMES_SPARE
            and (chain := self._chain(self._at)) is not None
        ):
            self._rewrite(chain)

    def _rewrite(self, chain: list[dict[str, Any]]) -> None:
        """Write the list again, with the oldest positions in one line."""
        if self._log is None:
            return
        old, kept = chain[:-KEPT_LINES], chain[-KEPT_LINES:]
        if old:
            files = [list(file) for file in _folded(old).values()]
            kept.insert(0, {"id": old[-1]["id"], "after": "", "files": files, "gone": []})
        self._log.parent.mkdir(parents=True, exist_ok=True)
        lines: list[dict[str, Any]] = [
            {key: line[key] for key in ("id", "after", "files", "gone") if key in line} for line in kept
        ]
        if self._changing:
            lines.append({"id": "", "changing": [list(file) for file in self._changing.values()]})
        with replacing(self._log, durable=True) as new:
            new.write_bytes(b"".join(map(_text, lines)))
        self._names = sum(len(line["files"]) + 1 for line in kept)


def _text(line: dict[str, Any]) -> bytes:
    return json.dumps({**line, "crc": zlib.crc32(json.dumps(line).encode())}).encode() + b"\n"


def _line(text: bytes) -> dict[str, Any] | None:
    """A line of the list; None if a crash has truncated or damaged it. Lines of older releases have no checksum."""
    try:
        line = json.loads(text)
        checksum = line.pop("crc", None)
    except (ValueError, AttributeError, TypeError):
        return None
    same = checksum in (None, zlib.crc32(json.dumps(line).encode()))
    return line if same and "id" in line else None


def _folded(chain: list[dict[str, Any]]) -> dict[str, File]:
    files: dict[str, File] = {}
    for line in chain:
        files |= {name: File(mtime, name, size) for mtime, name, size in line["files"]}
        for name in line.get("gone", ()):
            files.pop(name, None)
    return files
