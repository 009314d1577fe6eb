"""Copies of files of checkpoints: read instead of the store, never trusted, never the reason of a failure."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from ferry.contract.manifest import StoredFile
from ferry.durable import copies as module
from ferry.durable.copies import Copies
from ferry.durable.location import Location, Missing
from ferry.durable.parts import PartWriter, read_parts
from tests.unit.durable.stores import as_multiset, everything, rows

BATCH = rows(60_000)


Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def half_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the disk of this machine is."""
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage(100, 50, 50))


@pytest.fixture
def store(tmp_path: Path) -> Location:
    return Location(str(tmp_path / "store"), "job")


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path / "copies")


def written(store: Location, copies: Copies, name: str = "files/run/1-0.0") -> StoredFile:
    writer = PartWriter(store, name, 0, "scan", 1, 64, copies)
    writer.add(BATCH)
    return writer.finish()


def there(tmp_path: Path) -> set[str]:
    """What there are copies of."""
    return {path.name.rsplit(".", 2)[0] for path in (tmp_path / "copies").iterdir()}


def test_what_was_written_is_read_without_the_store(store: Location, copies: Copies) -> None:
    file = written(store, copies)
    store.remove(file.name)
    # The store says whether a file counts: this one is asked for by nobody whose manifest does not name it.
    assert as_multiset([*read_parts(store, file, everything(), copies)]) == as_multiset([BATCH])
    with pytest.raises(Missing):
        next(read_parts(store, file, everything()))


@pytest.mark.parametrize("at", [0.1, 0.5, 0.999])
def test_a_copy_that_is_not_what_was_written_gives_no_row_twice_and_none_wrong(
    store: Location, copies: Copies, tmp_path: Path, at: float
) -> None:
    file = written(store, copies)
    (path,) = (tmp_path / "copies").iterdir()
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)
    assert as_multiset([*read_parts(store, file, everything(), copies)]) == as_multiset([BATCH])
    path.write_bytes(data[:-1])
    assert as_multiset([*read_parts(store, file, everything(), copies)]) == as_multiset([BATCH])


def test_a_copy_of_another_file_of_that_name_is_none(store: Location, copies: Copies) -> None:
    file = written(store, copies)
    assert copies.find(file) is not None
    assert copies.find(replace(file, checksum=file.checksum ^ 1)) is None


def test_those_of_the_last_two_checkpoints_stay_and_what_came_since(
    store: Location, copies: Copies, tmp_path: Path
) -> None:
    for name in "abc":
        written(store, copies, f"files/run/{name}")
    copies.keep(["files/run/a", "files/run/b"])
    assert there(tmp_path) == {"a", "b", "c"}
    copies.keep(["files/run/b"])
    assert there(tmp_path) == {"a", "b"}
    under_way = PartWriter(store, "files/run/d", 0, "scan", 1, 64, copies)
    copies.keep(["files/run/b"])
    under_way.add(BATCH)
    under_way.finish()
    assert there(tmp_path) == {"b", "d"}


def test_another_life_reads_them_and_removes_what_was_torn(store: Location, copies: Copies, tmp_path: Path) -> None:
    file = written(store, copies)
    PartWriter(store, "files/run/torn", 0, "scan", 1, 64, copies)
    other = Copies(tmp_path / "copies")
    assert there(tmp_path) == {"1-0.0"}
    store.remove(file.name)
    assert as_multiset([*read_parts(store, file, everything(), other)]) == as_multiset([BATCH])
    other.keep(["files/run/e"])
    assert there(tmp_path) == {"1-0.0"}
    other.keep(["files/run/e"])
    assert there(tmp_path) == set()


def test_of_what_is_given_up_there_is_no_copy(store: Location, copies: Copies, tmp_path: Path) -> None:
    writer = PartWriter(store, "files/run/x", 0, "scan", 1, 64, copies)
    writer.add(BATCH)
    writer.abort()
    assert there(tmp_path) == set()


def test_a_disk_that_takes_nothing_is_no_failure(
    store: Location, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PartWriter(store, "files/run/x", 0, "scan", 1, 64, copies)
    copy = writer._copy
    assert copy is not None and copy._file is not None
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(copy, "_file", full)
        writer.add(BATCH)
        file = writer.finish()
    assert there(tmp_path) == set()
    assert as_multiset([*read_parts(store, file, everything(), copies)]) == as_multiset([BATCH])


def test_a_disk_that_is_nearly_full_is_left_to_the_state(
    store: Location, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage(100, 81, 19))
    written(store, copies)
    assert there(tmp_path) == set()


def test_a_folder_that_cannot_be_is_no_failure(store: Location, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = Copies(tmp_path / "file" / "copies")
    file = written(store, nowhere)
    nowhere.keep([file.name])
    assert as_multiset([*read_parts(store, file, everything(), nowhere)]) == as_multiset([BATCH])


def test_a_copy_that_goes_away_when_it_is_opened_is_none(
    store: Location, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(store, copies)
    found = copies.find(file)
    for path in (tmp_path / "copies").iterdir():
        path.unlink()
    monkeypatch.setattr(copies, "find", lambda file: found)
    assert as_multiset([*read_parts(store, file, everything(), copies)]) == as_multiset([BATCH])
