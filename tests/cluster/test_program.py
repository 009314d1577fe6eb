"""A run goes on with the program that it was started with; the next one in its directory takes the new text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import duckdb
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PIPELINE = """
from dataclasses import dataclass

import helper
import pyarrow as pa

import ferry

ORDERS = pa.schema([("shop", pa.string()), ("ts", pa.int64())])


@dataclass
class Seen(ferry.Process):
    tables = {"count": ferry.StateTable(pa.schema([("n", pa.int64())]))}
    output = pa.schema([("shop", pa.string()), ("n", pa.int64())])

    def process(self, work):
        before = work.get("count").column("n").fill_null(0).to_numpy(zero_copy_only=False)
        after = before + [helper.STEP * int(b - a) for a, b in zip(work.spans()[:-1], work.spans()[1:])]
        work.put("count", range(work.count), {"n": after})
        work.emit(range(work.count), {"shop": work.keys.column("shop"), "n": after})


def stepped(batch):
    assert helper.STEP == 1
    return batch


def sources(spark, args):
    return {"orders": ferry.json_files(args["directory"], ORDERS)}


def pipeline(streams, args):
    orders = streams["orders"].map_batches(stepped).event_time("ts").key_by("shop")
    return orders.process("seen", Seen()).sink(ferry.parquet("seen"))
"""

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {{name: edited}}
spec:
  pipeline: {{file: job.py, args: {{directory: {base}/orders}}}}
  workers: 1
  cores: 1
  state: {{virtualNodes: 4, replicas: 0, directory: {base}/state}}
"""


def put(base: Path, number: int) -> None:
    """One more order."""
    (base / "orders" / f"_{number}.json").write_text(json.dumps({"shop": "a", "ts": 1000 * number}) + "\n")
    os.rename(base / "orders" / f"_{number}.json", base / "orders" / f"{number}.json")


def counted(base: Path) -> int:
    """How often the shop was seen."""
    files = list((base / "out").glob("seen/epoch=*/*.parquet"))
    return duckdb.sql(f"SELECT max(n) FROM read_parquet({[str(f) for f in files]})").fetchall()[0][0] if files else 0


def test_an_edit_on_disk_harms_nothing(tmp_path: Path) -> None:
    """Neither a comment nor half a file, when driver and instance begin again; a comment makes no other operator."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "job.py").write_text(PIPELINE)
    (tmp_path / "helper.py").write_text("STEP = 1\n")
    (tmp_path / "job.yaml").write_text(JOB.format(base=tmp_path))
    put(tmp_path, 1)

    def edits(running: runner.Running) -> None:
        running.await_that(lambda: counted(tmp_path) == 1, "first order", 120)
        (tmp_path / "job.py").write_text("def pipeline(\n")
        (tmp_path / "helper.py").write_text("STEP = (\n")
        runner.ask(running, "POST", "/kill", {"what": "0.0"})
        runner.ask(running, "POST", "/kill", {"what": "driver"})
        put(tmp_path, 2)
        running.await_that(lambda: counted(tmp_path) == 2, "second order", 120)
        runner.stop(running)

    def goes_on(running: runner.Running) -> None:
        put(tmp_path, 3)
        running.await_that(lambda: counted(tmp_path) == 3, "third order", 120)
        runner.stop(running)

    result = runner.run(tmp_path / "job.yaml", tmp_path, meanwhile=edits)
    assert result.code == 0 and counted(tmp_path) == 2, result.story()
    (tmp_path / "job.py").write_text(f"# another comment\n{PIPELINE}")
    (tmp_path / "helper.py").write_text("STEP = 1  # as before\n")
    result = runner.run(tmp_path / "job.yaml", tmp_path, meanwhile=goes_on)
    assert result.code == 0 and counted(tmp_path) == 3, result.story()
