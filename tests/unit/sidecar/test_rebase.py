"""What checkpoints write beside what has changed, and what a restore reads beside what there is."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.manifest import Chain, chain_from_wire
from ferry.contract.routing import Version
from ferry.durable.location import Location
from ferry.durable.parts import read_parts
from ferry.kernels.grouping import Ints
from ferry.protocol.instance.io import WriteCheckpoint
from ferry.sidecar import archive
from ferry.sidecar.archive import Archiver
from ferry.store.state import State, open_state
from tests.unit.sidecar.leaders import KEY, SECONDS, fragments

COUNTS = OperatorDescriptor("c", 0, "aggregate", KEY, GLOBAL, (Aggregate("n", "count"),), emit="changes")
VNODES, KEYS = 32, 3_200

Pattern = Callable[[int], Sequence[int]]
"""Keys that change between two checkpoints, by number of the second one."""


class Leader:
    """A state that is written, and all that was."""

    def __init__(self, directory: Path) -> None:
        self.location = Location(str(directory / "store"), "j")
        self.state: State = open_state(COUNTS, VNODES, directory / "state", 1 << 30)
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.archive = Archiver(
            self.location, "j-1", "1.0", [COUNTS], [self.state], VNODES, directory / "shadows", None,
            lambda asked, chains: self.answers.put(chains),
        )  # fmt: skip
        self.archive.follow(range(VNODES), 0)
        self.epoch = 0

    def change(self, keys: Sequence[int]) -> None:
        self.epoch += 1
        parts = [self.state.combine(fragments(COUNTS, [(key, 0, 0) for key in keys], 0))]
        delta, _ = self.state.delta(parts, EpochTimes(0, 0, self.epoch, self.epoch), np.arange(VNODES))
        self.state.apply(delta, self.epoch, "1.0")
        self.archive.applied(0, self.epoch, "1.0", delta)

    def checkpoint(self, number: int) -> list[Chain]:
        while True:
            self.archive.write(WriteCheckpoint(number, Version(1, 0), self.epoch, (0,), False))
            while self.archive.pump():
                pass
            if answer := self.answers.get(timeout=SECONDS):
                self.wait()
                return [chain_from_wire(one) for one in json.loads(answer)]

    def wait(self) -> None:
        """Until a scan that was begun is in the store: how fast it is does not matter here."""
        while self.archive.pump() or (self.archive._next is not None and self.archive._next[0].files is None):
            pass

    def read(self, chains: Sequence[Chain]) -> Iterator[Ints]:
        """Hashes, part by part."""
        for chain in chains:
            for file in chain.files:
                for batch in read_parts(self.location, file, np.array(chain.vnodes, np.int64)):
                    yield batch.column("hash").to_numpy().astype(np.int64)


def drift(number: int) -> Sequence[int]:
    return [(number * 320 + i) % KEYS for i in range(320)]


def chance(number: int) -> Sequence[int]:
    return np.random.default_rng(number).integers(0, KEYS, 320).tolist()  # type: ignore[no-any-return]


def few(number: int) -> Sequence[int]:
    return range(32)


def everything(number: int) -> Sequence[int]:
    return range(KEYS)


@pytest.mark.parametrize("pattern", [drift, chance, few, everything])
def test_what_is_written_and_what_is_read(pattern: Pattern, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "REBASE_BYTES", 0)
    monkeypatch.setattr(archive, "FILE_BYTES", 0)
    monkeypatch.setattr(archive, "FILES_MAX", 1 << 30)
    monkeypatch.setattr(archive, "LOOK_SECONDS", 0.0)
    one, known = Leader(tmp_path), dict[str, int]()
    one.change(range(KEYS))
    changed, read = list[int](), list[int]()
    for number in range(1, 46):
        one.change(keys := pattern(number))
        chains = one.checkpoint(number)
        known |= {file.name: file.rows for chain in chains for file in chain.files}
        changed.append(len(set(keys)))
        read.append(sum(rows.size for rows in one.read(chains)))
        if number == 15:
            first = sum(known.values())
    written = (sum(known.values()) - first) / sum(changed[15:])
    assert written < 1.65, "each change, and a scan of what was changed twice"
    assert max(read) <= 2 * KEYS + 2 * max(changed), "between two checkpoints it may be more"


def test_however_little_changes_a_manifest_names_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(archive, "REBASE_BYTES", 0)
    monkeypatch.setattr(archive, "FILE_BYTES", 0)
    monkeypatch.setattr(archive, "FILES_MAX", 8)
    one = Leader(tmp_path)
    one.change(range(KEYS))
    for number in range(1, 41):
        one.change([number])
        chains = one.checkpoint(number)
        assert max(len(chain.files) for chain in chains) <= 2 * 8 + 4
    assert sum(rows.size for rows in one.read(chains)) <= KEYS + 40
