"""A parquet sink publishes an epoch in one step, once, and never touches another job's output."""

from __future__ import annotations

from pathlib import Path

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
