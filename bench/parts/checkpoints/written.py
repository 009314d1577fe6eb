"""Reads the manifests of a run as they come; counts the keys that changed between two when the run is measured.

It touches nothing of the run, and counts nothing while that is measured: it would take a tenth of the processors.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.shared.bigstate import Keys
from bench.shared.ferry_job import FerryJob
from ferry.contract.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Taken:
    """One checkpoint."""

    number: int
    begin: float
    """End of its epoch, in seconds since 1970."""
    end: float
    """Its manifest is there."""
    total_bytes: int
    bytes: dict[str, int]
    """By kind, of the files that no manifest before has named."""
    rows: dict[str, int]
    records: tuple[int, int]
    """Positions of the source at the checkpoint before, and here."""
    changed: int = 0
    """Keys that these records named."""


@dataclass(slots=True)
class Written:
    """The checkpoints of one run, in order."""

    run: FerryJob
    folder: Path
    """of the job, below the location"""
    source: Keys
    taken: list[Taken] = field(default_factory=list)
    _named: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _position: int = 0

    def look(self) -> list[Taken]:
        """All so far. Must be called before a manifest goes: three of them stay."""
        for path in sorted((self.folder / "manifests").glob("*.json")):
            if path.name not in self._seen:
                with contextlib.suppress(FileNotFoundError):
                    self._take(Manifest.load(path.read_bytes()))
                    self._seen.add(path.name)
        return self.taken

    def after(self, t: float) -> list[Taken]:
        """Those that were begun after this time, with their changed keys counted: a second for each."""
        return [
            replace(one, changed=np.unique(self.source.numbers(*one.records)).size)
            for one in self.taken
            if one.begin >= t
        ]

    def _take(self, manifest: Manifest) -> None:
        done = [e for e in self.run.epochs() if e["epoch"] <= manifest.epoch]
        fresh = [file for file in manifest.files if file.name not in self._named]
        self._named.update(file.name for file in fresh)
        position = sum(e["rows"] for e in done)
        records = self._position, position
        self._position = position
        of_kinds = {kind: [file for file in fresh if file.kind == kind] for kind in ("scan", "changes")}
        self.taken.append(
            Taken(
                manifest.number,
                max(e["end"] for e in done),
                manifest.made_at,
                manifest.total_bytes,
                {kind: sum(f.bytes for f in found) for kind, found in of_kinds.items()},
                {kind: sum(f.rows for f in found) for kind, found in of_kinds.items()},
                records,
            )
        )
