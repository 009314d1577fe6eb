"""Which files a state consists of: a file that is missing, or is not what was written, is noticed when the state is opened.

One file of records of a fixed size, each with its checksum, which is only added to; it is written anew when most of
it is of no use. A name is there before anything is in its file that has to last, and goes before the file does.
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
"""Records of files that are gone, beside twice those that are there, before it is written anew."""

_RECORD = struct.Struct("<qqqI")
"""file number, its digest, whether it is there, checksum of the three"""


class Inventory:
    """The numbers of a state's files, with a digest of each whose content does not change."""

    def __init__(self, directory: Path) -> None:
        """Read what is there; `digests` may be looked at. Raises StateUnavailable when it is not what was written."""
        self._path = directory / NAME
        self.digests: dict[int, int] = {}
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

    def _write_anew(self) -> None:
        self._close()
        self._records = len(self.digests)
        if not self.digests:
            return self._path.unlink(missing_ok=True)
        try:
            with files.replacing(self._path) as new:
                new.write_bytes(b"".join(_packed(number, digest, 1) for number, digest in self.digests.items()))
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise Exhausted(f"{self._path}: could not be written: {error}") from error

    def _read(self, content: bytes) -> None:
        whole = len(content) // _RECORD.size * _RECORD.size  # one more may be torn: what it says was not relied on
        for at in range(0, whole, _RECORD.size):
            number, digest, there, checksum = _RECORD.unpack_from(content, at)
            if zlib.crc32(content[at : at + _RECORD.size - 4]) != checksum:
                raise StateUnavailable(f"{self._path}: record {at // _RECORD.size} is not what was written")
            if there:
                self.digests[number] = digest
            else:
                self.digests.pop(number, None)

    def add(self, number: int, digest: int = 0) -> None:
        """A file is there from now on. Raises Exhausted without room."""
        self.digests[number] = digest
        self._write([_packed(number, digest, 1)])

    def remove(self, numbers: Iterable[int]) -> None:
        """These are of no use any more, whether they are there or not."""
        gone = [number for number in numbers if self.digests.pop(number, None) is not None]
        self._write([_packed(number, 0, 0) for number in gone])

    def _write(self, records: list[bytes]) -> None:
        self._records += len(records)
        if self._file < 0 or not self.digests or self._records > 2 * len(self.digests) + RECORDS_SPARE:
            return self._write_anew()
        try:
            os.write(self._file, b"".join(records))
        except OSError as error:
            raise Exhausted(f"{self._path}: could not be written: {error}") from error


def _packed(number: int, digest: int, there: int) -> bytes:
    body = _RECORD.pack(number, digest, there, 0)[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")
