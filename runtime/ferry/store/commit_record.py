"""A small document that is replaced atomically: the commit id and the watermark of an instance.

Written last (rule `whole_flag` of the protocol): state that it does not name does not exist. Two slots of one
preallocated file are written in turn, so that a torn write leaves the previous document, and no write creates or
renames a file: an epoch writes the record twice.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack

from ferry.contract.errors import Exhausted

SLOT_BYTES = 512 * 1024
"""Room of one document: the virtual nodes of a job (at most 2**15, five bytes each) and the driver's notes."""

_HEADER = struct.Struct("<IIQ")
"""checksum of all bytes after it, bytes of the body, number of earlier writes"""


class CommitRecord:
    """One msgpack map in one file, with a checksum."""

    def __init__(self, path: Path) -> None:
        """The file need not exist; its directory is created. Raises Exhausted on a full disk."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._descriptor, 0, 2 * SLOT_BYTES)
        except OSError as e:
            raise Exhausted(f"{path}: no room for the commit record ({2 * SLOT_BYTES} bytes): {e}") from e
        self._written, self._last = max((self._slot(0), self._slot(1)), key=lambda found: found[0])

    def read(self) -> dict[str, Any] | None:
        """The document, or None when no valid one exists."""
        return None if self._last is None else msgpack.unpackb(self._last, strict_map_key=False)

    def write(self, document: dict[str, Any]) -> None:
        """Replace the document; after a crash either the old or the new one exists."""
        body: bytes = msgpack.packb(document)
        if len(body) + _HEADER.size > SLOT_BYTES:
            raise Exhausted(f"{self.path}: a commit record of {len(body)} bytes does not fit into {SLOT_BYTES}")
        number = self._written + 1
        tail = _HEADER.pack(0, len(body), number)[4:] + body
        os.pwrite(self._descriptor, zlib.crc32(tail).to_bytes(4, "little") + tail, number % 2 * SLOT_BYTES)
        self._written, self._last = number, body

    def _slot(self, index: int) -> tuple[int, bytes | None]:
        content = os.pread(self._descriptor, SLOT_BYTES, index * SLOT_BYTES)
        checksum, size, number = _HEADER.unpack_from(content)
        end = _HEADER.size + size
        if number == 0 or end > len(content) or zlib.crc32(content[4:end]) != checksum:
            return 0, None
        return number, content[_HEADER.size : end]
