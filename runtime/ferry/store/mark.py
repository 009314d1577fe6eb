"""A small document that is replaced as a whole: the committed label and watermark of an instance.

Written last (design section 4, rule `whole`): what it does not name is not there.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import msgpack

from ferry.contract.errors import Exhausted


class Mark:
    """One msgpack map in one file, with a checksum."""

    def __init__(self, path: Path) -> None:
        """The file need not exist; its directory is created."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Any] | None:
        """The document, or None when there is none or it is damaged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if len(content) < 5 or zlib.crc32(content[4:]).to_bytes(4, "little") != content[:4]:
            return None
        document: dict[str, Any] = msgpack.unpackb(content[4:], strict_map_key=False)
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Replace the document; after a crash either the old or the new one is there. Raises Exhausted on a full disk."""
        body: bytes = msgpack.packb(document)
        unfinished = self.path.with_name(self.path.name + ".tmp")
        try:
            unfinished.write_bytes(zlib.crc32(body).to_bytes(4, "little") + body)
            os.replace(unfinished, self.path)
        except OSError as e:
            raise Exhausted(f"{self.path}: mark could not be written: {e}") from e
