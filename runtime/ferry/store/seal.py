"""The seal of an instance's directory: all files below it are on the disk, and none was changed since.

A clean end writes the seal, and the next start breaks it before any change. So sealed files are complete in every boot
of the machine, whatever happened to its power; without a seal the content of the disk is unknown. It holds the content
of the commit record. Must never exist beside files that may have been changed since.
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
"""Begin of a seal with a checksum. Seals of older releases have none."""


def make(directory: Path, top: Path, document: dict[str, Any]) -> None:
    """Sync everything below `directory`, and the folders between it and `top`; then write the seal. Raises OSError."""
    files.sync_below(directory)
    for folder in directory.parents:
        if folder.is_relative_to(top):
            files.sync(folder)
    with files.replacing(directory / SEAL, durable=True) as new:
        content: bytes = msgpack.packb(document)
        new.write_bytes(_MAGIC + _checksum(content) + content)
    files.sync(directory)


def read(directory: Path) -> dict[str, Any] | None:
    """Content of the seal; None: there is no seal. Raises StateUnavailable when it is damaged."""
    path = directory / SEAL
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    begin = len(_MAGIC) + 4
    if content.startswith(_MAGIC):
        checksum, content = content[len(_MAGIC) : begin], content[begin:]
        if checksum != _checksum(content):
            raise StateUnavailable(f"{path} is damaged")
    try:
        document = msgpack.unpackb(content, strict_map_key=False)
        return {"of": document["of"], "saved": document["saved"]}
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise StateUnavailable(f"{path} is damaged: {error}") from error


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")


def break_open(directory: Path) -> None:
    """From now on files may change: when this returns, a power cut does not bring the seal back."""
    if (directory / SEAL).exists():
        (directory / SEAL).unlink()
        files.sync(directory)
