"""One run at a time writes to a sink's directory; another one is refused by name, and a restored one takes it over."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ferry.connectors import sink as sinks
from ferry.connectors.files.ownership import mark_of
from ferry.connectors.files.parquet_sink import MANIFEST, Parquet, parquet
from ferry.contract.errors import Final, SpecRefused, Unreachable
from ferry.contract.run_directory import LIFE

CHOOSE = "choose another --output"


def of_run(base: Path, run: str, job: str = "sales", directory: str = "q", before: str | None = None) -> Parquet:
    sink = parquet(directory)
    sinks.place([sink], str(base))
    sinks.identify([sink], job, run, before)
    return sink


def rows(k: int) -> pa.Table:
    return pa.table({"k": [k]})


def values(base: Path) -> list[int]:
    return sorted(pq.read_table(base / "q").column("k").to_pylist())


def test_two_runs_that_begin_together_never_mix_their_epochs(tmp_path: Path) -> None:
    """Their epochs have the same numbers, and other records."""
    one, other = of_run(tmp_path, "sales-a"), of_run(tmp_path, "sales-b")
    one.open(-1)
    for epoch in range(3):
        if epoch in (0, 1):  # before the first one's first epoch, and behind it
            with pytest.raises(SpecRefused, match=f"q is written by run sales-a; {CHOOSE}"):
                other.open(-1)
        one.write(epoch, 1, rows(epoch))
        with pytest.raises(Final, match=f"q is written by run sales-a; {CHOOSE}"):
            other.write(epoch + 1, 1, rows(100))
    assert values(tmp_path) == [0, 1, 2]
    assert {json.loads(m.read_text())["run"] for m in tmp_path.glob(f"q/*/{MANIFEST}")} == {"sales-a"}


def test_the_folder_of_a_run_that_is_over_is_refused_by_name(tmp_path: Path) -> None:
    one = of_run(tmp_path, "sales-a")
    one.open(-1)
    one.write(0, 1, rows(0))
    del one
    for committed in (-1, 0, 5):
        with pytest.raises(SpecRefused, match=f"written by run sales-a; {CHOOSE}, or delete that directory"):
            of_run(tmp_path, "sales-b").open(committed)
    assert values(tmp_path) == [0]
    shutil.rmtree(tmp_path / "q")
    of_run(tmp_path, "sales-b").open(-1)


def test_another_job_or_another_sink_is_refused(tmp_path: Path) -> None:
    of_run(tmp_path, "sales-a").open(-1)
    with pytest.raises(SpecRefused, match="run sales-a"):
        of_run(tmp_path, "orders-a", "orders").open(-1)
    with pytest.raises(SpecRefused, match=r"parquet\('q'\) of this run; give parquet\('x/q'\) a directory of its own"):
        of_run(tmp_path, "sales-a", directory="x/q").open(-1)


def test_drivers_of_one_run_follow_each_other(tmp_path: Path) -> None:
    """A new driver, a standby, a resume in state.directory: the run has its name still."""
    first = of_run(tmp_path, "sales-a")
    first.open(-1)
    first.write(0, 1, rows(0))
    for generation, epoch in ((2, 1), (3, 2)):
        again = of_run(tmp_path, "sales-a")
        again.open(epoch - 1)
        again.write(epoch - 1, generation, rows(99))  # an epoch that is there is not written again
        again.write(epoch, generation, rows(epoch))
    assert values(tmp_path) == [0, 1, 2]


DIES = """
import os, sys
from ferry.connectors import sink as sinks
from ferry.connectors.files.parquet_sink import parquet
sink = parquet("q")
sink.place(sys.argv[1])
sinks.identify([sink], "sales", "sales-a")
sink.open(-1)
os._exit(9)
"""


def test_a_run_that_died_before_its_first_epoch_leaves_the_folder_to_the_next(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], env={"PYTHONPATH": "runtime"}).returncode == 9
    assert (mark := mark_of(tmp_path / "q")) and mark.run == "sales-a"
    other = of_run(tmp_path, "sales-b")
    other.open(-1)
    late = of_run(tmp_path, "sales-a")  # its next driver, after all
    with pytest.raises(SpecRefused, match="run sales-b"):
        late.open(-1)
    other.write(0, 1, rows(0))
    assert values(tmp_path) == [0]


@pytest.mark.parametrize("act", ["truncate_after", "keep_after"])
@pytest.mark.parametrize("job", ["sales", "renamed"])
def test_a_restored_run_takes_over_and_the_one_before_writes_no_more(tmp_path: Path, act: str, job: str) -> None:
    """Also of a clone that has another name, and of a run that Kubernetes has numbered anew after a suspension."""
    before = of_run(tmp_path, "sales-a")
    before.open(-1)
    for epoch in range(3):
        before.write(epoch, 1, rows(epoch))
    for _ in range(2):  # a driver dies in between
        restored = of_run(tmp_path, "restored-b", job, before="sales")
        getattr(restored, act)(1)
    restored.open(1)
    with pytest.raises(Final, match=r"another driver has restored the job|written by run restored-b"):
        before.write(2, 1, rows(2))
    with pytest.raises(SpecRefused, match="run restored-b"):
        of_run(tmp_path, "sales-a").open(2)
    restored.write(2, 3, rows(20))
    again = of_run(tmp_path, "restored-b", job)
    again.open(2)
    again.write(3, 4, rows(30))
    assert values(tmp_path) == [0, 1, 20, 30]


def test_a_restore_touches_no_output_of_an_unrelated_job(tmp_path: Path) -> None:
    other = of_run(tmp_path, "orders-a", "orders")
    other.open(-1)
    for epoch in range(3):
        other.write(epoch, 1, rows(epoch))
    for act in ("truncate_after", "keep_after"):
        with pytest.raises(SpecRefused, match=f"run orders-a; {CHOOSE}.*job 'orders'"):
            getattr(of_run(tmp_path, "sales-b", before="sales"), act)(0)
    other.write(3, 1, rows(3))
    assert values(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("life", [None, "0123456789abcdef" * 2, "12345678901234567890123456789012", ""])
def test_a_run_of_an_older_release_goes_on(tmp_path: Path, life: str | None) -> None:
    """Its folder has no mark, or the life of a restore alone; a new run may not have it."""
    old = parquet("q")
    old.place(str(tmp_path))
    old.open(-1)
    old.write(0, 1, rows(0))
    if life is not None:
        (tmp_path / "q" / LIFE).write_text(life)
        (tmp_path / "q" / "epoch=0" / MANIFEST).write_text(
            (tmp_path / "q" / "epoch=0" / MANIFEST).read_text().replace('"life": ""', f'"life": "{life}"')
        )
    with pytest.raises(SpecRefused, match=f"epoch 0 of another run.*{CHOOSE}"):
        of_run(tmp_path, "sales-b").open(-1)
    mark = mark_of(tmp_path / "q")
    assert (mark and mark.life) == life, "it was not claimed"
    resumed = of_run(tmp_path, "sales-a")
    resumed.open(0)
    resumed.write(0, 2, rows(99))
    resumed.write(1, 2, rows(1))
    assert values(tmp_path) == [0, 1]


@pytest.mark.parametrize("empty", [False, True])
def test_a_folder_that_is_away_is_waited_for(tmp_path: Path, empty: bool) -> None:
    """Moved, removed, or a volume that is not mounted: the folder below it is empty."""
    sink = of_run(tmp_path, "sales-a")
    sink.open(-1)
    sink.write(0, 1, rows(0))
    (tmp_path / "q").rename(tmp_path / "away")
    if empty:
        (tmp_path / "q").mkdir()
    with pytest.raises(Unreachable, match=rf"q is away: {LIFE} of this run is missing. Mount it, or put it back"):
        sink.write(1, 1, rows(1))
    assert [*tmp_path.glob("q/*")] == []
    if empty:
        (tmp_path / "q").rmdir()
    (tmp_path / "away").rename(tmp_path / "q")
    sink.write(1, 1, rows(1))
    assert values(tmp_path) == [0, 1]
    shutil.rmtree(tmp_path / "q")
    again = of_run(tmp_path, "sales-a")
    again.open(1)
    again.write(2, 2, rows(2))
    assert values(tmp_path) == [2], "who starts the job again goes on without"
    assert "q has no files of this run, which has committed epoch 1: is it mounted?" in again.notice
    once_more = of_run(tmp_path, "sales-a")
    once_more.open(2)
    assert not once_more.notice and not sink.notice


def test_folders_with_other_names_are_nobodys_epochs(tmp_path: Path) -> None:
    for name in ("epoch=3.bak", "epoch=", "epoch=x"):
        (tmp_path / "q" / name).mkdir(parents=True)
    sink = of_run(tmp_path, "sales-a")
    sink.open(-1)
    sink.write(0, 1, rows(0))
    sink.truncate_after(-1)
    assert {p.name for p in (tmp_path / "q").glob("epoch=*")} == {"epoch=3.bak", "epoch=", "epoch=x"}


def test_an_unfinished_epoch_of_the_run_that_writes_is_not_swept_away_by_another(tmp_path: Path) -> None:
    of_run(tmp_path, "sales-a").open(-1)
    (tmp_path / "q" / ".epoch=0.1.abc").mkdir()
    one = of_run(tmp_path, "sales-a")
    one.open(-1)
    (tmp_path / "q" / ".epoch=0.2.abc").mkdir()
    with pytest.raises(SpecRefused):
        of_run(tmp_path, "sales-b").open(-1)
    assert (tmp_path / "q" / ".epoch=0.2.abc").exists() and not (tmp_path / "q" / ".epoch=0.1.abc").exists()
