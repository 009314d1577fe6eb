"""A StatefulProcessor that raises on one record: no instance ends, the job stops with the line, and goes on once it is mended.

The mended one holds the interpreter's lock for longer than an instance may be silent: it is slow, and nobody takes it for dead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PROGRAM = """
import ctypes

import ferry
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Ratio(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n LONG")

    def handleInputRows(self, key, rows, timerValues):
        for r in rows:
            n = (self.n.get() or (0,))[0] + 1
            self.n.update((n,))
            yield Row(k=key[0], n=n, q=100 // r.d)


def sources(spark, args):
    return {"e": ferry.parquet_files(args["directory"], finite=True)}


def pipeline(streams, args):
    keyed = streams["e"].event_time("ts").key_by("k")
    return keyed.transform_with_state("ratio", Ratio(), "k STRING, n LONG, q LONG", "None").sink(ferry.parquet("ratio"))
"""

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: ratio}
spec:
  pipeline: {file: job.py, args: {directory: DIRECTORY/in}}
  workers: 2
  epoch: {maxRows: 50}
  state: {virtualNodes: 4, replicas: 1, directory: DIRECTORY/state}
  failure: {slow: 5s}
"""

MENDED = "100 // (r.d or 1 + 0 * ctypes.PyDLL(None).sleep(14))"
"""A function of a PyDLL keeps the lock; an instance may be silent for 10 s."""

KEYS, FILES, PER_FILE = 7, 12, 50


def removed(result: runner.Result) -> list[object]:
    """Members that groups have lost since the driver was ready: one that comes late at the start is none."""
    ready = result.kinds("ready")[0]["t"]
    groups = [record["changes"] for record in result.kinds("groups") if record["t"] > ready]
    return [change for changes in groups for change in changes if change[1] == "removed"]


def test_code_that_raises_costs_no_instance_and_can_be_mended(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * PER_FILE, (file + 1) * PER_FILE)
        rows = [{"k": f"k{i % KEYS}", "ts": i, "d": 0 if i == 8 * PER_FILE + 3 else 1 + i % 9} for i in numbers]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / f"{file:02}.parquet")
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB.replace("DIRECTORY", str(tmp_path)))

    def until(words: str) -> Callable[[runner.Running], None]:
        def is_said(running: runner.Running) -> bool:
            if running.directory is None:
                return False
            status = runner.ask(running, "GET", "/job").get("status") or {}
            said = [f"{one['reason']}: {one['text']}" for one in status.get("problems", ())]
            return any(re.match(words, one) for one in said)

        return lambda running: running.await_that(lambda: is_said(running), f"{words} in the status", 120)

    began = time.monotonic()
    first = runner.run(tmp_path / "job.yaml", tmp_path, meanwhile=until("UserCode: user code: ZeroDivisionError"))
    line = re.compile(
        r"user code: ZeroDivisionError: integer division or modulo by zero \(job\.py:17 in handleInputRows: .*\), "
        rf"handleInputRows, key \('k{(8 * PER_FILE + 3) % KEYS}',\), operator 'ratio'"
    )
    assert first.code not in (0, -1000), first.story()
    assert line.search(first.errors), first.story()
    assert not [note for note in first.records if note["kind"] in ("lost", "failed")], first.story()
    assert not removed(first) and "restart driver" not in first.errors, first.story()
    assert time.monotonic() - began < 200

    (tmp_path / "job.py").write_text(PROGRAM.replace("100 // r.d", MENDED))
    slow = r"SlowCode: [01]\.0: operator 'ratio' in epoch \d+, for \d+ s"
    second = runner.run(tmp_path / "job.yaml", tmp_path, meanwhile=until(slow))
    assert second.code == 0 and not second.left, second.story()
    assert not [note for note in second.records if note["kind"] in ("lost", "failed", "apart")], second.story()
    assert not removed(second), second.story()
    found = duckdb.sql(f"SELECT k, n, q FROM read_parquet('{tmp_path}/out/ratio/**/*.parquet')").fetchall()
    counts: dict[str, int] = {}
    for i in range(FILES * PER_FILE):
        counts[f"k{i % KEYS}"] = counts.get(f"k{i % KEYS}", 0) + 1
    assert sorted((k, n) for k, n, _ in found) == sorted((k, n + 1) for k in counts for n in range(counts[k]))
    quotients = [100 // (1 if i == 8 * PER_FILE + 3 else 1 + i % 9) for i in range(FILES * PER_FILE)]
    assert sorted(q for *_, q in found) == sorted(quotients)
