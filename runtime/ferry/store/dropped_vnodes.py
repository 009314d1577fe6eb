"""Dropped virtual nodes: a drop is one small file, however large the state is.

Files of state are numbered; rows of virtual node v in a file with a number up to `at[v]` do not count any more. Files
are cleaned of them later, in pieces. Must be written before any state of a dropped virtual node comes back.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from ferry.contract.errors import Exhausted, StateUnavailable
from ferry.kernels.grouping import Ints
from ferry.system import files


class DroppedVnodes:
    """One file, replaced atomically. `notes` are its owner's."""

    def __init__(self, path: Path, virtual_nodes: int) -> None:
        """Read the file, if it exists. Raises StateUnavailable when it is damaged."""
        self._path = path
        self.at: Ints = np.full(virtual_nodes, -1, np.int64)
        self.last = -1
        """the greatest number in `at`"""
        self.notes: dict[str, Any] = {}
        if path.exists():
            try:
                content = path.read_bytes()
                if zlib.crc32(content[4:]).to_bytes(4, "little") != content[:4]:
                    raise ValueError("it is damaged")
                document = msgpack.unpackb(content[4:])
                self.at[:] = np.frombuffer(document["at"], np.int64)
                self.notes = document["notes"]
                self.last = int(self.at.max())
            except (ValueError, KeyError, TypeError) as e:
                raise StateUnavailable(f"{path}: cannot be read ({e}); warm this instance again") from e

    def drop(self, vnodes: Ints, number: int, notes: dict[str, Any]) -> None:
        """Rows of these virtual nodes in files numbered up to `number` do not count any more."""
        at = self.at.copy()
        at[vnodes] = number
        self.replace(at, notes)

    def replace(self, at: Ints, notes: dict[str, Any]) -> None:
        """Write all numbers anew. Raises Exhausted without room."""
        try:
            with files.replacing(self._path) as new:
                body = msgpack.packb({"at": at.tobytes(), "notes": notes})
                new.write_bytes(zlib.crc32(body).to_bytes(4, "little") + body)
        except OSError as e:
            raise Exhausted(f"{self._path}: could not be written: {e}") from e
        self.at, self.notes, self.last = at, notes, int(at.max())

    def gone(self, number: int) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """bool[V]: virtual nodes whose rows in a file of this number are dropped; None if there are none."""
        return self.at >= number if self.last >= number else None
