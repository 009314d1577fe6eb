"""A parquet sink publishes an epoch in one step, once, and never touches another job's output."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.connectors import sink as sinks
from ferry.connectors.console.sink import console
from ferry.connectors.files.parquet_sink import MANIFEST, Parquet, parquet
from ferry.connectors.foreach.sink import ForeachEpoch, foreach_epoch
from ferry.connectors.formats import parquet_encodings as encodings
from ferry.connectors.sink import Sink
from ferry.contract.errors import Final, SpecRefused
from ferry.contract.run_directory import LIFE
from ferry.system import files

ROWS = pa.table({"k": [1, 2]})


def placed(base: Path, directory: str = "q") -> Parquet:
    sink = parquet(directory)
    sink.place(str(base))
    return sink


def test_an_epoch_is_published_once(tmp_path: Path) -> None:
    sink = placed(tmp_path, "elsewhere/q")
    sink.open(-1)
    sink.write(3, 1, ROWS)
    sink.write(3, 2, ROWS)
    assert [p.name for p in (tmp_path / "q").iterdir()] == ["epoch=3"]
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == ROWS


KINDS: list[pa.DataType] = [
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.bool_(), pa.float64(), pa.string(), pa.large_binary()),
    *(
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ns"),
        pa.time32("ms"),
        pa.duration("us"),
        pa.decimal128(9, 2),
    ),
    *(pa.null(), pa.list_(pa.int64()), pa.struct({"k": pa.int64()}), pa.map_(pa.string(), pa.int64())),
]


def example(kind: pa.DataType) -> pa.Array:
    """Values that fit, and null."""
    if pa.types.is_map(kind):
        return pa.array([[("a", 1)], [], None], kind)
    if pa.types.is_nested(kind):
        return pa.array([[1, 2], [], None] if pa.types.is_list(kind) else [{"k": 1}, {"k": None}, None], kind)
    if pa.types.is_null(kind):
        return pa.nulls(3)
    if pa.types.is_temporal(kind):
        return pa.array([0, 86_399, None], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    if pa.types.is_large_binary(kind):
        return pa.array([b"\0", b"", None], kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal("1.25"), Decimal("-9999999.99"), None], kind)
    return pa.array([1, 0, None], pa.int64()).cast(kind)


@pytest.mark.parametrize(("rows", "sizes"), [(99, [99]), (100, [100]), (250, [125, 125]), (1000, [334, 334, 332])])
def test_a_large_epoch_is_written_in_parts_that_are_whole_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(encodings, "PART_ROWS", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(3))
    sink = placed(tmp_path)
    sink.open(-1)
    table = pa.table({"k": range(rows)})
    for _ in range(2):  # again, as after a failure
        sink.write(3, 1, table)
        parts = sorted((tmp_path / "q" / "epoch=3").glob("*.parquet"))
        assert [pq.read_metadata(part).num_rows for part in parts] == sizes
        assert pa.concat_tables(pq.read_table(part) for part in parts) == table
    assert not list((tmp_path / "q").glob("_damaged*"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_columns_of_every_type_come_back(tmp_path: Path, kind: pa.DataType) -> None:
    sink, extremes = placed(tmp_path), [-(1 << 63), (1 << 63) - 1, None]
    sink.open(-1)
    rows = pa.table({"a.b": extremes, "t": example(kind), "text": ["é", None, ""]})
    sink.write(3, 1, rows)
    if pa.types.is_time32(kind):  # which Spark does not read
        rows = rows.set_column(1, "t", rows["t"].cast(pa.time64("us")))
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == rows


@pytest.mark.parametrize(("kind", "name"), [
    (pa.time32("s"), "TIME"), (pa.time32("ms"), "TIME"), (pa.time64("us"), "TIME"), (pa.time64("ns"), "TIME_NS"),
    (pa.timestamp("s"), "TIMESTAMP"), (pa.timestamp("us", "Etc/GMT+12"), "TIMESTAMP WITH TIME ZONE"),
    (pa.timestamp("ns"), "TIMESTAMP_NS"), (pa.duration("ms"), "BIGINT"), (pa.float16(), "FLOAT"), (pa.uint64(), "UBIGINT"),
    (pa.decimal256(38, 3), "DECIMAL(38,3)"), (pa.date64(), "DATE"), (pa.binary(2), "BLOB"), (pa.string_view(), "VARCHAR"),
])  # fmt: skip
def test_types_are_what_the_documents_say_that_duckdb_reads(tmp_path: Path, kind: pa.DataType, name: str) -> None:
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(3, 1, pa.table({"x": pa.nulls(1, kind)}))
    assert duckdb.sql(f"SELECT x FROM '{tmp_path}/q/*/*.parquet'").types == [name]


def test_two_columns_of_one_name_are_written(tmp_path: Path) -> None:
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(3, 1, pa.table([[1, 2], ["a", "b"]], names=["x", "x"]))
    assert pq.ParquetFile(tmp_path / "q" / "epoch=3" / "part-0.parquet").read()[1].to_pylist() == ["a", "b"]


class _Retried:
    """A DataFrame of two partitions; the first attempt of each fails half way, the second is the one that Spark accepts."""

    def mapInArrow(self, task: Any, schema: str) -> _Retried:
        self.accepted: list[tuple[Any, ...]] = []
        for partition in (ROWS, pa.table({"k": [3]})):
            with pytest.raises(ConnectionError):
                list(task(self._broken(partition)))
            for answer in task(iter(partition.to_batches())):
                self.accepted += [tuple(row.values()) for row in answer.to_pylist()]
        return self

    def _broken(self, partition: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from partition.to_batches()
        raise ConnectionError

    def collect(self) -> list[tuple[Any, ...]]:
        return self.accepted


def test_parts_of_failed_tasks_are_not_published(tmp_path: Path) -> None:
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(3, 1, _Retried())  # type: ignore[arg-type]
    parts = list((tmp_path / "q" / "epoch=3").glob("*.parquet"))
    sink.write(3, 2, "whole already")  # type: ignore[arg-type]
    assert sorted(k for part in parts for k in pq.read_table(part)["k"].to_pylist()) == [1, 2, 3]


def test_a_zombie_never_replaces_what_is_there(tmp_path: Path) -> None:
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(3, 2, ROWS)
    sink.write(3, 1, pa.table({"k": [9]}))
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == ROWS


def test_unfinished_folders_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "q" / ".epoch=4.1.abc").mkdir(parents=True)
    sink = placed(tmp_path)
    sink.open(3)
    assert list((tmp_path / "q").iterdir()) == []


def test_the_output_of_another_run_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "q" / "epoch=7").mkdir(parents=True)
    with pytest.raises(SpecRefused, match="epoch 7 of another run"):
        placed(tmp_path).open(6)
    assert (tmp_path / "q" / "epoch=7").exists()
    placed(tmp_path).open(7)


def test_foreach_epoch_gets_epoch_and_generation() -> None:
    seen: list[tuple[int, int, object]] = []
    ForeachEpoch(lambda *call: seen.append(call)).write(5, 2, ROWS)
    assert seen == [(5, 2, ROWS)]


def test_sinks_of_one_directory_are_refused(tmp_path: Path) -> None:
    for one, other, base in (
        ("clicks/out", "views/out", str(tmp_path)),
        (f"{tmp_path}/out", f"{tmp_path}/x/../out", None),
        ("out", "out", None),
    ):
        with pytest.raises(SpecRefused) as refused:
            sinks.place([parquet(one), console(), parquet(other)], base)
        assert f"parquet({one!r}) and parquet({other!r}) both write to" in str(refused.value)
    sinks.place([parquet("clicks/out"), parquet("views/out"), console(), console()], None)


def test_a_url_is_refused(tmp_path: Path) -> None:
    for url in ("s3://bucket/out", "file:///out", "hdfs://host:8020/out", "s3:/bucket/out"):
        with pytest.raises(SpecRefused, match=r"is a URL.*foreach_epoch"):
            parquet(url)
        with pytest.raises(SpecRefused, match="is a URL"):
            parquet("out").place(url)


def cut(folder: Path) -> None:
    part = folder / "part-0.parquet"
    part.write_bytes(part.read_bytes()[:-9])


DAMAGES = {
    "empty part": lambda folder: (folder / "part-0.parquet").write_bytes(b""),
    "cut part": cut,
    "no part": lambda folder: (folder / "part-0.parquet").unlink(),
    "other rows": lambda folder: pq.write_table(pa.table({"k": [1]}), folder / "part-0.parquet"),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "empty manifest": lambda folder: (folder / MANIFEST).write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_epoch_is_written_again_and_kept_aside(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(3, 1, ROWS)
    damage(tmp_path / "q" / "epoch=3")
    sink.write(3, 2, ROWS)
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == ROWS
    assert sorted(p.name.split(".")[0] for p in (tmp_path / "q").iterdir()) == ["_damaged-epoch=3", "epoch=3"]
    sink.write(3, 2, ROWS)
    assert len(list((tmp_path / "q").iterdir())) == 2


def test_the_epoch_of_another_sink_is_not_taken_for_its_own(tmp_path: Path) -> None:
    placed(tmp_path, "clicks/q").write(3, 1, ROWS)
    with pytest.raises(SpecRefused, match=r"was written by parquet\('clicks/q'\); give parquet\('views/q'\)"):
        placed(tmp_path, "views/q").write(3, 1, ROWS)


def test_everything_is_on_the_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    synced, rename = files.sync, Path.rename

    def seen_sync(path: Path) -> int:
        steps.append(re.sub(r"(epoch=\d+)\..*", r"\1", path.name))
        return synced(path)

    def seen_rename(path: Path, target: Path) -> Path:
        steps.append(f"-> {target.name}")
        return rename(path, target)

    monkeypatch.setattr(files, "sync", seen_sync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    sink = placed(tmp_path)
    sink.open(-1)
    sink.write(4, 4, ROWS)
    assert steps == ["part-0.parquet", MANIFEST, ".epoch=4", "-> epoch=4", "q"]
    steps.clear()
    sink.write(5, 4, _Retried())  # type: ignore[arg-type]
    assert [name[:5] for name in steps[:2]] == ["part-"] * 2, "each task answers for its own part"
    assert steps[2:] == [MANIFEST, ".epoch=5", "-> epoch=5", "q"]


def with_epochs(base: Path, *epochs: int, directory: str = "q") -> Parquet:
    sink = placed(base, directory)
    sink.open(-1)
    for epoch in epochs:
        sink.write(epoch, 1, ROWS)
    return sink


def seen(base: Path) -> list[str]:
    return sorted(re.sub(r"\.\w{8}$", "", p.name) for p in (base / "q").iterdir() if p.name != LIFE)


def test_what_came_after_a_restored_epoch_is_deleted(tmp_path: Path) -> None:
    sink = with_epochs(tmp_path, 0, 2, 9, 10, 11)
    for _ in range(2):
        sink.truncate_after(9)
        assert seen(tmp_path) == ["epoch=0", "epoch=2", "epoch=9"]
    sink.open(9)
    sink.truncate_after(-1)
    assert seen(tmp_path) == []
    placed(tmp_path / "new").truncate_after(3)  # there is nothing yet


def test_what_came_after_a_restored_epoch_is_kept_aside(tmp_path: Path) -> None:
    sink = with_epochs(tmp_path, 8, 9, 10)
    for again in range(2):
        sink.keep_after(8)
        sink.keep_after(8)
        sink.open(8)
        other = pa.table({"k": [again]})
        sink.write(9, 5, other)
        assert pq.read_table(tmp_path / "q" / "epoch=9" / "part-0.parquet") == other, "not taken for what is there"
    kept = ["_kept-epoch=10", "_kept-epoch=9", "_kept-epoch=9"]
    assert seen(tmp_path) == [*kept, "epoch=8", "epoch=9"]
    read = pq.read_table(tmp_path / "q")
    assert sorted(zip(read["k"].to_pylist(), read["epoch"].to_pylist(), strict=True)) == [(1, 8), (1, 9), (2, 8)]


def test_a_driver_of_the_time_before_a_restore_writes_no_more(tmp_path: Path) -> None:
    """Its epochs have the numbers of those behind the restore, and other rows."""
    before = with_epochs(tmp_path, 3)
    before.open(3)
    restored = placed(tmp_path, "q")
    restored.truncate_after(3)
    with pytest.raises(Final, match="another driver has restored the job"):
        before.write(4, 9, pa.table({"x": [1]}))
    restored.open(3)
    restored.write(4, 2, pa.table({"x": [2]}))
    assert pq.read_table(tmp_path / "q" / "epoch=4").column("x").to_pylist() == [2]


def test_what_it_wrote_at_the_last_moment_is_set_aside(tmp_path: Path) -> None:
    before = with_epochs(tmp_path, 3, 4)
    (tmp_path / "q" / "epoch=4").rename(tmp_path / "elsewhere")
    restored = placed(tmp_path, "q")
    restored.truncate_after(3)
    restored.open(3)
    (tmp_path / "elsewhere").rename(tmp_path / "q" / "epoch=4")
    restored.write(4, 2, pa.table({"x": [2]}))
    assert pq.read_table(tmp_path / "q" / "epoch=4").column("x").to_pylist() == [2]
    assert seen(tmp_path) == ["_damaged-epoch=4", "epoch=3", "epoch=4"] and before is not restored


@pytest.mark.parametrize("act", ["truncate_after", "keep_after"])
def test_what_another_sink_has_published_is_not_touched(tmp_path: Path, act: str) -> None:
    with_epochs(tmp_path, 3, directory="clicks/q")
    sink = placed(tmp_path, "views/q")
    (tmp_path / "q" / "epoch=4").mkdir()  # damaged: nobody knows whose
    with pytest.raises(SpecRefused, match=r"epoch=3 was written by parquet\('clicks/q'\); give parquet\('views/q'\)"):
        getattr(sink, act)(2)
    assert seen(tmp_path) == ["epoch=3", "epoch=4"]
    getattr(sink, act)(3)
    assert seen(tmp_path) == ["epoch=3"] if act == "truncate_after" else ["_kept-epoch=4", "epoch=3"]


@pytest.mark.parametrize("after", range(6))
def test_readers_never_see_half_of_what_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """It ends in the middle; then it is done again."""
    sink = with_epochs(tmp_path, 0, 1, 2, 3)
    rename, remove, synced = Path.rename, shutil.rmtree, files.sync
    done: list[str] = []

    def step(what: str) -> None:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(what)

    def renamed(path: Path, target: Path) -> Path:
        step(f"{path.name} -> {target.name[0]}")
        return rename(path, target)

    def removed(path: Path) -> None:
        (path / "part-0.parquet").unlink()  # half of it
        step(f"remove {path.name[:8]}")
        remove(path)

    def sync(path: Path) -> int:
        step(f"sync {path.name}")
        return synced(path)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", renamed)
        patch.setattr(shutil, "rmtree", removed)
        patch.setattr(files, "sync", sync)
        sink.truncate_after(1)
    steps = ["epoch=3 -> .", "epoch=2 -> .", "sync q", "remove .epoch=3", "remove .epoch=2"]
    assert done == steps[:after]
    visible = sorted(p.name for p in (tmp_path / "q").glob("epoch=*"))
    assert visible == [f"epoch={n}" for n in range(4 - min(after, 2))], "the newest goes first"
    assert pq.read_table(tmp_path / "q").num_rows == 2 * len(visible), "and each as a whole"
    again = placed(tmp_path)
    again.truncate_after(1)
    again.open(1)
    assert seen(tmp_path) == ["epoch=0", "epoch=1"]


def test_a_sink_that_cannot_go_back_says_what_to_do() -> None:
    class Counting(Sink):
        def write(self, epoch: int, generation: int, rows: object) -> None: ...

        def __repr__(self) -> str:
            return "counting"

    def store(epoch: int, generation: int, rows: object) -> None: ...

    for sink, name in ((Counting(), "counting"), (foreach_epoch(store), r"foreach_epoch\(store\)")):
        with pytest.raises(SpecRefused, match=rf"^sink: {name} cannot remove .* after epoch 7\..*--sink keep"):
            sink.truncate_after(7)
        sink.keep_after(7)
    called: list[int] = []
    foreach_epoch(store, truncate=called.append).truncate_after(7)
    assert called == [7]
    with pytest.raises(SpecRefused, match="truncate='no' is not a function"):
        foreach_epoch(store, truncate="no")  # type: ignore[arg-type]
    console().truncate_after(7)
    console().keep_after(7)
