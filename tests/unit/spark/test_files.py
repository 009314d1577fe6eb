"""Directories of files as sources: positions, division among tasks, and records that cannot be parsed."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.contract.errors import Fault, RowsGone, SpecRefused
from ferry.spark import files
from ferry.spark.files import DirectorySplits, json_files, parquet_files
from ferry.spark.splits import Malformed, Splits

SCHEMA = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string()), ("f", pa.float64())])


def aged(path: Path, order: int) -> None:
    """Give a file a modification time; greater `order` is later, all are long ago."""
    os.utime(path, ns=(10**18 + order, 10**18 + order))


def write_parquet(directory: Path, name: str, order: int, rows: range, group: int = 1000) -> None:
    """Column a holds the rows, column b their text."""
    table = pa.table({"a": list(rows), "b": [str(i) for i in rows]})
    pq.write_table(table, directory / name, row_group_size=group)
    aged(directory / name, order)


def write_lines(directory: Path, name: str, order: int, lines: list[bytes]) -> None:
    """A file of these lines."""
    (directory / name).write_bytes(b"".join(line + b"\n" for line in lines))
    aged(directory / name, order)


def take(source: DirectorySplits, start: Any, stop: Any, tasks: int = 3, columns: Any = None) -> Iterator[Any]:
    """Everything between two positions, the way tasks read it: splits go through JSON."""
    splits = source.plan(start, stop, tasks)
    assert len(splits) <= tasks
    for split in splits:
        yield from source.read(json.loads(json.dumps(split)), columns)


def values(items: Iterator[Any], column: str = "a") -> list[Any]:
    """One column of all batches."""
    return [v for item in items if isinstance(item, pa.RecordBatch) for v in item[column].to_pylist()]


def test_files_are_read_in_order_of_time_and_name(tmp_path: Path) -> None:
    write_parquet(tmp_path, "b", 1, range(10))
    write_parquet(tmp_path, "c", 2, range(10, 20))
    write_parquet(tmp_path, "a", 2, range(20, 30))
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".a.crc").touch()
    (tmp_path / "folder").mkdir()
    source = parquet_files(tmp_path)
    assert isinstance(source, Splits)
    start = source.start()
    stop = source.latest(start, 10**6)
    assert stop == [10**18 + 2, "c"] and json.loads(json.dumps(stop)) == stop
    assert values(take(source, start, stop)) == [*range(10), *range(20, 30), *range(10, 20)]
    assert source.latest(stop, 10) == stop
    assert not source.ended(stop)
    assert source.plan(stop, stop, 2) == []


def test_latest_takes_whole_files_and_at_least_one(tmp_path: Path) -> None:
    for i in range(4):
        write_parquet(tmp_path, f"f{i}", i, range(10 * i, 10 * i + 10))
    source = parquet_files(tmp_path)
    assert source.latest(source.start(), 1) == [10**18, "f0"]
    assert source.latest(source.start(), 29) == [10**18 + 1, "f1"]
    assert source.latest([10**18, "f0"], 20) == [10**18 + 2, "f2"]
    assert values(take(source, [10**18, "f0"], [10**18 + 2, "f2"])) == list(range(10, 30))


def test_a_large_file_is_shared_among_tasks(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(1000), group=10)
    source = parquet_files(tmp_path)
    splits = source.plan(source.start(), source.latest(source.start(), 1), 3)
    assert [len(values(source.read(s, ["a"]))) for s in splits] == [340, 330, 330]
    assert values(b for s in splits for b in source.read(s, None)) == list(range(1000))


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    write_lines(tmp_path, "_g", 1, [b'{"a": 1}'])
    source = parquet_files(tmp_path)
    stop = source.latest(source.start(), 1)
    assert next(take(source, source.start(), stop, columns=["b", "a"])).schema.names == ["b", "a"]
    assert next(take(source, source.start(), stop, columns=[])).num_rows == 10
    with pytest.raises(SpecRefused, match=r"no columns \['x'\].*a, b"):
        list(take(source, source.start(), stop, columns=["x"]))


def test_files_that_do_not_fit_the_first_one_are_cast_or_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    pq.write_table(pa.table({"b": ["x"], "a": pa.array([7], pa.int32())}), tmp_path / "g")
    aged(tmp_path / "g", 2)
    source = parquet_files(tmp_path)
    stop = source.latest(source.start(), 100)
    batches = list(take(source, source.start(), stop))
    assert all(b.schema.equals(source.schema()) for b in batches) and values(iter(batches))[-1] == 7
    pq.write_table(pa.table({"a": [7]}), tmp_path / "g")
    aged(tmp_path / "g", 2)
    with pytest.raises(SpecRefused, match=r"no columns \['b'\]"):
        list(take(parquet_files(tmp_path), source.start(), stop))
    (tmp_path / "h").write_bytes(b"PAR1 cut short")
    aged(tmp_path / "h", 3)
    with pytest.raises(Fault, match="no complete Parquet file"):
        source.latest(stop, 10)


def test_a_column_declared_as_a_dictionary_is_read_as_one(tmp_path: Path) -> None:
    words = pa.dictionary(pa.int32(), pa.string())
    write_parquet(tmp_path, "one.parquet", 1, range(10))
    source = parquet_files(tmp_path, schema=pa.schema([SCHEMA.field("a"), ("b", words)]))
    read = pa.Table.from_batches(take(source, source.start(), source.latest(source.start(), 100)))
    assert read.schema.field("b").type == words
    assert read.column("b").combine_chunks().dictionary_decode().to_pylist() == [str(i) for i in range(10)]


def test_a_young_file_waits_until_no_other_can_come_before_it(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    later = time.time_ns() + 3600 * 10**9
    os.utime(tmp_path / "f", ns=(later, later))
    source = parquet_files(tmp_path)
    assert source.latest(source.start(), 10) == source.start()
    finite = parquet_files(tmp_path, finite=True)
    assert finite.latest(finite.start(), 10)[:2] == [later, "f"]


def test_a_finite_input_is_what_was_there_at_first(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    write_parquet(tmp_path, "g", 2, range(10, 20))
    source = parquet_files(tmp_path, finite=True)
    start = source.start()
    write_parquet(tmp_path, "h", 3, range(20, 30))
    middle = source.latest(start, 10)
    # Another process, which lists the directory later, goes on from the same position to the same end.
    other = parquet_files(tmp_path, finite=True)
    stop = other.latest(middle, 10**6)
    assert not other.ended(start) and not other.ended(middle) and other.ended(stop)
    assert values(take(other, start, middle)) + values(take(other, middle, stop)) == list(range(20))
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = json_files(empty, SCHEMA, finite=True)
    assert nothing.ended(nothing.start())


def test_what_is_gone_is_an_error_and_not_an_empty_answer(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    source = parquet_files(tmp_path)
    start = source.start()
    stop = source.latest(start, 10)
    splits = source.plan(start, stop, 1)
    write_parquet(tmp_path, "e", 0, range(10))
    write_parquet(tmp_path, "f", 2, range(10))
    with pytest.raises(RowsGone, match="written again"):
        source.plan([0, ""], stop, 1)
    (tmp_path / "e").unlink()
    (tmp_path / "f").unlink()
    with pytest.raises(RowsGone, match="went away"):
        list(source.read(splits[0], None))
    with pytest.raises(RowsGone, match="went away"):
        source.plan(start, stop, 1)
    with pytest.raises(SpecRefused, match="no directory"):
        parquet_files(tmp_path / "nowhere").latest(start, 1)
    with pytest.raises(SpecRefused, match="give schema="):
        parquet_files(tmp_path).schema()


def test_json_lines_are_records_of_the_schema(tmp_path: Path) -> None:
    write_lines(
        tmp_path, "f", 1, [b'{"a": 1, "b": "x", "other": [1]}', b"", b'{"f": 2, "a": 2}\r', b'{"a":3,"b":null}']
    )
    source = json_files(tmp_path, SCHEMA)
    (batch,) = take(source, source.start(), source.latest(source.start(), 10))
    assert batch.schema.equals(SCHEMA)
    assert batch.to_pylist() == [
        {"a": 1, "b": "x", "f": None},
        {"a": 2, "b": None, "f": 2.0},
        {"a": 3, "b": None, "f": None},
    ]
    assert next(take(source, source.start(), [10**18 + 1, "f"], columns=["f"])).schema.names == ["f"]


BAD = [
    b"nope",
    b'{"a": "x"}',
    b'{"a": 1.5}',
    b'{"b": "no a"}',
    b'{"a": null}',
    b'{"a": 2}{"a": 3}',
    b'{"a":',
    b"4}",
    b"[1]",
    b"null",
    b'{"a": 5, "b": "\xff"}',
    b'{"a": 7, "b": {"c": 1}}',
    b'{"a": 99999999999999999999}',
]


@pytest.mark.parametrize("bad", [[b] for b in BAD] + [BAD])
def test_malformed_lines_are_set_aside_and_the_others_read(tmp_path: Path, bad: list[bytes]) -> None:
    good = [b'{"a": %d}' % i for i in range(100)]
    write_lines(tmp_path, "f", 1, [*good[:50], *bad, *good[50:]])
    source = json_files(tmp_path, SCHEMA)
    items = list(take(source, source.start(), source.latest(source.start(), 10)))
    assert values(iter(items)) == list(range(100))
    (malformed,) = [i for i in items if isinstance(i, Malformed)]
    assert malformed.count == len(bad)
    assert sorted(malformed.records) == sorted(b.decode("utf-8", "replace") for b in bad)
    assert malformed.reason.startswith("f, bytes 0 to ")


def test_a_line_is_read_once_wherever_files_and_blocks_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    lines = [b'{"a": %d, "b": "%s"}' % (i, b"x" * (i % 17)) for i in range(300)]
    for block in (1, 7, 20, 64, 1000):
        monkeypatch.setattr(files, "JSON_SHARE_BYTES", 3 * block + 1)
        monkeypatch.setattr(files, "JSON_BLOCK_BYTES", block)
        write_lines(tmp_path, "f", 1, lines)
        write_lines(tmp_path, "g", 2, [])
        source = json_files(tmp_path, SCHEMA)
        stop = source.latest(source.start(), 10**6)
        assert stop[1] == "g"
        assert values(take(source, source.start(), stop, tasks=50)) == list(range(300))


def test_the_size_of_json_files_counts_against_max_rows(tmp_path: Path) -> None:
    for i in range(3):
        write_lines(tmp_path, f"f{i}", i, [b'{"a": 1}'] * 100)
    source = json_files(tmp_path, SCHEMA)
    assert source.latest(source.start(), 250) == [10**18 + 1, "f1"]
