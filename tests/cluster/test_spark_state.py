"""PySpark's StatefulProcessors give the same rows on Ferry, under moves and kills, as the same classes on Spark alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
NAMES = ("counts", "lasts", "pages", "alarms", "sessions", "balances")
SCHEMA = pa.schema(
    [("who", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("at", pa.int64()), ("seq", pa.int64()),
     ("page", pa.string()), ("v", pa.int64())]
)  # fmt: skip
BALANCES = pa.schema([("who", pa.string()), ("balance", pa.int64()), ("due", pa.int64())])
LAST = "the end"
"""A key whose record is so late that all other timers are due in Spark, too: there, an input has no end."""

ON_SPARK = """
import sys
from pyspark.sql import SparkSession
from tests.cluster.pipelines import spark_state
made = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 1)
made = made.config("spark.ui.enabled", False).config("spark.sql.session.timeZone", "UTC")
provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = made.config("spark.sql.streaming.stateStore.providerClass", provider).getOrCreate()
for name in spark_state.CASES:
    spark_state.on_spark(spark, name, sys.argv[1], sys.argv[2], f"{sys.argv[3]}/{name}")
"""


def written(folder: Path, files: int, per_file: int) -> None:
    """Readings of many users, of whom each is silent now and then, and at last that of the end."""
    folder.mkdir()
    draw, epoch = random.Random(11), datetime(1970, 1, 1, tzinfo=UTC)
    began_ms = int(datetime(2024, 3, 1, tzinfo=UTC).timestamp()) * 1000
    rows = []
    for seq in range(files * per_file):
        at = began_ms + seq * 5
        who = f"{(draw.randrange(40) + seq // 1500 * 7) % 150} é"
        rows.append({"who": who, "at": at, "seq": seq, "page": draw.choice("abcd"), "v": draw.randrange(-50, 100)})
    batches = [rows[i : i + per_file] for i in range(0, len(rows), per_file)]
    batches.append([{"who": LAST, "at": rows[-1]["at"] + 10**6, "seq": len(rows), "page": "a", "v": 0}])
    for number, batch in enumerate(batches):
        for row in batch:
            row["ts"] = epoch + timedelta(milliseconds=row["at"])
        pq.write_table(pa.Table.from_pylist(batch, SCHEMA), folder / f"{number:02}.parquet")
        os.utime(folder / f"{number:02}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))


def balances(folder: Path, files: int, per_file: int) -> None:
    """What states begin from: some rows of a key, and of keys that have no readings."""
    folder.mkdir()
    draw, began_ms = random.Random(13), int(datetime(2024, 3, 1, tzinfo=UTC).timestamp()) * 1000
    for number in range(files):
        rows = [
            {
                "who": f"{draw.randrange(300)} é",
                "balance": draw.randrange(1000),
                "due": began_ms + draw.randrange(10**5),
            }
            for _ in range(per_file)
        ]
        pq.write_table(pa.Table.from_pylist(rows, BALANCES), folder / f"{number:02}.parquet")


def test_the_same_classes_give_the_same_rows_on_spark_and_on_ferry(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="Spark's own transformWithState needs protobuf")
    written(tmp_path / "readings", files=18, per_file=700)
    balances(tmp_path / "balances", files=4, per_file=600)
    spec: dict[str, Any] = {
        "pipeline": {
            "file": str(HERE / "pipelines" / "spark_state.py"),
            "args": {name: str(tmp_path / name) for name in ("readings", "balances")},
        },
        "workers": 2, "state": {"virtualNodes": 16}, "epoch": {"maxRows": 1000},
    }  # fmt: skip
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "state"}, "spec": spec}
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    at = [  # the balances are read in epochs 0 to 3
        "epoch=0:prepare kill-driver",
        "epoch=1:commit kill-instance=1.0",
        "epoch=2 workers=3",
        "epoch=3:sink kill-driver",
        "epoch=5:commit kill-instance=0.0",
        "epoch=8:begin move=5:2.0",
        "epoch=10:begin workers=2",
    ]
    result = runner.run(tmp_path / "job.yaml", tmp_path, at=at)
    assert result.code == 0 and not result.left, result.story()
    assert result.changes("switched") and result.changes("promoted"), result.story()
    command = [sys.executable, "-c", ON_SPARK, *(str(tmp_path / name) for name in ("readings", "balances", "spark"))]
    python = os.environ | {"PYSPARK_PYTHON": sys.executable}
    alone = subprocess.run(command, cwd=runner.ROOT, env=python, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr[-4000:]
    for name in NAMES:
        here = f"SELECT * FROM read_parquet('{result.output}/{name}/*/*.parquet', hive_partitioning = false)"
        there = f"SELECT * FROM '{tmp_path}/spark/{name}/*.parquet'"
        columns = ", ".join(c[0] for c in duckdb.sql(f"DESCRIBE {there}").fetchall())
        here, there = (f"SELECT {columns} FROM ({one}) WHERE who <> '{LAST}'" for one in (here, there))
        missing, extra = (duckdb.sql(f"{a} EXCEPT ALL {b}").fetchall() for a, b in ((there, here), (here, there)))
        count = len(duckdb.sql(there).fetchall())
        assert count and not missing and not extra, (
            f"{name}: {count} rows, missing {missing[:3]}, unexpected {extra[:3]}"
        )
