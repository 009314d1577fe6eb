"""Outer joins by time give the rows of Spark's own stream-stream joins, and of its joins of whole tables."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ferry
from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

INPUTS, FILES, DELAY_MS = 20, 2, 4_000
"""Random inputs, the files of each, and how late their records come. Spark reads all inputs at once: it is slow to begin."""

HOW = {"left": "leftOuter", "right": "rightOuter", "full": "fullOuter"}
SCHEMA = pa.schema(
    [("input", pa.int64()), ("k", pa.int64()), ("ts", pa.timestamp("ms", "UTC")), ("seq", pa.int64()), ("v", pa.int64())]
)  # fmt: skip
BEGAN = datetime(2024, 3, 1, tzinfo=UTC)
LAST = -1
"""Input of two records that are so late that all others are over in Spark, too: there, a stream has no end."""

ON_SPARK = """
import sys
from pyspark.sql import SparkSession, functions as f
folder, hows = sys.argv[1], sys.argv[2:]
made = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 1)
spark = made.config("spark.ui.enabled", False).config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
on = "l.input = r.input AND l.k = r.k AND l.v <= r.v AND r.ts >= l.ts - INTERVAL 2 SECONDS AND r.ts < l.ts + INTERVAL 5 SECONDS"
on += " AND l.k IS NOT NULL AND r.k IS NOT NULL"  # a full join of streams would pair null keys, which one of tables does not
columns = ["l.input AS l_input", "r.input AS r_input", "l.seq AS a", "r.seq AS b"]
for how in hows:
    sides = []
    for side in "lr":
        schema = spark.read.parquet(f"{folder}/{side}").schema
        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/{side}")
        sides.append(read.withWatermark("ts", "4 seconds").alias(side))
    query = sides[0].join(sides[1], f.expr(on), how).selectExpr(*columns).writeStream.format("parquet")
    query = query.option("checkpointLocation", f"{folder}/checkpoint-{how}").trigger(availableNow=True)
    query.start(f"{folder}/stream-{how}").awaitTermination()
    left, right = (spark.read.parquet(f"{folder}/{side}").alias(side) for side in "lr")
    left.join(right, f.expr(on), how).selectExpr(*columns).write.parquet(f"{folder}/whole-{how}")
"""


def records(number: int) -> list[list[dict[str, Any]]]:
    """Of one input, both sides, in the order of arrival: some keys are null, some have records of one side alone."""
    draw, sides = random.Random(f"join {number}"), []
    for side in range(2):
        keys = [None, *range(side, draw.choice([2, 6, 15]) + side)]
        rows = []
        for seq in range(draw.randrange(20, 90)):
            at = draw.randrange(0, 30_000, draw.choice([1, 500, 1000]))
            arrives = at + draw.randrange(DELAY_MS)
            row = {"input": number, "k": draw.choice(keys), "ts": BEGAN + timedelta(milliseconds=at), "seq": seq}
            rows.append((arrives, row | {"v": draw.choice([None, *range(8)])}))
        sides.append([row | {"arrives": arrives} for arrives, row in sorted(rows, key=lambda r: r[0])])
    return sides


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """All three joins."""
    left, right = (streams[side].event_time("ts", delay="4s").key_by("k") for side in "lr")
    columns: Any = {"a": "seq", "x": "v"}, {"b": "seq", "y": "v"}
    words: Any = {"within": ("-2s", "5s"), "where": [("x", "<=", "y")]}
    return [left.join(how, right, *columns, **words, how=how).sink(ferry.parquet(how)) for how in HOW]


def on_spark(folder: Path, inputs: list[list[list[dict[str, Any]]]]) -> None:
    """Write all inputs, cut by when records arrive, and join them."""
    for side, name in enumerate("lr"):
        (folder / name).mkdir(parents=True)
        for number in range(FILES + 1):
            span = range(number * 34_000 // FILES, (number + 1) * 34_000 // FILES)
            rows = [row for sides in inputs for row in sides[side] if row["arrives"] in span]
            if number == FILES:
                rows = [{"input": LAST, "k": side, "ts": BEGAN + timedelta(hours=1), "seq": 0, "v": 0}]
            file = folder / name / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    python = os.environ | {"PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", ON_SPARK, str(folder), *HOW.values()]
    ran = subprocess.run(command, cwd=runner.ROOT, env=python, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]


def test_outer_joins_by_time_are_those_of_spark(tmp_path: Path) -> None:
    inputs = [records(number) for number in range(INPUTS)]
    on_spark(tmp_path / "spark", inputs)
    late = 0
    found: dict[str, Counter[Any]] = {how: Counter() for how in HOW}
    for number, sides in enumerate(inputs):
        tables = {name: pa.Table.from_pylist(rows, SCHEMA) for name, rows in zip("lr", sides, strict=True)}
        made = ferry.test(pipeline, tables, epochs=2 + number % 7)
        late += sum(made.late.values())
        for how in HOW:
            found[how].update((number, row["a"], row["b"]) for row in made[how].to_pylist())
    assert not late, "what comes too late is not the same in Spark"
    for how, name in HOW.items():
        for kind in ("stream", "whole"):
            query = f"SELECT coalesce(l_input, r_input) AS i, a, b FROM '{tmp_path}/spark/{kind}-{name}/*.parquet' WHERE i <> {LAST}"
            want = Counter(duckdb.sql(query).fetchall())
            alone = sum(None in row for row in want)
            assert 100 < alone < want.total() - 100, f"{how}: {alone} of {want.total()} rows have no partner"
            missing, extra = want - found[how], found[how] - want
            assert not missing and not extra, f"{how}, {kind}: missing {[*missing][:3]}, unexpected {[*extra][:3]}"
