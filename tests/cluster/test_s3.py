"""Checkpoints in a real S3: all that holds of a folder, and a store that dies, freezes and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ferry.contract.errors import Unreachable
from ferry.durable import location as locations
from ferry.durable import parts
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.durable.parts import PartWriter, read_parts
from tests.s3 import S3Server
from tests.unit.durable.stores import (
    VIRTUAL_NODES,
    LocationStories,
    PartsStories,
    ShelfStories,
    everything,
    fresh,
    manifest,
    rows,
    stored,
    written,
)

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("s3"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    one = S3Server(tmp_path_factory.mktemp("s3"))
    yield one
    one.kill()


@pytest.fixture
def url(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.url


class TestLocation(LocationStories):
    pass


class TestParts(PartsStories):
    pass


class TestShelf(ShelfStories):
    pass


def test_a_store_that_dies_during_an_upload_is_an_error_soon_and_keeps_what_it_had(url: str, server: S3Server) -> None:
    where = fresh(url)
    one = manifest(1, written(where, [rows(1000)]))
    CheckpointCatalog(where).publish(one)
    writer = PartWriter(where, "files/torn", 0, "scan", 1, VIRTUAL_NODES)
    for seed in range(8):
        writer.add(rows(100_000, seed))
    server.kill()
    began = time.monotonic()
    try:
        with pytest.raises(Unreachable, match=r"cannot write \S*files/torn"):
            for seed in range(20):
                writer.add(rows(100_000, seed))
            writer.finish()
        writer.abort()
        for work in (
            CheckpointCatalog(where).manifests,
            lambda: CheckpointCatalog(where).publish(one),
            lambda: CheckpointCatalog(where).check(one),
        ):
            with pytest.raises(Unreachable, match=f"127.0.0.1:{server.port}"):
                work()
        assert time.monotonic() - began < 30
    finally:
        server.start()
    assert [entry.name for entry in where.names("files")] == [one.files[0].name]
    assert CheckpointCatalog(where).find("latest") == one
    assert sum(batch.num_rows for batch in read_parts(where, one.files[0], everything())) == 1000
    again = PartWriter(where, "files/again", 0, "scan", 1, VIRTUAL_NODES)
    for seed in range(8):
        again.add(rows(100_000, seed))
    CheckpointCatalog(where).publish(manifest(2, again.finish()))
    CheckpointCatalog(where).check(CheckpointCatalog(where).find("latest"))


def test_a_store_that_says_nothing_is_an_error_in_time(
    url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "REQUEST_SECONDS", 5)
    where = fresh(url)
    file = stored(where)
    server.freeze()
    began = time.monotonic()
    try:
        with pytest.raises(Unreachable, match=f"cannot read .*{file.name}"):
            where.read(file.name)
    finally:
        server.thaw()
    assert 4 * locations.ATTEMPTS < time.monotonic() - began < 10 * locations.ATTEMPTS
    assert where.read(file.name) == b"state"


def test_a_bucket_that_is_not_there_is_no_empty_catalog(url: str) -> None:
    where = Location(url.replace("//checkpoints/", "//another/"), "job")
    with pytest.raises(Unreachable, match="there is no bucket another"):
        CheckpointCatalog(where).find("latest")


def test_who_may_not_is_told_by_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    for work in (CheckpointCatalog(fresh(url)).manifests, lambda: stored(fresh(url))):
        with pytest.raises(Unreachable, match=r"cannot \w+ s3://checkpoints"):
            work()


def test_a_file_that_goes_while_it_is_read_is_missing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "READ_BYTES", 1)
    where = fresh(url)
    file = written(where, [rows(300_000)])
    reading = read_parts(where, file, everything())
    assert next(reading).num_rows
    where.remove(file.name)
    with pytest.raises(locations.Missing, match=file.name):
        for _ in reading:
            pass
