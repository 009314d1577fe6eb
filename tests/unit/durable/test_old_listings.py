"""A listing of a store may be older than what is there: the collection of checkpoints removes nothing by such a listing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ferry.contract.manifest import StoredFile
from ferry.durable import catalog
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Entry, Location
from tests.unit.durable.stores import manifest, nothing, stored

Lie = Callable[[list[Entry]], list[Entry]]


class Lying(Location):
    """A store whose listings of manifests, by their number, are what `lies` make of them."""

    lies: dict[int, Lie] = {}
    listings = 0

    def names(self, prefix: str) -> list[Entry]:
        entries = super().names(prefix)
        if prefix != catalog.MANIFESTS:
            return entries
        self.listings += 1
        return self.lies.get(self.listings, lambda listed: listed)(entries)


def empty(listed: list[Entry]) -> list[Entry]:
    return []


def lacks_the_newest(listed: list[Entry]) -> list[Entry]:
    return [entry for entry in listed if "/0000000002-" not in entry.name]


@pytest.fixture
def where(tmp_path: Path) -> Lying:
    return Lying(str(tmp_path), "job")


def aged(where: Lying) -> tuple[CheckpointCatalog, list[StoredFile]]:
    """A catalog with two checkpoints of four files, of which none is young."""
    now = [0.0]
    there = CheckpointCatalog(where, lambda: now[0])
    files = [stored(where) for _ in range(4)]
    there.publish(manifest(1, *files[:2]))
    there.publish(manifest(2, *files))
    there.look()
    now[0] = catalog.UNKNOWN_SECONDS + 60
    return there, files


@pytest.mark.parametrize("lie", [empty, lacks_the_newest])
@pytest.mark.parametrize("lied_to", [(1,), (2,), (1, 2), (1, 2, 3)])
def test_an_old_listing_removes_nothing(where: Lying, lie: Lie, lied_to: tuple[int, ...]) -> None:
    there, files = aged(where)
    where.lies = dict.fromkeys(lied_to, lie)
    assert there.collect("L", 3, nothing) == 0
    where.lies = {}
    assert [one.number for one in there.manifests()] == [2, 1]
    there.check(manifest(2, *files))


def test_a_checkpoint_that_another_process_removed_holds_nothing_up(where: Lying) -> None:
    there, files = aged(where)
    CheckpointCatalog(where).remove(manifest(2, *files))
    assert there.collect("L", 3, nothing) == 2
    there.check(manifest(1, *files[:2]))


def test_a_collector_removes_no_file_that_it_has_not_seen_for_a_while_whatever_clocks_say(where: Lying) -> None:
    there, files = aged(where)
    young = stored(where)
    reader = CheckpointCatalog(where)
    with reader.pin(manifest(2, *files)):
        for one in (manifest(1, *files[:2]), manifest(2, *files)):
            there.remove(one)
        assert there.collect("L", 3, nothing) == 0, "pinned"
    assert there.collect("L", 3, nothing) == 4
    assert where.read(young.name) == b"state"
