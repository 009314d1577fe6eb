"""Directories with what is not as it should be: away, unreadable, broken, in folders, compressed."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.connectors.files import directory, line_files, listing, taken, text_files
from ferry.connectors.files.directory import DirectorySplits
from ferry.connectors.files.json_files import json_files
from ferry.connectors.files.parquet_files import parquet_files
from ferry.connectors.splits import Malformed
from ferry.contract.errors import Fault, InputAway, RowsGone, SpecRefused, Unreachable

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read is tried again at every look."""
    monkeypatch.setattr(directory, "AGAIN_SECONDS", 0.0)


def parquet(path: Path, order: int, *rows: int, **how: Any) -> None:
    """A file of these rows, with a time of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": list(rows), "b": [str(row) for row in rows]}), path, **how)
    aged(path, order)


def lines(*rows: int) -> bytes:
    return b"".join(b'{"a": %d, "b": "%d"}\n' % (row, row) for row in rows)


def aged(path: Path, order: int) -> None:
    os.utime(path, ns=(10**18 + order, 10**18 + order))


def names(position: Any) -> list[str]:
    return [name for _, name, _ in position["files"]]


def read(source: DirectorySplits, start: Any, stop: Any, tasks: int = 2) -> list[dict[str, Any]]:
    """All records between two positions."""
    found: list[dict[str, Any]] = []
    for split in source.plan(start, stop, tasks):
        for batch in source.read(json.loads(json.dumps(split))):
            assert isinstance(batch, pa.RecordBatch), batch
            assert batch.schema.equals(source.schema())
            found += batch.to_pylist()
    return found


def everything(source: DirectorySplits) -> list[dict[str, Any]]:
    """All records of a folder."""
    start = source.start()
    return read(source, start, source.latest(start, 10**9))


# ---- away
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "no directory 'nowhere'; a file source needs a directory; looked for in /"),
        ("in/*.json", "give the folder alone: all its files are read"),
        ("in/1.json", "it is a file; give its folder"),
        ("s3://bucket/in", "the source reads local and mounted folders; spark.readStream reads other stores"),
    ],
)
def test_a_name_that_is_no_folder_says_what_to_write(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_bytes(lines(1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputAway) as refused:
        json_files(name, SCHEMA).start()
    assert words in str(refused.value)


@pytest.mark.parametrize("finite", [False, True])
def test_a_folder_that_is_away_is_waited_for_once_the_job_has_begun(tmp_path: Path, finite: bool) -> None:
    folder = tmp_path / "in"
    with pytest.raises(InputAway, match="no directory"):
        json_files(folder, SCHEMA, finite).start()
    folder.mkdir()
    (folder / "1.json").write_bytes(lines(1))
    (folder / "2.json").write_bytes(lines(2))
    source = json_files(folder, SCHEMA, finite)
    start = source.start()
    first = source.latest(start, 1)
    os.rename(folder, tmp_path / "away")
    for step in (lambda: source.latest(first, 10), lambda: json_files(folder, SCHEMA, finite).latest(first, 10)):
        with pytest.raises(Unreachable, match=r"the folder .*/in cannot be listed: No such file or directory"):
            step()
    with pytest.raises(Fault, match=r"1.json was removed"):
        source.plan(start, first, 1)
    os.rename(tmp_path / "away", folder)
    assert [row["a"] for row in read(source, first, source.latest(first, 10))] == [2]


def test_a_position_of_another_input_is_refused(tmp_path: Path) -> None:
    """A job that goes on may have another source under the same name, or one that has become finite."""
    (tmp_path / "1.json").write_bytes(lines(1))
    endless = json_files(tmp_path, SCHEMA)
    position = endless.latest(endless.start(), 10)
    with pytest.raises(
        SpecRefused, match=r"JsonSplits\(.*: the job began with finite=False, so its position has no end"
    ):
        json_files(tmp_path, SCHEMA, finite=True).latest(position, 10)
    for other in ({"after": 7, "rows": 1}, [3, 4]):
        with pytest.raises(SpecRefused, match="the job's position is from another kind of source"):
            endless.latest(other, 10)


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(line_files, "JSON_SHARE_BYTES", 100)
    (tmp_path / "1.json").write_bytes(whole := lines(*range(100)))
    source = json_files(tmp_path, SCHEMA)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10**6), 1)
    as_it_was = source._current

    def cut_off(name: str) -> Any:
        seen = as_it_was(name)
        os.truncate(tmp_path / name, 50)
        return seen

    monkeypatch.setattr(source, "_current", cut_off)
    with pytest.raises(RowsGone, match=r"1.json (became shorter while|was written again before) it was read"):
        [*source.read(split)]
    assert len(whole) > 50


def test_a_file_that_is_written_again_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_bytes(lines(1))
    source = json_files(tmp_path, SCHEMA)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10**6), 1)
    reading = source.read(split)
    next(reading)
    (tmp_path / "1.json").write_bytes(lines(1, 2))
    with pytest.raises(RowsGone, match=r"1.json was written again"):
        next(reading)
    (tmp_path / "1.json").write_bytes(lines(1))
    position = source.latest(start, 10)
    (split,) = source.plan(start, position, 1)
    reading = source.read(split)
    next(reading)
    (tmp_path / "1.json").unlink()
    assert not [*reading], "what was open is whole"


@pytest.mark.parametrize("error", [5, 13, 116])
def test_an_error_of_the_file_system_is_waited_for_from_the_start(tmp_path: Path, error: int, monkeypatch: Any) -> None:
    source = json_files(tmp_path, SCHEMA, finite=True)

    def scandir(path: str) -> Any:
        raise OSError(error, os.strerror(error), path)

    monkeypatch.setattr(listing.os, "scandir", scandir)
    for step in (source.start, lambda: parquet_files(tmp_path).schema()):
        with pytest.raises(Unreachable, match=os.strerror(error)):
            step()


def test_an_entry_that_cannot_be_looked_at_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "1.json").write_bytes(lines(1))
    source = json_files(tmp_path, SCHEMA)
    start = source.start()
    stop = source.latest(start, 10)
    assert names(stop) == ["1.json"] and read(source, start, stop)
    (said,) = source.problems
    assert "loop.json: Too many levels of symbolic links" in said
    (tmp_path / "2.json").write_bytes(b"PK\x03\x04")
    with pytest.raises(Unreachable, match=r"finite input: .*loop.json: Too many levels.*2.json cannot be read"):
        json_files(tmp_path, SCHEMA, finite=True).start()
    (tmp_path / "2.json").unlink()
    (tmp_path / "loop.json").unlink()
    assert source.latest(stop, 10) == stop and not source.problems


def test_links_to_nothing_and_pipes_are_passed_over_aloud(tmp_path: Path) -> None:
    (tmp_path / "dead.json").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    source = json_files(tmp_path, SCHEMA, finite=True)
    assert source.ended(source.start())
    assert "dead.json (a broken link)" in source.notice() and "pipe (neither" in source.notice()
    assert "holds no file" in source.contents() and "dead.json" in source.contents()


# ---- broken
BROKEN = {
    "no bytes": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "something else": lambda data: b"hello" * 100,
    "footer": lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_without_a_footer_keeps_its_place_until_it_is_mended(tmp_path: Path, how: str) -> None:
    for order, name in enumerate("abc"):
        parquet(tmp_path / name, order, order)
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(BROKEN[how](whole))
    aged(tmp_path / "b", 1)
    source = parquet_files(tmp_path)
    start = source.start()
    first = source.latest(start, 100)
    assert names(first) == ["a"] and f"{tmp_path}/b cannot be read: " in source.problems[0]
    assert "put a whole file in its place, or remove it" in source.problems[0]
    assert source.latest(first, 100) == first and source.problems
    finite = parquet_files(tmp_path, finite=True)
    with pytest.raises(Fault, match="b cannot be read"):
        finite.start()
    (tmp_path / "b").write_bytes(whole)
    aged(tmp_path / "b", 9)
    second = source.latest(first, 100)
    assert names(second) == ["b", "c"] and not source.problems, "also when it is younger now"
    assert names(finite.latest(finite.start(), 100)) == ["a", "b", "c"]
    assert [row["a"] for row in read(source, first, second)] == [1, 2]


def test_a_broken_file_holds_up_its_own_flow_alone(tmp_path: Path) -> None:
    parquet(tmp_path / "n" / "2", 2, 2)
    parquet(tmp_path / "s" / "3", 3, 3)
    (tmp_path / "n" / "1").write_bytes(b"")
    aged(tmp_path / "n" / "1", 1)
    source = parquet_files(tmp_path, SCHEMA, flow="{flow}/*")
    start = source.start()
    first = source.latest(start, 100)
    assert names(first) == ["s/3"] and source.flows(first) == {"n": True, "s": False}
    assert "n/1 cannot be read" in source.problems[0], "also after a look at the flows"
    (tmp_path / "n" / "1").unlink()
    assert names(source.latest(first, 100)) == ["n/2"]


def flipped(path: Path, order: int) -> None:
    """Change the bytes of a page, and nothing else."""
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(0).column(0).data_page_offset + 300
    data[at : at + 40] = bytes(byte ^ 0xFF for byte in data[at : at + 40])
    path.write_bytes(data)
    aged(path, order)


@pytest.mark.parametrize("compression", ["snappy", "none", "zstd"])
def test_a_file_whose_pages_are_broken_is_named_and_may_be_replaced(tmp_path: Path, compression: str) -> None:
    inbox = tmp_path / "in"
    for order, name in enumerate("abc"):
        rows = range(1000 * order, 1000 * order + 1000)
        parquet(inbox / name, order, *rows, compression=compression, use_dictionary=False, write_page_checksum=True)
    whole = (inbox / "b").read_bytes()
    flipped(inbox / "b", 1)

    def planner() -> DirectorySplits:
        made = parquet_files(inbox, SCHEMA)
        made.keep(tmp_path / "lists", "x")
        return made

    source = planner()
    start = source.start()
    stop = source.latest(start, 10**6)
    with pytest.raises(Fault, match=r"in/b cannot be read: \w+: .*put a whole file in its place, which may") as raised:
        read(source, start, stop)
    source.failed(stop, f"Fault: {raised.value}")
    assert source.plan(start, stop, 1), "it is as it was"
    (inbox / "b").write_bytes(whole + b"")
    aged(inbox / "b", 7)
    for one in (source, planner()):  # also of a process that begins then
        assert sorted(row["a"] for row in read(one, start, stop)) == [*range(3000)]
        assert one.latest(stop, 10**6) == stop, "it is not taken again"
    (inbox / "a").write_bytes(b"")
    with pytest.raises(RowsGone, match="a was written again"):
        source.plan(start, stop, 1)
    aged(inbox / "b", 8)
    with pytest.raises(Fault, match="b was read, and then written again"):
        (inbox / "a").unlink()
        source.latest(stop, 10)


def test_a_broken_file_that_is_taken_is_not_lost_with_its_folder(tmp_path: Path) -> None:
    parquet(tmp_path / "in" / "a", 1, *range(1000), compression="none", use_dictionary=False, write_page_checksum=True)
    flipped(tmp_path / "in" / "a", 1)
    source = parquet_files(tmp_path / "in", SCHEMA)
    start = source.start()
    stop = source.latest(start, 10**6)
    with pytest.raises(Fault) as raised:
        read(source, start, stop)
    source.failed(stop, str(raised.value))
    os.rename(tmp_path / "in", tmp_path / "away")
    with pytest.raises(RowsGone, match="a was removed"):
        source.plan(start, stop, 1)
    os.rename(tmp_path / "away", tmp_path / "in")
    pq.write_table(pa.table({"a": [], "b": []}, SCHEMA), tmp_path / "in" / "a")
    assert read(source, start, stop) == [], "who wants to go on without it says so"


def test_a_folder_that_is_not_mounted_does_not_make_its_files_new(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(taken, "FORGET_SECONDS", 0.0)
    folder = tmp_path / "in"
    parquet(folder / "a", 1, 1)
    source = parquet_files(folder, SCHEMA)
    first = source.latest(source.start(), 10)
    os.rename(folder, tmp_path / "mounted")
    folder.mkdir()
    for _ in range(3):
        assert source.latest(first, 10) == first
    folder.rmdir()
    os.rename(tmp_path / "mounted", folder)
    assert source.latest(first, 10) == first, "it is not read again"


def test_a_list_of_taken_files_that_is_not_what_was_written_makes_none_of_them_new(tmp_path: Path) -> None:
    for order, name in enumerate("abc"):
        parquet(tmp_path / "in" / name, order, order)

    def planner() -> DirectorySplits:
        made = parquet_files(tmp_path / "in", SCHEMA)
        made.keep(tmp_path / "lists", "x")
        return made

    source = planner()
    position = source.start()
    for _ in range(3):
        position = source.latest(position, 1)
    assert source.latest(position, 10) == position and position["taken"] == 3
    whole = (tmp_path / "lists" / "x.jsonl").read_bytes()
    parquet(tmp_path / "in" / "d", 1, 7)  # as old as others: what was read cannot be guessed
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        (tmp_path / "lists" / "x.jsonl").write_bytes(flipped)
        try:
            assert names(planner().latest(position, 10)) == ["d"]
        except Fault as wrong:
            assert "the list of read files is lost" in str(wrong)


def test_texts_that_are_no_utf_8_are_of_a_broken_file(tmp_path: Path) -> None:
    table = pa.table({"b": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())})
    pq.write_table(table, tmp_path / "a")
    with pytest.raises(Fault, match=r"a cannot be read: ArrowInvalid: .*UTF8"):
        everything(parquet_files(tmp_path))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            pa.table({"a": ["x"]}),
            "column 'a' is string in the file, and int64 in .*/1, from which the columns are inferred: ",
        ),
        (
            pa.table({"a": [1.5]}),
            "column 'a' is double in the file, and int64 in .*/1, from which .* cannot hold a value",
        ),
        (
            pa.table({"A": [1]}),
            "has no column 'a' .*, unlike .*/1, from which the columns are inferred; .*, or give schema=",
        ),
    ],
    ids=["type", "value", "name"],
)
def test_columns_that_nobody_declared_are_those_of_the_first_file_by_its_name(
    tmp_path: Path, other: pa.Table, why: str
) -> None:
    for number, table in enumerate((pa.table({"a": [1]}), other), 1):
        pq.write_table(table, tmp_path / str(number))
        aged(tmp_path / str(number), number)
    with pytest.raises(SpecRefused, match=why) as refused:
        everything(parquet_files(tmp_path))
    assert "eclare" not in str(refused.value)


def test_a_file_that_does_not_fit_is_refused_at_first_and_waited_for_later(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "b")
    aged(tmp_path / "b", 5)
    wanted = pa.schema([("a", pa.int64())])
    with pytest.raises(SpecRefused, match="b: column 'a' is string in the file, and declared as int64"):
        source = parquet_files(tmp_path, wanted)
        source.latest(source.start(), 10)
    os.rename(tmp_path / "b", tmp_path / "_b")
    parquet(tmp_path / "a", 1, 1)
    source = parquet_files(tmp_path, wanted)
    first = source.latest(source.start(), 10)
    os.rename(tmp_path / "_b", tmp_path / "b")
    assert source.latest(first, 10) == first and "column 'a' is string" in source.problems[0]


def test_columns_come_from_the_first_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    aged(tmp_path / "a", 0)
    with pytest.raises(InputAway, match=r"holds no file to take the columns from: .*a cannot be read"):
        parquet_files(tmp_path).schema()
    parquet(tmp_path / "b", 1, 1)
    assert parquet_files(tmp_path).schema().equals(SCHEMA)


# ---- folders
def test_folders_of_hive_are_read_with_their_columns(tmp_path: Path) -> None:
    parquet(tmp_path / "date=2024-01-01" / "hour=00" / "p", 1, 1)
    parquet(tmp_path / "date=2024-01-02" / "hour=13" / "p", 2, 2)
    parquet(tmp_path / "date=__HIVE_DEFAULT_PARTITION__" / "hour=7" / "p", 3, 3)
    for hidden in ("_SUCCESS", "date=2024-01-01/.p.crc", "date=2024-01-01/_committed", "p._COPYING_"):
        (tmp_path / hidden).write_bytes(b"")
    parquet(tmp_path / "_temporary" / "0" / "p", 9, 9)
    source = parquet_files(tmp_path, finite=True)
    assert source.schema().field("date").type == pa.date32() and source.schema().field("hour").type == pa.int32()
    rows = everything(source)
    assert [(row["a"], str(row["date"]), row["hour"]) for row in rows] == [
        (1, "2024-01-01", 0),
        (2, "2024-01-02", 13),
        (3, "None", 7),
    ]
    declared = pa.schema([("hour", pa.string()), ("a", pa.int32()), ("date", pa.timestamp("us", "UTC"))])
    rows = everything(parquet_files(tmp_path, declared))
    assert next((row["hour"], row["a"], str(row["date"])[:10]) for row in rows) == ("00", 1, "2024-01-01")
    source = parquet_files(tmp_path, declared)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10**6), 1)
    for columns in (["hour"], ["date", "a"], []):
        batches = [batch for batch in source.read(split, columns) if isinstance(batch, pa.RecordBatch)]
        assert [batch.schema.names for batch in batches] == [columns] * 3
        assert sum(batch.num_rows for batch in batches) == 3


def test_names_of_folders_are_decoded_as_spark_does(tmp_path: Path) -> None:
    for order, name in enumerate(("a%2Fb", "a b", "%C3%A9", "é", "50%25", "")):
        folder = tmp_path / f"shop={name}"
        folder.mkdir()
        (folder / "1.json").write_bytes(lines(order))
        aged(folder / "1.json", order)
    rows = everything(json_files(tmp_path, pa.schema([("shop", pa.string()), ("a", pa.int64())]), finite=True))
    assert [row["shop"] for row in rows] == ["a/b", "a b", "é", "é", "50%", ""]


def test_a_value_of_a_folder_that_is_of_another_type_is_named(tmp_path: Path) -> None:
    parquet(tmp_path / "day=soon" / "p", 1, 1)
    source = parquet_files(tmp_path, pa.schema([("a", pa.int64()), ("day", pa.date32())]))
    start = source.start()
    assert source.latest(start, 10) == start
    assert "day=soon/p: the folder says day=soon, which is not of type date32" in source.problems[0]


def test_a_folder_of_nulls_is_named_where_none_may_be(tmp_path: Path) -> None:
    parquet(tmp_path / "day=__HIVE_DEFAULT_PARTITION__" / "p", 1, 1)
    source = parquet_files(tmp_path, pa.schema([("a", pa.int64()), pa.field("day", pa.date32(), nullable=False)]))
    start = source.start()
    assert source.latest(start, 10) == start and "a null: declare column 'day' nullable" in source.problems[0]


@pytest.mark.parametrize("make", [lambda d: parquet_files(d, SCHEMA), lambda d: json_files(d, SCHEMA)])
def test_other_folders_are_refused_by_name_and_said_when_they_come_later(tmp_path: Path, make: Any) -> None:
    (tmp_path / "empty").mkdir()
    source = make(tmp_path)
    start = source.start()
    parquet(tmp_path / "done" / "p", 1, 1)
    assert source.latest(start, 10) == start and "done (a folder not named COLUMN=VALUE)" in source.notice()
    with pytest.raises(SpecRefused, match=r"holds done, .*begins with '_' or '.', or .* flow="):
        make(tmp_path).start()


def test_folders_that_lead_back_to_themselves_end(tmp_path: Path) -> None:
    parquet(tmp_path / "k=1" / "p", 1, 1)
    (tmp_path / "k=2").symlink_to(".")
    source = parquet_files(tmp_path, SCHEMA)
    assert names(source.latest(source.start(), 10)) == ["k=1/p"]
    assert "twice" in source.problems[0]


# ---- texts
def framed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACKED = {
    "1.json.gz": lambda d: gzip.compress(d[:777]) + gzip.compress(d[777:]),
    "2.bz2": lambda d: bz2.compress(d[:777]) + bz2.compress(d[777:]),
    "3.json.zst": lambda d: framed(d, "zstd"),
    "4.lz4": lambda d: framed(d, "lz4"),
    "5.json": gzip.compress,
    "6.json.gz": lambda d: d,
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_lines_are_read_whatever_their_name(tmp_path: Path, name: str, monkeypatch: Any) -> None:
    data = lines(*range(3000))[:-1]
    (tmp_path / name).write_bytes(PACKED[name](data))
    for block in (1, 50, 10_000, 1 << 20):
        monkeypatch.setattr(line_files, "JSON_BLOCK_BYTES", block)
        source = json_files(tmp_path, SCHEMA, finite=True)
        if block > 1 or name.startswith("5"):
            assert [row["a"] for row in everything(source)] == [*range(3000)]


@pytest.mark.parametrize("name", ["1.json.gz", "2.bz2", "3.json.zst", "4.lz4"])
def test_a_compressed_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    whole = PACKED[name](lines(*range(20_000)))
    (tmp_path / name).write_bytes(whole[:-30])
    source = json_files(tmp_path, SCHEMA)
    with pytest.raises(Fault, match=f"{name} cannot be read: OSError: .*put a whole file in its place"):
        everything(source)
        raise Fault(source.problems[0])  # where the first look has found it


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lambda data: framed(data, "zstd")], ids=["gzip", "bz2", "zstd"]
)
@pytest.mark.parametrize(
    "within",
    [gzip.compress(lines(1)), b"PAR1", bytes(257) + b"ustar\x0000", b"PK\x03\x04"],
    ids=["gzip", "parquet", "tar", "zip"],
)
def test_what_is_within_a_compressed_file_is_named(tmp_path: Path, pack: Any, within: bytes) -> None:
    (tmp_path / "1.json").write_bytes(pack(within))
    source = json_files(tmp_path, SCHEMA)
    assert source.latest(source.start(), 10)["id"] == ""
    assert (
        "1.json cannot be read: it is compressed with " in source.problems[0] and ", and within " in source.problems[0]
    )


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_a_line_without_an_end_is_named(tmp_path: Path, pack: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_files, "LINE_BYTES_MAX", 10_000)
    monkeypatch.setattr(line_files, "JSON_BLOCK_BYTES", 100)
    (tmp_path / "1.json").write_bytes(pack(lines(1) + b" " * 20_000))
    source = json_files(tmp_path, SCHEMA, finite=True)
    with pytest.raises(Fault, match=r"1.json cannot be read: a line is longer than 10,000 bytes"):
        everything(source)


def test_a_long_line_is_read_once_however_many_pieces_it_covers(tmp_path: Path) -> None:
    whole = lines(1) + b'{"a": 2, "b": "%s"}\n' % (b"x" * 50_000) + lines(3)
    (tmp_path / "1.json").write_bytes(whole)
    edges = [*range(0, len(whole), 1000), len(whole)]
    pieces = (text_files.blocks(str(tmp_path / "1.json"), None, low, high, 100) for low, high in pairwise(edges))
    found = [data for piece in pieces for _, data in piece]
    assert b"".join(found) == whole


def test_frames_without_data_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1.zst").write_bytes(b"\x50\x2a\x4d\x18\4\0\0\0\1\2\3\4" + framed(lines(1), "zstd"))
    assert [row["a"] for row in everything(json_files(tmp_path, SCHEMA))] == [1]


def test_names_that_are_no_utf_8_are_read_in_every_format(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for name, data in ((b"\xff.json", lines(1)), (b"\xff.gz", gzip.compress(lines(2)))):
        with open(folder + b"/" + name, "wb") as file:
            file.write(data)
    assert sorted(row["a"] for row in everything(json_files(tmp_path, SCHEMA))) == [1, 2]
    os.mkdir(folder + b"/in")
    with open(folder + b"/in/\xff.parquet", "wb") as file:
        pq.write_table(pa.table({"a": [3]}), file)
    assert everything(parquet_files(tmp_path / "in")) == [{"a": 3}]


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (b"PK\x03\x04", ""),
        (b"PK\x05\x06", ""),
        (bytes(257) + b"ustar", ""),
        (b"x\x9c", ""),
        (b"PARE", ""),
        (b"\xfd7zXZ\0", ""),
        (b"PAR1", ""),
        (b"Obj\x01", ""),
        (b"\0\0\1", ".snappy"),
        (b"\0", ".lz4"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, begin: bytes, name: str) -> None:
    (tmp_path / f"x.json{name}").write_bytes(begin + bytes(100))
    source = json_files(tmp_path, SCHEMA)
    assert source.latest(source.start(), 10)["id"] == ""
    assert f"x.json{name} cannot be read: it is " in source.problems[0] and "gzip, bz2" in source.problems[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (lines(1, 2).decode().encode("utf-16"), "the file is UTF-16: write it as UTF-8"),
        (lines(1, 2).decode().encode("utf-16-le"), "the file is UTF-16"),
        (lines(1, 2).decode().encode("utf-16-be"), "the file is UTF-16"),
        (lines(1, 2).replace(b"\n", b"\r"), "carriage return alone"),
    ],
)
def test_how_a_file_was_written_is_the_reason_of_its_malformed_lines(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "1.json").write_bytes(data)
    source = json_files(tmp_path, SCHEMA)
    start = source.start()
    (split,) = source.plan(start, source.latest(start, 10), 1)
    bad = [one for one in source.read(split) if isinstance(one, Malformed)]
    assert bad and why in bad[0].reason
