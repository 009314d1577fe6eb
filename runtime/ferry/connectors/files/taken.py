"""Which files of a directory have been taken, so that every file is taken once, whenever it appears and whatever its time.

A position names the files of its own epoch; all those before it are in a list on disk, one line a position, chained by
`after`. A process that has lost the list compares the directory with what the position says of it, and refuses to guess.
Must never forget a file that the directory still holds.
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
"""A name is forgotten, and may come again with other rows, when one process has missed it for so long: a listing may lack
an entry for a moment, and a file taken twice would count twice."""

KEPT_LINES = 100
"""Positions that the list keeps apart when it is written anew: as many as Spark keeps offsets."""


NAMES_SPARE = 10_000
"""Names that the list on disk may hold beyond twice those that are known, before it is written anew."""


class File(NamedTuple):
    """One file as a listing shows it. Files that are found together are taken in this order."""

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
    """The files taken up to the position asked for last."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._log: Path | None = None
        self._at: str | None = None
        self._files: dict[str, File] = {}
        self._missed: dict[str, float] = {}
        self._changing: dict[str, File] = {}
        """Files that could not be read when they were taken, as they were seen last."""
        self._names = 0

    def keep(self, log: Path) -> None:
        """Keep the list in this file; without one, only this process has it."""
        self._log = log
        for line in self._read():
            self._changing |= {name: File(mtime, name, size) for mtime, name, size in line.get("changing", ())}

    def new(self, position: Position, listed: list[File], forget: bool = True) -> list[File]:
        """The listed files that were not taken up to this position. Raises Fault when a taken one was written again."""
        self._come_to(position, listed)
        if forget:
            self._forget({file.name for file in listed})
        for file in listed:
            known = self._files.get(file.name, file)
            if file not in (known, self._changing.get(file.name)):
                raise Fault(
                    f"{self._directory}/{file.name} was read, and then written again or replaced: a file is read once. "
                    "Put it back as it was or remove it, and write what is new under a name of its own"
                )
        return [file for file in listed if file.name not in self._files]

    def after(self, position: Position, listed: list[File], files: list[File]) -> Position:
        """The position behind `files`, which are taken next after `position`."""
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
        """Every taken file that is not forgotten."""
        return list(self._files.values())

    def may_change(self, files: list[File]) -> None:
        """These files of the epoch under way could not be read: whoever mends them writes them again."""
        if changed := [file for file in files if self._changing.get(file.name) != file]:
            self._changing |= {file.name: file for file in changed}
            self._append({"id": self._at, "changing": [list(file) for file in changed]})

    def changes(self, name: str) -> bool:
        """Whether a file may be another than it was when it was taken."""
        return name in self._changing

    def _come_to(self, position: Position, listed: list[File]) -> None:
        """A position that Spark starts from is in Spark's log, so the list follows it and holds nothing that never was."""
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
        """Without the list: what is not younger than the youngest taken one, if that is just what was there then."""
        old = [file for file in listed if list(file[:2]) <= position["last"]]
        now, then = digest(old), position["present"]
        if now == then:
            return old
        raise Fault(
            f"{self._directory}: the list of files that were read is lost ({self._log or 'it was kept nowhere'}), and those "
            f"up to {position['last'][1]}, the youngest, are not what they were ({then[0]} then, {now[0]} now): which were "
            "read cannot be told. Put back the list, or what was removed, and take out what has come since"
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
        """Lines up to a position, the oldest first; None when some are lost. The last position names its own files."""
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
                lines.append(line)  # Else, if a position needs it, the chain is broken here.
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
        """Write the list anew, with the oldest positions as one."""
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
    """None: a crash cut it off, or it is not what was written. Those of older releases have no checksum."""
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
