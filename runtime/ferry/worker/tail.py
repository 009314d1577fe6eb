"""The output of executors and their Python processes, line by line, for the log of their container.

Spark's worker redirects it to files, which grow, are renamed and removed. Must never hold more than a part of one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 64 * 1024
"""Bytes of one file per look."""

LINE_BYTES = 8 * 1024
"""A longer line is passed on in parts."""

FILES = ("*/*/stdout", "*/*/stderr")
"""Below a worker's directory: of an application, of an executor."""


@dataclass(slots=True)
class _File:
    """One file, even after it was renamed."""

    name: str
    source: BinaryIO
    rest: bytes = b""


class LogTail:
    """New lines in the files below a directory."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        """`say` gets every line, with the executor and the stream in front."""
        self._directory = directory
        self._say = say
        self._files: dict[tuple[int, int], _File] = {}

    def look(self) -> None:
        """Pass on new lines; a removed file is read to its end first."""
        present = self._open()
        for key, file in list(self._files.items()):
            more = self._read(file)
            if not more and key not in present:
                self._forget(key)

    def close(self) -> None:
        """Pass on all remaining lines, before another directory replaces this one."""
        self._open()
        for key, file in list(self._files.items()):
            while self._read(file):
                pass
            self._forget(key)

    def _open(self) -> frozenset[tuple[int, int]]:
        """Open new files; returns the files that have their names at present."""
        named = []
        for path in (path for pattern in FILES for path in self._directory.glob(pattern)):
            with suppress(OSError):  # it may have been renamed at this moment
                known = path.stat()
                named.append((known.st_dev, known.st_ino))
                if named[-1] not in self._files:
                    self._files[named[-1]] = _File(f"executor {path.parent.name} {path.name}", path.open("rb"))
        return frozenset(named)

    def _read(self, file: _File) -> bool:
        """Pass on the lines of the next part; returns whether there was one."""
        part = file.source.read(CHUNK_BYTES)
        *lines, file.rest = (file.rest + part).split(b"\n")
        if len(file.rest) >= LINE_BYTES:
            lines, file.rest = [*lines, file.rest], b""
        for line in lines:
            self._tell(file, line)
        return bool(part)

    def _forget(self, key: tuple[int, int]) -> None:
        file = self._files.pop(key)
        if file.rest:
            self._tell(file, file.rest)
        file.source.close()

    def _tell(self, file: _File, line: bytes) -> None:
        for at in range(0, len(line), LINE_BYTES):
            self._say(f"{file.name}: {line[at : at + LINE_BYTES].decode(errors='replace')}")
