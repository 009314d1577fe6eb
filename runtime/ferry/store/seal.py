"""The seal of an instance's directory: all that is below it is on the disk, and nothing of it was changed since.

A clean end makes it, and the next start breaks it before it changes anything. So sealed files are whole in every boot of the
machine, whatever has become of its power meanwhile; without a seal nothing is known of what a disk has kept. It holds what
the commit record said. Must never be there beside files that may have been changed since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack

from ferry.system import files

SEAL = "sealed"


def make(directory: Path, top: Path, document: dict[str, Any]) -> None:
    """Have everything below `directory` on the disk, and the folders between it and `top`; then say so. Raises OSError."""
    files.sync_below(directory)
    for folder in directory.parents:
        if folder.is_relative_to(top):
            files.sync(folder)
    with files.replacing(directory / SEAL, durable=True) as new:
        new.write_bytes(msgpack.packb(document))
    files.sync(directory)


def read(directory: Path) -> dict[str, Any] | None:
    """What it holds; None: there is none."""
    try:
        content = (directory / SEAL).read_bytes()
    except FileNotFoundError:
        return None
    document: dict[str, Any] = msgpack.unpackb(content, strict_map_key=False)
    return document


def break_open(directory: Path) -> None:
    """From now on anything may be changed: when this returns a power cut does not bring the seal back."""
    if (directory / SEAL).exists():
        (directory / SEAL).unlink()
        files.sync(directory)
