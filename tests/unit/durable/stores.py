"""What must hold of checkpoints in every store: `url` is a fixture of whoever inherits these."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ferry.contract.errors import Bug, Refusal
from ferry.contract.manifest import Chain, Manifest, StoredFile
from ferry.contract.names import Attempt, CommitId, Step, vnode_shift
from ferry.contract.results import NO_RESULT
from ferry.durable import catalog, parts
from ferry.durable import location as locations
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location, Missing
from ferry.durable.parts import Corrupt, PartWriter, read_parts

VIRTUAL_NODES = 64


def fresh(url: str) -> Location:
    """A job of its own."""
    return Location(url, f"job-{uuid.uuid4().hex[:8]}")


def rows(count: int, seed: int = 0) -> pa.RecordBatch:
    """Not in order; some keys twice."""
    chance = np.random.default_rng(seed)
    hashes = chance.integers(0, 2**64, count, dtype=np.uint64)
    names = [None if i % 7 == 0 else f"{i % 91}" * (i % 5) for i in range(count)]
    return pa.record_batch(
        {"hash": hashes, "n": chance.integers(0, 2**60, count), "name": pa.array(names, pa.string())}
    )


def written(where: Location, batches: list[pa.RecordBatch], virtual_nodes: int = VIRTUAL_NODES) -> StoredFile:
    """A file of these."""
    writer = PartWriter(where, f"files/{uuid.uuid4().hex}", 2, "scan", 7, virtual_nodes)
    for batch in batches:
        writer.add(batch)
    return writer.finish()


def vnodes_of(batch: pa.RecordBatch, virtual_nodes: int = VIRTUAL_NODES) -> np.ndarray:
    hashes = batch.column("hash").to_numpy()
    return (
        np.zeros(hashes.size, np.int64)
        if virtual_nodes == 1
        else (hashes >> np.uint64(vnode_shift(virtual_nodes))).astype(np.int64)
    )


def as_multiset(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


def everything(virtual_nodes: int = VIRTUAL_NODES) -> np.ndarray:
    return np.arange(virtual_nodes)


class LocationStories:
    def test_a_file_is_written_once_read_listed_and_removed(self, url: str) -> None:
        where = fresh(url)
        where.write_new("manifests/a.json", b"one")
        with pytest.raises(Refusal, match=r"manifests/a\.json\S* already exists"):
            where.write_new("manifests/a.json", b"two")
        where.write_new("files/deep/er/b", b"")
        assert where.read("manifests/a.json") == b"one" and where.read("files/deep/er/b") == b""
        (entry,) = where.names("manifests")
        assert entry[:2] == ("manifests/a.json", 3) and abs(entry.modified - time.time()) < 60
        assert sorted(each.name for each in where.names("")) == ["files/deep/er/b", "manifests/a.json"]
        where.remove("manifests/a.json")
        where.remove("manifests/a.json")
        assert where.names("manifests") == [] and where.names("nowhere") == []

    def test_what_is_not_there_is_missing(self, url: str) -> None:
        where = fresh(url)
        with pytest.raises(Missing, match=r"files/x\S* is not there"):
            where.read("files/x")
        with pytest.raises(Missing) as caught:
            where.input("files/x")
        assert where.url_of("files/x") in str(caught.value)

    def test_an_output_is_seen_when_it_is_closed(self, url: str) -> None:
        where = fresh(url)
        stream = where.output("files/big")
        block = np.random.default_rng(0).bytes(1024 * 1024)
        for _ in range(12):
            stream.write(block)
        assert "files/big" not in [each.name for each in where.names("files")]
        assert {locations.final_name(each.name) for each in where.names("files")} <= {"files/big"}
        stream.close()
        stream.close()
        assert [each[:2] for each in where.names("files")] == [("files/big", 12 * 1024 * 1024)]
        with where.input("files/big") as found:
            assert found.size() == 12 * 1024 * 1024 and found.read_at(10, 1024 * 1024 + 5) == block[5:15]

    def test_jobs_do_not_see_each_other(self, url: str) -> None:
        one, other = fresh(url), fresh(url)
        one.write_new("files/a", b"1")
        assert other.names("") == []

    def test_its_text_is_its_url(self, url: str) -> None:
        where = Location(url, "counts")
        assert where.text.split("?")[0] == f"{url.split('?')[0]}/counts"
        assert where.url_of("files/a").split("?")[0] == f"{url.split('?')[0]}/counts/files/a"


class PartsStories:
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        sizes=st.lists(st.integers(0, 3000), max_size=5),
        virtual_nodes=st.sampled_from([1, 2, 64, 4096]),
        part_bytes=st.sampled_from([100, 5000, 1 << 20]),
        read_bytes=st.sampled_from([1, 9000, 1 << 23]),
        data=st.data(),
    )
    def test_any_virtual_nodes_of_any_rows_come_back(
        self, url: str, sizes: list[int], virtual_nodes: int, part_bytes: int, read_bytes: int, data: st.DataObject
    ) -> None:
        where = fresh(url)
        batches = [rows(size, seed) for seed, size in enumerate(sizes)]
        wanted = data.draw(st.sets(st.integers(0, virtual_nodes - 1), max_size=40))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "PART_BYTES", max(part_bytes, sum(b.nbytes for b in batches) // 50))
            patch.setattr(parts, "READ_BYTES", read_bytes)
            patch.setattr(parts, "TAIL_BYTES", 64)
            file = written(where, batches, virtual_nodes)
            found = [*read_parts(where, file, np.array(sorted(wanted), np.int64))]
        assert file.rows == sum(sizes) and (file.operator, file.kind, file.epoch) == (2, "scan", 7)
        expected = [b.filter(pa.array(np.isin(vnodes_of(b, virtual_nodes), [*wanted]))) for b in batches]
        assert as_multiset(found) == as_multiset(expected)
        for batch in found:
            assert bool(np.all(np.diff(batch.column("hash").to_numpy().astype(np.float64)) >= 0)) and batch.num_rows

    def test_only_parts_that_may_have_them_are_read(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        where = fresh(url)
        file = written(where, [rows(200_000)])
        reads: list[tuple[int, int, int]] = []
        plan = parts._reads

        def watched(*given: object) -> object:
            for read in plan(*given):  # type: ignore[arg-type]
                reads.append((read[0], read[1], len(read[2])))
                yield read

        monkeypatch.setattr(parts, "_reads", watched)
        few = np.array([3, 40], np.int64)
        assert sum(batch.num_rows for batch in read_parts(where, file, few)) > 0
        assert len(reads) == 2 and sum(size for _, size, _ in reads) < file.bytes / 2
        reads.clear()
        assert sum(batch.num_rows for batch in read_parts(where, file, everything())) == 200_000
        assert len(reads) == 1 and reads[0][2] > 3
        reads.clear()
        monkeypatch.setattr(parts, "READ_BYTES", 2 * parts.PART_BYTES)
        assert sum(batch.num_rows for batch in read_parts(where, file, everything())) == 200_000
        assert len(reads) > 1 and max(size for _, size, _ in reads) <= parts.READ_BYTES

    def test_the_beginning_is_an_arrow_stream_for_everyone(self, url: str) -> None:
        where = fresh(url)
        batch = rows(1000)
        file = written(where, [batch])
        with where.input(file.name) as stream:
            assert pa.ipc.open_stream(stream).read_all().sort_by("n").equals(pa.table(batch).sort_by("n"))

    def test_rows_of_one_hash_keep_their_order(self, url: str) -> None:
        where = fresh(url)
        batches = [pa.record_batch({"hash": np.full(9, 5, np.uint64), "n": np.arange(9) + 9 * i}) for i in range(4)]
        (found,) = read_parts(where, written(where, batches), everything())
        assert found.column("n").to_pylist() == [*range(36)]

    def test_rows_of_another_schema_are_a_bug(self, url: str) -> None:
        writer = PartWriter(fresh(url), "files/x", 0, "scan", 1, VIRTUAL_NODES)
        writer.add(rows(3))
        with pytest.raises(Bug, match="files/x"):
            writer.add(rows(3).select(["hash"]))
        writer.abort()

    def test_of_what_is_given_up_nothing_is_left(self, url: str) -> None:
        where = fresh(url)
        writer = PartWriter(where, "files/x", 0, "changes", 1, VIRTUAL_NODES)
        assert writer.add(rows(100)) > 0 and writer.add(rows(200_000)) > 1024 * 1024
        writer.abort()
        assert where.names("") == []

    @pytest.mark.parametrize(
        "damage", ["shorter", "longer", "empty", "no footer", "another index", "index", "part", "later"]
    )
    def test_damage_is_named_and_never_read(self, url: str, damage: str) -> None:
        where = fresh(url)
        file = written(where, [rows(60_000)])
        whole = bytearray(where.read(file.name))
        index = int.from_bytes(whole[-24:-16], "little")
        expected = "its checksum differs"
        match damage:
            case "shorter":
                del whole[-1:]
                expected = f"{len(whole):,} bytes, {file.bytes:,} were written"
            case "longer":
                whole += b"x"
                expected = f"{len(whole):,} bytes, {file.bytes:,} were written"
            case "empty":
                whole, expected = bytearray(), "it has 0 bytes"
            case "no footer":
                whole[-1] ^= 1
                expected = "its footer is damaged"
            case "later":
                whole[-12] += 1
                expected = "its format is 2, this release reads up to 1"
            case "another index":
                file = replace(file, checksum=file.checksum ^ 1)
            case "index":
                whole[-24 - index // 2] ^= 16
            case "part":
                whole[len(whole) // 2] ^= 16
        where.remove(file.name)
        where.write_new(file.name, bytes(whole))
        with pytest.raises(Corrupt, match=expected) as caught:
            for batch in read_parts(where, file, everything()):
                assert batch.num_rows
        assert where.url_of(file.name) in str(caught.value)
        where.remove(file.name)
        with pytest.raises(Missing, match=file.name):
            next(read_parts(where, file, everything()))

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(bit=st.integers(0, 10**9), cut=st.booleans())
    def test_any_bit_and_any_cut_is_found(self, url: str, bit: int, cut: bool) -> None:
        where = fresh(url)
        batch = rows(500)
        file = written(where, [batch])
        whole = bytearray(where.read(file.name))
        at = bit % (8 * len(whole))
        if cut:
            del whole[at // 8 :]
        else:
            whole[at // 8] ^= 1 << at % 8
        where.remove(file.name)
        where.write_new(file.name, bytes(whole))
        try:
            found = [*read_parts(where, file, everything())]
        except Corrupt:
            return
        # The schema at the front, and what ends the stream, are there for others.
        assert not cut and as_multiset(found) == as_multiset([batch])


def manifest(
    number: int, *files: StoredFile, lineage: str = "L", generation: int = 1, name: str | None = None
) -> Manifest:
    """A checkpoint of one chain."""
    commit_id = CommitId(Step(number * 10, 0), Attempt(generation, 1))
    chain = Chain(tuple(range(VIRTUAL_NODES)), files)
    return Manifest(
        number,
        "job",
        "run",
        lineage,
        generation,
        5.0,
        commit_id,
        (NO_RESULT,),
        b"notes",
        VIRTUAL_NODES,
        (),
        (chain,),
        name,
    )


def stored(where: Location, data: bytes = b"state") -> StoredFile:
    """A file that nobody reads."""
    name = f"files/{uuid.uuid4().hex}"
    where.write_new(name, data)
    return StoredFile(name, len(data), 0, 0, "scan", 1, 1)


def later(where: Location, seconds: float = catalog.UNKNOWN_SECONDS + 60) -> CheckpointCatalog:
    """A catalog that has seen what is there for a while: nothing is young."""
    now = [0.0]
    plain = copy.copy(where)
    plain.__class__ = Location
    there = CheckpointCatalog(plain, lambda: now[0])
    there.look()
    there.location = where
    now[0] = seconds
    return there


def nothing(name: str, age: float) -> bool:
    return False


def published(where: Location, *ones: Manifest) -> CheckpointCatalog:
    found = CheckpointCatalog(where)
    for one in ones:
        found.publish(one)
    return found


def names(where: Location, prefix: str) -> set[str]:
    return {entry.name for entry in where.names(prefix)}


class ShelfStories:
    def test_the_newest_is_first_and_numbers_grow(self, url: str) -> None:
        where = fresh(url)
        assert CheckpointCatalog(where).manifests() == [] and CheckpointCatalog(where).next_number() == 1
        one, two, ten, again = manifest(1), manifest(2, name="before"), manifest(10), manifest(10, generation=2)
        there = published(where, two, again, one, ten)
        for each in (there, CheckpointCatalog(where)):
            assert each.manifests() == [again, ten, two, one] and each.next_number() == 11
            assert (
                each.find("latest") == each.find("10") == again and each.find("before") == two and each.find("1") == one
            )

    def test_who_asks_for_what_is_not_there_is_told_what_is(self, url: str) -> None:
        where = fresh(url)
        with pytest.raises(Refusal, match=r"no checkpoint 'latest' at .*: there is none yet"):
            CheckpointCatalog(where).find("latest")
        there = published(where, manifest(1), manifest(3, name="before"))
        for which in ("2", "after", f"{where.url_of('manifests/0000000002-000001-ab.json')}"):
            with pytest.raises(Refusal, match=r"there are 3 \('before', epoch 30\), 1 \(epoch 10\)"):
                there.find(which)
        with pytest.raises(Refusal, match="is not the URL of a checkpoint"):
            there.find(where.url_of("files/x"))

    def test_one_that_cannot_be_read_is_left_out_and_named(self, url: str, caplog: pytest.LogCaptureFixture) -> None:
        where = fresh(url)
        there = published(where, manifest(1), manifest(2))
        torn = "manifests/0000000003-000001-ab.json"
        where.write_new(torn, bytes(manifest(3).dump())[:-20])
        assert there.manifests() == [manifest(2), manifest(1)] and torn in caplog.text
        for which in ("latest", "3", where.url_of(torn)):
            with pytest.raises(Refusal, match=r"3-000001-ab\.json.*: this is no manifest of a checkpoint"):
                there.find(which)
        assert there.find("2") == manifest(2) and there.next_number() == 4
        with pytest.raises(Refusal, match=r"3 \(cannot be read\), 2 \(epoch 20\)"):
            there.find("before")

    def test_one_is_found_on_another_catalog_by_its_url(self, url: str) -> None:
        mine, theirs = fresh(url), fresh(url)
        file = stored(theirs)
        other = published(theirs, manifest(4, file))
        there = other.url(manifest(4, file))
        assert CheckpointCatalog(mine).find(there) == manifest(4, file)
        assert (
            CheckpointCatalog.at(there).manifests() == [manifest(4, file)]
            and CheckpointCatalog.at(there).location.text == theirs.text
        )
        CheckpointCatalog.at(there).check(manifest(4, file))

    def test_a_check_names_each_file_and_the_older_checkpoint_that_is_whole(self, url: str) -> None:
        where = fresh(url)
        old, cut, gone = stored(where), stored(where), stored(where)
        there = published(where, manifest(1, old), manifest(2, old, cut), manifest(3, old, cut, gone))
        there.check(manifest(3, old, cut, gone))
        where.remove(gone.name)
        where.remove(cut.name)
        where.write_new(cut.name, b"sta")
        with pytest.raises(Corrupt, match="checkpoint 3") as caught:
            there.check(manifest(3, old, cut, gone))
        for part in (
            f"{gone.name} is missing",
            f"{cut.name} has 3 bytes, 5 were written",
            "`restoreFrom: 1`",
            "epoch 10",
        ):
            assert part in str(caught.value)
        assert old.name not in str(caught.value)
        where.remove(old.name)
        with pytest.raises(Corrupt, match="no older checkpoint is whole"):
            there.check(manifest(3, old, cut, gone))

    def test_what_is_old_goes_and_what_is_named_stays(self, url: str) -> None:
        where = fresh(url)
        files = [stored(where) for _ in range(7)]
        ones = [
            manifest(1, files[0], name="before"),
            manifest(2, files[1], lineage="other"),
            manifest(3, files[2], files[3]),
            manifest(4, files[3]),
            manifest(5, files[4]),
            manifest(5, files[4], generation=2),
        ]
        published(where, *ones)
        assert CheckpointCatalog(where).collect("L", 2, nothing) == 0, "young files stay"
        assert later(where).collect("L", 2, lambda name, age: name == files[5].name) == 2
        assert CheckpointCatalog(where).manifests() == [ones[5], ones[4], ones[3], ones[1], ones[0]]
        assert names(where, "files") == {files[i].name for i in (0, 1, 3, 4, 5)}
        assert later(where).collect("L", 1, nothing) == 2
        assert names(where, "files") == {files[i].name for i in (0, 1, 4)}

    def test_one_that_cannot_be_read_protects_every_file(self, url: str) -> None:
        where = fresh(url)
        file = stored(where)
        torn = "manifests/0000000003-000001-ab.json"
        where.write_new(torn, b"{")
        there = published(where, manifest(1, file), manifest(2))
        assert later(where).collect("L", 1, nothing) == 0
        assert names(where, "files") == {file.name} and there.find("1")
        where.remove(torn)
        assert later(where).collect("L", 1, nothing) == 1

    def test_what_is_being_written_is_in_flight_under_its_name(self, url: str) -> None:
        where = fresh(url)
        stream = where.output("files/mine")
        stream.write(b"1")
        later(where).collect("L", 1, lambda name, age: name == "files/mine")
        stream.close()
        assert where.read("files/mine") == b"1"

    def test_a_pin_keeps_files_until_it_is_released_or_expires(self, url: str) -> None:
        where = fresh(url)
        file = stored(where)
        one = manifest(1, file)
        there = published(where, one, manifest(2))
        with there.pin(one) as pin:
            assert later(where).collect("L", 1, nothing) == 0 and names(where, "files") == {file.name}
            for _ in range(4):
                pin.renew()
            assert len(names(where, "pins")) == 2
            expired = later(where, catalog.PIN_SECONDS + 60)
            assert expired.collect("L", 1, nothing) == 1 and names(where, "pins") == set()
        file = stored(where)
        one = manifest(3, file)
        there.publish(one)
        with there.pin(one):
            there.remove(one)
            assert later(where).collect("L", 1, nothing) == 0
        assert names(where, "pins") == set() and later(where).collect("L", 1, nothing) == 1

    def test_a_pin_that_cannot_be_read_keeps_everything_for_a_while(self, url: str) -> None:
        where = fresh(url)
        stored(where)
        where.write_new("pins/torn.json", b"{")
        assert later(where).collect("L", 1, nothing) == 0
        assert later(where, catalog.PIN_SECONDS + 60).collect("L", 1, nothing) == 1

    def test_who_pins_what_was_just_removed_is_told(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        where = fresh(url)
        one = manifest(1)
        there = published(where, one)
        renew = catalog.Pin.renew

        def removed_first(pin: catalog.Pin) -> None:
            CheckpointCatalog(where).remove(one)
            renew(pin)

        monkeypatch.setattr(catalog.Pin, "renew", removed_first)
        with pytest.raises(Missing, match=r"checkpoint 1 at .* was removed just now"), there.pin(one):
            pytest.fail("its files may be gone")
        assert names(where, "pins") == set()
        with pytest.raises(Missing, match="is not at"):
            there.remove(one)

    @pytest.mark.parametrize("step", range(5))
    def test_what_a_writer_publishes_between_two_steps_of_a_collection_stays(self, url: str, step: int) -> None:
        """A file was in flight, and a manifest names it, before any step of `collect`."""
        where = fresh(url)
        file = stored(where)
        flying = {file.name}

        def land() -> None:
            if flying:
                CheckpointCatalog(where).publish(manifest(2, file))
                flying.clear()

        def flies(name: str, age: float) -> bool:
            if step == 4:
                land()
            return name in flying

        later(_Watched(where, step, land)).collect("L", 5, flies)
        land()
        CheckpointCatalog(where).check(manifest(2, file))

    @pytest.mark.parametrize("step", range(4))
    def test_a_reader_that_comes_between_two_steps_of_two_collections_reads(self, url: str, step: int) -> None:
        where = fresh(url)
        file = stored(where)
        one = manifest(1, file)
        published(where, one, manifest(2))
        with ExitStack() as pins:

            def come() -> None:
                """A reader pins it; then another collection removes the manifest."""
                pins.enter_context(CheckpointCatalog(where).pin(one))
                later(where).collect("L", 1, nothing)

            later(_Watched(where, step, come)).collect("L", 2, nothing)
            assert where.read(file.name) == b"state"
        assert names(where, "pins") == set()

    def test_collections_and_readers_at_once(self, url: str) -> None:
        """Readers either read all that their checkpoint names, or are told that it is gone."""
        where = fresh(url)
        ending = threading.Event()
        wrong: list[BaseException] = []
        read = 0

        def collect() -> None:
            while not ending.is_set():
                later(where).collect("L", 1, lambda name, age: name in flying)

        def attempt(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                wrong.append(error)

        flying: set[str] = set()
        published(where, manifest(1))
        threads = [threading.Thread(target=attempt, args=(collect,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 3
        number = 1
        while (time.monotonic() < end or read < 4) and not wrong:
            number += 1
            name = f"files/{number}"
            flying.add(name)
            where.write_new(name, b"state")
            CheckpointCatalog(where).publish(manifest(number, StoredFile(name, 5, 0, 0, "scan", 1, 1)))
            flying.discard(name)
            older = CheckpointCatalog(where).manifests()[-1]
            try:
                with CheckpointCatalog(where).pin(older):
                    for file in older.files:
                        time.sleep(0.002)
                        assert where.read(file.name) == b"state"
                        read += 1
            except Missing as error:
                assert "checkpoint" in str(error), error
        ending.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong


class _Watched(Location):
    """Before its listing of this number, from 0, something else happens."""

    def __init__(self, where: Location, listing: int, happens: Callable[[], None]) -> None:
        self.__dict__.update(vars(where))
        self._before = listing
        self._happens = happens

    def names(self, prefix: str) -> list[locations.Entry]:
        self._before -= 1
        if self._before == -1:
            self._happens()
        return super().names(prefix)
