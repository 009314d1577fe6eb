"""Late records as Spark reads them again: of its own streams, of splits, and of both united. One local session."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import ferry
from ferry.spark import compile
from ferry.spark.late import late_frame

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.turns,
    pytest.mark.timeout(240),
    pytest.mark.xdist_group("one session of Spark"),
]

UTC = dt.UTC


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()


def longer(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("more", pc.add(batch.column("k"), 100))


def test_late_records_of_every_kind_of_source_are_read_again(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"ts": pa.array([1_000, 21_000], pa.timestamp("ms", "UTC")), "k": [1, 2]}), tmp_path / "0.parquet"
    )
    stream = spark.readStream.schema("ts TIMESTAMP, k LONG").parquet(str(tmp_path))

    def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
        return {"rows": stream, "files": ferry.parquet_files(tmp_path)}

    def pipeline(streams: Any, args: dict[str, Any]) -> Any:
        own = streams["rows"].map_batches(longer)
        dear = streams["rows"].transform(lambda rows: rows.where("k < 8").withColumn("more", F.col("k") + 100))
        split = streams["files"].map_batches(longer).transform(lambda rows: rows)
        made = []
        for name, one in {"own": own, "dear": dear, "both": own.union(split)}.items():
            window = one.event_time("ts").key_by("k").window(ferry.tumbling("10s"))
            made.append(window.aggregate(name, n=ferry.count(), late=ferry.parquet(f"late_{name}")))
        return [one.sink(ferry.console()) for one in made]

    module = ModuleType("job")
    module.sources, module.pipeline = sources, pipeline  # type: ignore[attr-defined]
    plan = compile.build(spark, module, {}, str(tmp_path / "out"))
    files: Any = plan.sources["files"]
    (share,) = files.plan(files.start(), files.latest(files.start(), 100), 1)
    control = spark.createDataFrame([("", "tick"), ("files", json.dumps(share))], "source string, split string")
    rows = spark.sql(
        "SELECT 'rows' AS source, struct(timestamp_millis(t) AS ts, k) AS s_rows FROM VALUES "
        "(5000L, 7L), (9999L, 9L), (10000L, 6L), (NULL, 5L) AS rows(t, k)"
    )
    batch = control.unionByName(rows, allowMissingColumns=True)

    def late(number: int) -> list[tuple[Any, ...]]:
        found = late_frame(spark, batch, plan, plan.late[number], {}, 10_000)
        assert found.columns == ["ts", "k", "more"]
        return sorted(tuple(row.values()) for row in found.toArrow().to_pylist())

    def at(ms: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(ms / 1000, UTC)

    assert late(0) == [(at(5000), 7, 107), (at(9999), 9, 109)]
    assert late(1) == [(at(5000), 7, 107)]
    assert late(2) == [(at(1000), 1, 101), (at(5000), 7, 107), (at(9999), 9, 109)]
