"""The seal of an instance's directory: all that is below it is on the disk, and nothing of it was changed since.

A clean end makes it, and the next start breaks it before it changes anything. So sealed files are whole in every boot of the
machine, whatever has become of its power meanwhile; without a seal nothing is known of what a disk has kept. It holds what
the commit record said. Must never be there beside files that may have been changed since.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgpack

from ferry.contract.errors import StateUnavailable
from ferry.system import files

SEAL = "sealed"

_MAGIC = b"FERRYSE1"
"""Begins one with a checksum. Those of older releases have none."""


def make(directory: Path, top: Path, document: dict[str, Any]) -> None:
    """Have everything below `directory` on the disk, and the folders between it and `top`; then say so. Raises OSError."""
    files.sync_below(directory)
    for folder in directory.parents:
        if folder.is_relative_to(top):
            files.sync(folder)
    with files.replacing(directory / SEAL, durable=True) as new:
        content: bytes = msgpack.packb(document)
        new.write_bytes(_MAGIC + _checksum(content) + content)
    files.sync(directory)


def read(directory: Path) -> dict[str, Any] | None:
    """What it holds; None: there is none. Raises StateUnavailable when it is not what was written."""
    path = directory / SEAL
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    begin = len(_MAGIC) + 4
    if content.startswith(_MAGIC):
        checksum, content = content[len(_MAGIC) : begin], content[begin:]
        if checksum != _checksum(content):
            raise StateUnavailable(f"{path} is not what was written")
    try:
        document = msgpack.unpackb(content, strict_map_key=False)
        return {"of": document["of"], "saved": document["saved"]}
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise StateUnavailable(f"{path} is not what was written: {error}") from error


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")


def break_open(directory: Path) -> None:
    """From now on anything may be changed: when this returns a power cut does not bring the seal back."""
    if (directory / SEAL).exists():
        (directory / SEAL).unlink()
        files.sync(directory)
