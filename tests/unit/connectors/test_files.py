"""Directories of files as sources: positions, division among tasks, and records that cannot be parsed."""

import gzip
import json
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.connectors.files import directory, line_files, taken
from ferry.connectors.files.directory import DirectorySplits
from ferry.connectors.files.flow_pattern import FlowPattern
from ferry.connectors.files.json_files import json_files
from ferry.connectors.files.parquet_files import parquet_files
from ferry.connectors.splits import WHOLE, Flow, Malformed, Splits
from ferry.contract.errors import Fault, RowsGone, SpecRefused

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


def names(position: Any) -> list[str]:
    """The files of the epoch that ends there."""
    return [name for _, name, _ in position["files"]]


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
    assert names(stop) == ["b", "a", "c"] and json.loads(json.dumps(stop)) == stop
    assert values(take(source, start, stop)) == [*range(10), *range(20, 30), *range(10, 20)]
    assert source.latest(stop, 10) == stop
    assert not source.ended(stop)
    assert source.plan(stop, stop, 2) == []


def test_latest_takes_whole_files_and_at_least_one(tmp_path: Path) -> None:
    for i in range(4):
        write_parquet(tmp_path, f"f{i}", i, range(10 * i, 10 * i + 10))
    source = parquet_files(tmp_path)
    assert names(first := source.latest(source.start(), 1)) == ["f0"]
    assert names(source.latest(source.start(), 29)) == ["f0", "f1"]
    assert names(second := source.latest(first, 20)) == ["f1", "f2"]
    assert values(take(source, first, second)) == list(range(10, 30))


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
    with pytest.raises(SpecRefused, match=r"g has no column 'b', unlike .*/f, .* inferred; it has a\."):
        list(take(source, source.start(), parquet_files(tmp_path).latest(source.start(), 100)))


def test_a_column_declared_as_a_dictionary_is_read_as_one(tmp_path: Path) -> None:
    words = pa.dictionary(pa.int32(), pa.string())
    write_parquet(tmp_path, "one.parquet", 1, range(10))
    source = parquet_files(tmp_path, schema=pa.schema([SCHEMA.field("a"), ("b", words)]))
    read = pa.Table.from_batches(take(source, source.start(), source.latest(source.start(), 100)))
    assert read.schema.field("b").type == words
    assert read.column("b").combine_chunks().dictionary_decode().to_pylist() == [str(i) for i in range(10)]


def test_a_file_is_taken_when_it_is_found_however_old_it_is(tmp_path: Path) -> None:
    source = parquet_files(tmp_path)
    write_parquet(tmp_path, "_a", 1, range(10))
    write_parquet(tmp_path, "b", 2, range(10, 20))
    first = source.latest(source.start(), 10**6)
    os.rename(tmp_path / "_a", tmp_path / "a")
    second = source.latest(first, 10**6)
    assert (names(first), names(second)) == (["b"], ["a"])
    assert values(take(source, first, second)) == list(range(10))
    assert source.latest(second, 10**6) == second


def planner(tmp_path: Path, folder: str = "lists") -> DirectorySplits:
    """A source as a new process of Spark's planning has it."""
    made = json_files(tmp_path / "in", SCHEMA)
    made.keep(tmp_path / folder, "a/b")
    return made


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def test_every_file_is_taken_once_whatever_process_plans(tmp_path: Path, inbox: Path) -> None:
    seen: list[str] = []
    position = planner(tmp_path).start()
    older = planner(tmp_path)
    for life in range(6):
        for i in range(7):
            write_lines(inbox, f"f{life}-{i}", 1000 - 10 * life + i, [b'{"a": 1}'])
        before = position
        position = older.latest(json.loads(json.dumps(position)), 3)
        seen += names(position)
        # A process that dies may have planned what Spark never saw; the next one has only the position.
        older.latest(position, 2)
        older = planner(tmp_path) if life % 2 else older
        again = older.latest(position, 2)
        older.plan(before, position, 2)
        assert again["after"] == position["id"]
        position = again
        seen += names(position)
        (inbox / seen[-1]).unlink()
    while (later := planner(tmp_path).latest(position, 2)) != position:
        position = later
        seen += names(position)
    assert sorted(seen) == sorted(f"f{life}-{i}" for life in range(6) for i in range(7))


def test_a_list_that_is_lost_is_not_guessed(tmp_path: Path, inbox: Path) -> None:
    for i in range(4):
        write_lines(inbox, f"f{i}", i, [b'{"a": 1}'])
    source = planner(tmp_path)
    position = source.latest(source.latest(source.start(), 5), 10)
    write_lines(inbox, "g", 9, [b'{"a": 1}'])
    # The directory still shows what was read.
    assert names(planner(tmp_path, "elsewhere").latest(position, 10)) == ["g"]
    write_lines(inbox, "e", 0, [b'{"a": 1}'])
    with pytest.raises(Fault, match=r"list of read files is lost.*4 then, 5 now"):
        planner(tmp_path, "lost").latest(position, 10)
    assert names(planner(tmp_path).latest(position, 10)) == ["e", "g"]


def test_a_file_under_the_name_of_another_is_an_error_until_the_name_is_forgotten(
    tmp_path: Path, inbox: Path, monkeypatch: Any
) -> None:
    write_lines(inbox, "f", 1, [b'{"a": 1}'])
    source = planner(tmp_path)
    position = source.latest(source.start(), 10)
    write_lines(inbox, "f", 2, [b'{"a": 2}'])
    for other in (source, planner(tmp_path)):
        with pytest.raises(Fault, match=r"in/f was read, and then written again"):
            other.latest(position, 10)
    (inbox / "f").unlink()
    assert source.latest(position, 10) == position
    monkeypatch.setattr(taken, "FORGET_SECONDS", 0.0)
    assert source.latest(position, 10) == position
    write_lines(inbox, "f", 2, [b'{"a": 2}'])
    assert names(source.latest(position, 10)) == names(planner(tmp_path).latest(position, 10)) == ["f"]


def test_a_listing_that_lacks_a_file_for_a_moment_does_not_make_it_new(tmp_path: Path, inbox: Path) -> None:
    write_lines(inbox, "f", 1, [b'{"a": 1}'])
    source = planner(tmp_path)
    position = source.latest(source.start(), 10)
    os.rename(inbox / "f", inbox / "_f")
    assert source.latest(position, 10) == position
    os.rename(inbox / "_f", inbox / "f")
    assert source.latest(position, 10) == position


def test_the_position_is_small_and_the_list_does_not_grow_for_ever(
    tmp_path: Path, inbox: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(directory, "EPOCH_FILES", 5)
    monkeypatch.setattr(taken, "NAMES_SPARE", 5)
    monkeypatch.setattr(taken, "KEPT_LINES", 3)
    monkeypatch.setattr(taken, "FORGET_SECONDS", 0.0)
    for i in range(10):
        write_lines(inbox, f"f{i:03}", i, [b'{"a": 1}'])
    source = planner(tmp_path)
    position = source.start()
    for _ in range(2):
        position = source.latest(position, 10**6)
        assert len(position["files"]) == 5 and len(json.dumps(position)) < 2000
    for i in range(60):
        write_lines(inbox, f"g{i:03}", 200 + i, [b'{"a": 1}'])
        for old in inbox.glob(f"g{i - 1:03}"):
            old.unlink()
        position = source.latest(position, 10**6)
    (log,) = (tmp_path / "lists").iterdir()
    assert sum(len(json.loads(line).get("files", ())) for line in log.read_text().splitlines()) < 30
    assert planner(tmp_path).latest(position, 10) == position


def test_all_files_of_a_finite_input_can_be_asked_for_at_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(directory, "EPOCH_FILES", 2)
    monkeypatch.setattr(directory, "EPOCH_NAMES", 2)
    for i in range(5):
        write_parquet(tmp_path, f"f{i}", i, range(10 * i, 10 * i + 10))
    source = parquet_files(tmp_path, finite=True)
    start = source.start()
    assert names(source.latest(start, 10**9)) == ["f0"]
    stop = source.latest(start, WHOLE)
    assert source.ended(stop) and sorted(values(take(source, start, stop))) == [*range(50)]


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


def test_a_finite_input_that_changes_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    for i in range(3):
        write_parquet(tmp_path, f"f{i}", i, range(10))
    source = parquet_files(tmp_path, finite=True)
    first = source.latest(source.start(), 10)
    (tmp_path / "f0").unlink()  # It was read.
    assert names(source.latest(first, 10)) == ["f1"]
    (tmp_path / "f1").unlink()
    with pytest.raises(RowsGone, match="held 3 files when the job began"):
        source.latest(first, 10)


def test_what_is_gone_is_an_error_and_not_an_empty_answer(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(10))
    for name in ("g", "h"):
        write_parquet(tmp_path, name, 2, range(10))
    source = parquet_files(tmp_path)
    start = source.start()
    stop = source.latest(start, 10**6)
    splits = source.plan(start, stop, 1)
    write_parquet(tmp_path, "g", 3, range(10))
    for step in (lambda: source.plan(start, stop, 1), lambda: list(source.read(splits[0], None))):
        with pytest.raises(RowsGone, match="g was written again before it was read"):
            step()
    (tmp_path / "g").unlink()
    for step in (lambda: source.plan(start, stop, 1), lambda: list(source.read(splits[0], None))):
        with pytest.raises(RowsGone, match="g was removed before it was read"):
            step()
    with pytest.raises(RowsGone, match="does not follow"):
        source.plan(stop, {**stop, "id": "x", "after": "y"}, 1)
    for call in (lambda: source.latest([10**18, "f"], 10), lambda: source.plan([0, ""], [10**18, "f"], 1)):
        with pytest.raises(SpecRefused, match="from another kind of source"):
            call()
    with pytest.raises(SpecRefused, match="no directory"):
        parquet_files(tmp_path / "nowhere").start()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecRefused, match="give schema="):
        parquet_files(tmp_path / "empty").schema()


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
    stop = source.latest(source.start(), 10)
    assert next(take(source, source.start(), stop, columns=["f"])).schema.names == ["f"]


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
    assert sorted(malformed.records) == sorted(b.decode("utf-8", "surrogateescape") for b in bad)
    data = (tmp_path / "f").read_bytes()
    for record, reason in zip(malformed.records, malformed.reasons, strict=True):
        at = int(reason.removeprefix("f, line at byte ").partition(":")[0])
        assert data[at:].startswith(record.encode("utf-8", "surrogateescape") + b"\n"), "each has its own place"


def test_a_line_is_read_once_wherever_files_and_blocks_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    lines = [b'{"a": %d, "b": "%s"}' % (i, b"x" * (i % 17)) for i in range(300)]
    for block in (1, 7, 20, 64, 1000):
        monkeypatch.setattr(line_files, "JSON_SHARE_BYTES", 3 * block + 1)
        monkeypatch.setattr(line_files, "JSON_BLOCK_BYTES", block)
        write_lines(tmp_path, "f", 1, lines)
        write_lines(tmp_path, "g", 2, [])
        source = json_files(tmp_path, SCHEMA)
        stop = source.latest(source.start(), 10**6)
        assert names(stop)[-1] == "g"
        assert values(take(source, source.start(), stop, tasks=50)) == list(range(300))


def smallest(source: Any, split: Any) -> list[Any]:
    """Of what a split is divided into, and those again."""
    parts = source.divided(split)
    return [one for part in parts for one in smallest(source, part)] if parts else [split]


@given(st.lists(st.integers(0, 90), max_size=40), st.integers(1, 60))
def test_a_range_of_lines_is_divided_down_to_single_lines(tmp_path_factory: Any, sizes: list[int], share: int) -> None:
    folder = tmp_path_factory.mktemp("f")
    write_lines(folder, "f", 1, [b'{"a": %d, "b": "%s"}' % (i, b"x" * size) for i, size in enumerate(sizes)])
    source = json_files(folder, SCHEMA)
    stop = source.latest(source.start(), 10**6)
    for split in source.plan(source.start(), stop, share):
        for of, low, high in split["pieces"]:
            edges = sorted({low, *range(low, high, 7 * share), high})
            for a, b in pairwise(edges):
                units = smallest(source, {"pieces": [[of, a, b]]})
                assert all(source.divided(one) == [] and len(values(source.read(one))) <= 1 for one in units)
                assert [v for one in units for v in values(source.read(one))] == values(
                    source.read({"pieces": [[of, a, b]]})
                )


def test_row_groups_and_compressed_files_are_the_smallest_ranges_of_many_records(tmp_path: Path) -> None:
    write_parquet(tmp_path, "f", 1, range(50), group=5)
    rows = parquet_files(tmp_path)
    (split,) = rows.plan(rows.start(), rows.latest(rows.start(), 10**6), 1)
    units = smallest(rows, split)
    assert [values(rows.read(one)) for one in units] == [list(range(n, n + 5)) for n in range(0, 50, 5)]
    assert rows.divided(units[0]) is None and rows.place(units[2]) == "f, row group 2"
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz" / "f").write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    lines = json_files(tmp_path / "gz", SCHEMA)
    (split,) = lines.plan(lines.start(), lines.latest(lines.start(), 10**6), 1)
    assert lines.divided(split) is None


def test_the_size_of_json_files_counts_against_max_rows(tmp_path: Path) -> None:
    for i in range(3):
        write_lines(tmp_path, f"f{i}", i, [b'{"a": 1}'] * 100)
    source = json_files(tmp_path, SCHEMA)
    assert names(source.latest(source.start(), 250)) == ["f0", "f1"]


def flows_of(items: Iterator[Any]) -> dict[str, list[int]]:
    """Column a of what was read, by flow."""
    found: dict[str, list[int]] = {}
    flow = "none"
    for item in items:
        if isinstance(item, Flow):
            flow = item.name
        else:
            found.setdefault(flow, []).extend(item["a"].to_pylist())
    return found


def test_every_folder_is_a_flow_from_the_moment_that_it_is_there(tmp_path: Path) -> None:
    for folder in ("north", "south", "_hidden", "south/deeper"):
        (tmp_path / folder).mkdir()
    write_parquet(tmp_path / "north", "1", 1, range(10))
    write_parquet(tmp_path / "south", "1", 2, range(10, 20))
    write_parquet(tmp_path / "north", "2", 3, range(20, 30))
    source = parquet_files(tmp_path, flow="{flow}/*")
    (tmp_path / "west").mkdir()
    start = source.start()
    assert source.flows(start) == {"north": True, "south": True, "west": False}
    first = source.latest(start, 25)
    assert names(first) == ["north/1", "south/1"]
    assert flows_of(take(source, start, first, 2)) == {"north": [*range(10)], "south": [*range(10, 20)]}
    assert source.flows(first) == {"north": True, "south": False, "west": False}
    second = source.latest(first, 25)
    assert flows_of(take(source, first, second)) == {"north": [*range(20, 30)]}
    assert source.flows(second) == {"north": False, "south": False, "west": False}
    again = parquet_files(tmp_path, flow="{flow}/*")
    assert again.flows(second) == source.flows(second), "also for a process that begins here"


def test_names_say_the_flow_where_the_pattern_says_so(tmp_path: Path) -> None:
    for order, name in enumerate(("eu-2026-01.json", "us-2026-01.json", "eu-2026-02.json")):
        write_lines(tmp_path, name, order, [b'{"a": %d}' % order])
    source = json_files(tmp_path, SCHEMA, finite=True, flow="{flow}-*.json")
    start = source.start()
    write_lines(tmp_path, "asia-2026-03.json", 9, [b'{"a": 9}'])
    assert source.flows(start) == {"eu": True, "us": True, "asia": False}, "what came later is not of a finite input"
    stop = source.latest(start, 100)
    assert flows_of(take(source, start, stop, 1)) == {"eu": [0, 2], "us": [1]}
    assert not any(source.flows(stop).values()) and source.ended(stop)


def test_a_file_that_fits_no_flow_is_not_taken(tmp_path: Path) -> None:
    write_lines(tmp_path, "stray.txt", 1, [b'{"a": 1}'])
    for finite in (True, False):
        source = json_files(tmp_path, SCHEMA, finite, "{flow}/*.json")
        with pytest.raises(Fault, match=r"stray.txt does not fit flow='{flow}/\*.json': give it a name that does"):
            source.latest(source.start(), 10)


@pytest.mark.parametrize(
    "flow", ["", "*", "{flow}{flow}", "/{flow}", "{flow}/", "../{flow}", "_in/{flow}", "a//{flow}"]
)
def test_a_pattern_without_one_place_for_the_flow_is_refused(flow: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=re.escape(f"flow={flow!r}: give a pattern for files below the directory")):
        parquet_files(tmp_path, flow=flow)


def test_what_is_no_pattern_stands_for_itself() -> None:
    pattern = FlowPattern("day=*/{flow}.(x)+/*.parquet")
    assert pattern.depth == 2 and pattern.flow_of("day=1/a.b.(x)+/f.parquet") == "a.b"
    assert pattern.flow_of_folder("day=/a.(x)+") == "a" and pattern.flow_of_folder("day=1/a.xx") is None
