"""Checkpoints in a folder of this machine, and what is refused as a location."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry.durable.location import Location
from tests.unit.durable.stores import LocationStories, PartsStories, ShelfStories, fresh


@pytest.fixture(params=["path", "url"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    folder = tmp_path / "checkpoints"
    return str(folder) if request.param == "path" else folder.as_uri()


class TestLocation(LocationStories):
    pass


class TestParts(PartsStories):
    pass


class TestShelf(ShelfStories):
    pass


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/x",
        "s3://key@bucket/x",
        "s3://bucket/x?secret_key=secret",
        "abfs://container:secret@account/x",
        "abfs://container@account/x?sas_token=secret",
    ],
)
def test_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SpecRefused, match="AWS_SECRET_ACCESS_KEY; in a cluster from a Secret") as caught:
        Location(url, "job")
    assert "secret@" not in str(caught.value) and "=secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("relative/path", "give an absolute path"),
        ("ftp://host/x", "give an absolute path"),
        ("", "give an absolute path"),
        ("s3://", "names no bucket"),
        ("s3://bucket/x?endpoint=localhost", "has endpoint after its"),
    ],
)
def test_what_is_no_location_is_refused(url: str, said: str) -> None:
    with pytest.raises(SpecRefused, match=said):
        Location(url, "job")


@pytest.mark.parametrize("job", ["", "a/b", "..", ".hidden"])
def test_a_job_that_is_no_folder_is_refused(job: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="cannot name a folder"):
        Location(str(tmp_path), job)


def test_a_store_that_nobody_serves_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    where = Location("s3://bucket/x?endpoint_override=127.0.0.1:9&scheme=http", "job")
    for work in (lambda: where.read("files/a"), lambda: where.names("files"), lambda: where.write_new("a", b"")):
        with pytest.raises(Unreachable, match=r"cannot \w+ s3://bucket/x/job"):
            work()


def test_a_folder_that_cannot_be_written_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    where = Location(str(tmp_path / "file"), "job")
    for work in (lambda: where.write_new("a", b"1"), lambda: where.output("a")):
        with pytest.raises(Unreachable, match="cannot write"):
            work()


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "manifests").write_bytes(b"")
    with pytest.raises(Unreachable, match=r"cannot write .*: .*no folder: .*job/manifests"):
        Location(str(tmp_path), "job").write_new("manifests/a.json", b"")


def test_of_many_that_write_one_name_one_succeeds(tmp_path: Path) -> None:
    where = fresh(str(tmp_path))
    told: list[bytes] = []
    ready = threading.Barrier(8)

    def write(data: bytes) -> None:
        ready.wait()
        try:
            where.write_new("manifests/a", data)
        except Refusal:
            return
        told.append(data)

    threads = [threading.Thread(target=write, args=(b"%d" % i * 1000,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [where.read("manifests/a")] and len(where.names("")) == 1


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = fresh(str(tmp_path))
    where.write_new("0", b"1")
    happened: list[str] = []

    def watch(name: str) -> None:
        call = getattr(os, name)

        def watched(*given: object) -> object:
            happened.append(name)
            return call(*given)

        monkeypatch.setattr(os, name, watched)

    for name in ("fsync", "replace", "link"):
        watch(name)
    where.write_new("a", b"1")
    first = happened.copy()
    with where.output("b") as stream:
        stream.write(b"1")
    assert first == ["fsync", "link", "fsync"] and happened[len(first) :] == ["fsync", "replace", "fsync"]
