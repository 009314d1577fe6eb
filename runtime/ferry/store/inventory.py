"""The files of a state: a missing or damaged file is noticed when the state is opened.

    begins --> the file is made --> there, once something in it counts --> gone, before the file goes

One append-only file of records of a fixed size, each with its checksum; it is rewritten when most records are obsolete.
A state file that it does not name shows that a part of the inventory is lost.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from ferry.contract.errors import Exhausted, StateUnavailable
from ferry.system import files

NAME = "inventory"

RECORDS_SPARE = 1000
"""Extra records, beside twice the number of existing files, before a rewrite; this many obsolete records are kept
then."""

_GONE, _THERE, _BEGINS = range(3)

_RECORD = struct.Struct("<qqqI")
"""file number, its digest, its kind of record, checksum of the three"""


class Inventory:
    """The numbers of a state's files, with a digest of each whose content does not change."""

    def __init__(self, directory: Path) -> None:
        """Read the inventory; `digests` is public. Raises StateUnavailable when it is damaged."""
        self._path = directory / NAME
        self.digests: dict[int, int] = {}
        self._others: dict[int, int] = {}
        """The last files that were begun or removed: they may exist or not."""
        self._file = -1
        self._records = 0
        if self._path.exists():
            self._read(self._path.read_bytes())
            self._write_anew()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, content: bytes) -> None:
        whole = len(content) // _RECORD.size * _RECORD.size  # the last one may be torn, and was not relied on
        if not whole:
            raise StateUnavailable(f"{self._path}: it is empty")
        for at in range(0, whole, _RECORD.size):
            number, digest, what, checksum = _RECORD.unpack_from(content, at)
            if zlib.crc32(content[at : at + _RECORD.size - 4]) != checksum:
                raise StateUnavailable(f"{self._path}: record {at // _RECORD.size} is damaged")
            self._note(number, digest, what)

    def _note(self, number: int, digest: int, what: int) -> None:
        of, other = (self.digests, self._others) if what == _THERE else (self._others, self.digests)
        other.pop(number, None)
        of.pop(number, None)  # keep them in order of age
        of[number] = digest if what == _THERE else what

    def _write_anew(self) -> None:
        self._close()
        self._others = dict(list(self._others.items())[-RECORDS_SPARE // 2 :])
        records = [_packed(number, digest, _THERE) for number, digest in self.digests.items()]
        records += [_packed(number, 0, what) for number, what in self._others.items()]
        self._records = len(records)
        try:
            with files.replacing(self._path) as new:
                new.write_bytes(b"".join(records))
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise Exhausted(f"{self._path}: could not be written: {error}") from error

    def require_known(self, numbers: Iterable[int]) -> list[int]:
        """The existing files that do not count. Raises StateUnavailable for a file that was never registered."""
        strays = []
        for number in numbers:
            if number not in self.digests:
                if number not in self._others:
                    raise StateUnavailable(f"{self._path}: it does not name file {number}: a part of it is lost")
                strays.append(number)
        return strays

    def begins(self, number: int) -> None:
        """A file is about to be written; it does not count yet. Raises Exhausted without room."""
        self._write([(number, 0, _BEGINS)])

    def add(self, number: int, digest: int = 0) -> None:
        """A file counts from now on. Raises Exhausted without room."""
        self._write([(number, digest, _THERE)])

    def remove(self, numbers: Iterable[int]) -> None:
        """These files do not count any more, whether they exist or not."""
        self._write([(number, 0, _GONE) for number in numbers])

    def _write(self, records: list[tuple[int, int, int]]) -> None:
        if not records:
            return
        for record in records:
            self._note(*record)
        self._records += len(records)
        if self._file < 0 or self._records > 2 * len(self.digests) + RECORDS_SPARE:
            return self._write_anew()
        try:
            os.write(self._file, b"".join(_packed(*record) for record in records))
        except OSError as error:
            raise Exhausted(f"{self._path}: could not be written: {error}") from error


def _packed(number: int, digest: int, what: int) -> bytes:
    body = _RECORD.pack(number, digest, what, 0)[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")
