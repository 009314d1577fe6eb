"""A parquet sink publishes an epoch in one step, once, and never touches another job's output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.contract.errors import SpecRefused
from ferry.spark.sinks import ForeachEpoch, parquet

ROWS = pa.table({"k": [1, 2]})


def test_an_epoch_is_published_once(tmp_path: Path) -> None:
    sink = parquet("elsewhere/q")
    sink.open(str(tmp_path), -1)
    sink.write(3, 1, ROWS)
    sink.write(3, 2, ROWS)
    assert [p.name for p in (tmp_path / "q").iterdir()] == ["epoch=3"]
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == ROWS


class _Retried:
    """A DataFrame of two partitions; the first attempt of each fails half way, the second is the one that Spark accepts."""

    def mapInArrow(self, task: Any, schema: str) -> _Retried:
        self.accepted: list[tuple[str]] = []
        for partition in (ROWS, pa.table({"k": [3]})):
            with pytest.raises(ConnectionError):
                list(task(self._broken(partition)))
            for answer in task(iter(partition.to_batches())):
                self.accepted += [(name,) for name in answer.column("part").to_pylist()]
        return self

    def _broken(self, partition: pa.Table) -> Iterator[pa.RecordBatch]:
        yield from partition.to_batches()
        raise ConnectionError

    def collect(self) -> list[tuple[str]]:
        return self.accepted


def test_parts_of_failed_tasks_are_not_published(tmp_path: Path) -> None:
    sink = parquet("q")
    sink.open(str(tmp_path), -1)
    sink.write(3, 1, _Retried())  # type: ignore[arg-type]
    parts = list((tmp_path / "q" / "epoch=3").iterdir())
    assert sorted(k for part in parts for k in pq.read_table(part)["k"].to_pylist()) == [1, 2, 3]


def test_a_zombie_never_replaces_what_is_there(tmp_path: Path) -> None:
    sink = parquet("q")
    sink.open(str(tmp_path), -1)
    sink.write(3, 2, ROWS)
    sink.write(3, 1, pa.table({"k": [9]}))
    assert pq.read_table(tmp_path / "q" / "epoch=3" / "part-0.parquet") == ROWS


def test_unfinished_folders_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "q" / ".epoch=4.1.abc").mkdir(parents=True)
    sink = parquet("q")
    sink.open(str(tmp_path), 3)
    assert list((tmp_path / "q").iterdir()) == []


def test_the_output_of_another_run_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "q" / "epoch=7").mkdir(parents=True)
    with pytest.raises(SpecRefused, match="epoch 7 of another run"):
        parquet("q").open(str(tmp_path), 6)
    assert (tmp_path / "q" / "epoch=7").exists()
    parquet("q").open(str(tmp_path), 7)


def test_foreach_epoch_gets_epoch_and_generation() -> None:
    seen: list[tuple[int, int, object]] = []
    ForeachEpoch(lambda *call: seen.append(call)).write(5, 2, ROWS)
    assert seen == [(5, 2, ROWS)]
