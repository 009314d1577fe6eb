"""A job whose program changes: its texts, and a check of its output record by record.

Every number is counted by its key. A program has a step (in a module beside it), which its tasks use to leave numbers out and
its instances to count: each number passes if the step divides it, and raises the count of its key by the step. So a record
tells which program its task had, and which its instance.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ferry_workloads.smq import SmqGenerator
from tests.cluster import runner

KEYS = 8
PACE = 1500
SPAN_MS = 8000
JOINED_MS = 2000

PIPELINE = """
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import ferry
import helper
from ferry_workloads.jobs.smq import sources as sources


@dataclass
class Seen(ferry.Process):
    tables = {{"count": ferry.StateTable(pa.schema([("n", pa.int64())]))}}
    output = pa.schema([("seq", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])

    def process(self, work):
        import helper

        before = work.get("count").column("n").fill_null(0).to_numpy(zero_copy_only=False)
        key, seq = work.key_of(), work.rows().column("seq").to_numpy()
        first = work.spans()[:-1]
        n = before[key] + helper.STEP * (np.arange(len(key)) - first[key] + 1)
        work.put("count", range(work.count), {{"n": before + helper.STEP * np.diff(work.spans())}})
        work.emit(key, {{"seq": seq, "k": work.keys.column("k").take(pa.array(key)), "n": n}})


def passing(numbers):
    seq = numbers.column("seq").to_numpy()
    return numbers.append_column("k", pa.array(seq % 8)).filter(pa.array(seq % helper.STEP == 0))


def pipeline(streams, args):
    numbers = streams["smq"].map_batches(passing).event_time("ts").key_by("k")
    seen = numbers.process("seen", Seen()).sink(ferry.parquet("seen"))
    {more}
"""

WINDOWS = """windows = numbers.window(ferry.tumbling("500ms")).aggregate("windows", n=ferry.count())
    return [windows.sink(ferry.parquet("windows")), seen]"""

SPANS = """{name} = numbers.window(ferry.tumbling("8s")).aggregate("{name}", n=ferry.count())
    return [{name}.sink(ferry.parquet("spans")), seen]"""
"""Windows of an operator with this name, whose sink is the same for every name."""

SUMS = """sums = numbers.window(ferry.tumbling("8s")).aggregate("sums", {columns})
    return [sums.sink(ferry.parquet("sums")), seen]"""
"""Windows with these aggregates of `seq`."""

JOINED = """left, right = (
        streams["smq"].map_batches(side(rest)).event_time("ts").key_by("pair") for rest in (0, 1)
    )
    pairs = left.window(ferry.tumbling("2s")).join("pairs", right, left={left}, right={right})
    return [pairs.sink(ferry.parquet("pairs")), seen]


def side(rest):
    def function(numbers):
        seq = numbers.column("seq").to_numpy()
        columns = [pa.array(seq // 2), pa.array(seq), pa.array([f"{{n}}!" for n in seq], pa.string()), numbers.column("ts")]
        return pa.RecordBatch.from_arrays(columns, ["pair", "seq", "text", "ts"]).filter(pa.array(seq % 2 == rest))

    return function"""
"""Joins each even number with the next number. `left` and `right`: columns, `l` and `r` are the numbers, `a` and `b` texts."""

SIZES = """short = numbers.window(ferry.tumbling("500ms"), until={until}).aggregate("windows", n=ferry.count())
    long = numbers.window(ferry.sliding("{size}s", "2s"), since={until}).aggregate("long", n=ferry.count())
    return [short.sink(ferry.parquet("windows")), long.sink(ferry.parquet("long")), seen]"""
"""The windows of WINDOWS until an event time, and longer ones since then."""

HISTORY = """rows = streams["smq"].map_batches(single).union(streams["history"])
    counts = rows.key_by("k").aggregate("counts", emit=ferry.changes(), n=ferry.sum("n"))
    return [counts.sink(ferry.parquet("counts")), seen]


def single(numbers):
    seq = numbers.column("seq").to_numpy()
    return pa.RecordBatch.from_arrays([pa.array(seq % 8), pa.array(np.ones(len(seq), np.int64))], ["k", "n"])


numbers_only = sources


def sources(spark, args):
    return {{**numbers_only(spark, args), "history": ferry.parquet_files({folder!r}, finite=True)}}"""
"""Counts of an operator that begins with the counts of a table, in this folder."""

MORE = """more = streams["more"].map_batches(passing).event_time("ts").key_by("k")
    return [more.process("more", Seen()).sink(ferry.parquet("more")), seen]


numbers_only = sources


def sources(spark, args):
    return {**numbers_only(spark, args), "more": numbers_only(spark, args)["smq"]}"""
"""A second source, which is read and counted in the same way."""

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {{name: numbers}}
spec:
  pipeline: {{file: {file}, args: {{pace: {pace}}}}}
  workers: 2
  cores: 1
  state: {{virtualNodes: 8, replicas: 1}}
"""


def program(base: Path, name: str, step: int, more: str = "return seen") -> Path:
    """A program of its own folder, with its own module beside it."""
    folder = base / "programs" / name
    folder.mkdir(parents=True)
    (folder / "helper.py").write_text(f"STEP = {step}\n")
    (folder / "job.py").write_text(PIPELINE.format(more=more))
    return folder / "job.py"


def job(base: Path, pace: int = PACE, more: str = "return seen") -> Path:
    """The job file, of a program with step 1."""
    file = base / "job.yaml"
    file.write_text(JOB.format(file=program(base, "first", 1, more), pace=pace))
    return file


def ferry(running: runner.Running, *arguments: object) -> tuple[int, str]:
    """A command of a user: its exit code, and what it printed."""
    environment = {
        **os.environ,
        "FERRY_HOME": str(running.home),
        "PYTHONPATH": f"{runner.ROOT / 'runtime'}:{runner.ROOT / 'operator'}:{runner.ROOT / 'bench' / 'workloads'}",
    }
    command = [sys.executable, "-m", "ferry_operator.cli", *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, cwd=running.home.parent, capture_output=True, text=True, timeout=180
    )
    return done.returncode, done.stdout + done.stderr


def deploy(running: runner.Running, file: Path, *more: str) -> int:
    """Deploy a program; the epoch that it is in force from."""
    code, text = ferry(running, "deploy", "numbers", file, *more)
    assert code == 0, text
    found = re.search(r"is in force from epoch (\d+) on", text)
    assert found, text
    return int(found[1])


def read(folder: Path) -> dict[int, pa.Table]:
    """Rows by epoch."""
    files = defaultdict(list)
    for file in folder.glob("epoch=*/*.parquet"):
        files[int(file.parent.name.removeprefix("epoch="))].append(pq.ParquetFile(file).read())
    return {epoch: pa.concat_tables(tables) for epoch, tables in sorted(files.items())}


def seen(output: Path) -> list[tuple[int, int]]:
    """Key and event time of all numbers that were seen."""
    rows = pa.concat_tables(read(output / "seen").values())
    times = SmqGenerator(rate=PACE).times(rows.column("seq").to_numpy())
    return list(zip(rows.column("k").to_pylist(), times.tolist(), strict=True))


def newest(output: Path) -> int:
    """The greatest event time that was seen."""
    return max((ts for _, ts in seen(output)), default=0)


def spans(output: Path, epochs: range) -> Counter[tuple[int, int, int]]:
    """Key, begin and count of the windows of all numbers that were seen in these epochs."""
    counts: Counter[tuple[int, int]] = Counter()
    for epoch, table in read(output / "seen").items():
        if epoch in epochs:
            begins = SmqGenerator(rate=PACE).times(table.column("seq").to_numpy()) // SPAN_MS * SPAN_MS
            counts.update(zip(table.column("k").to_pylist(), begins.tolist(), strict=True))
    return Counter((k, begin, n) for (k, begin), n in counts.items())


def wrong_sums(output: Path, columns: dict[int, tuple[str, ...]]) -> list[str]:
    """Windows with a wrong sum `s` or a wrong greatest number `m`; `columns`: by the first epoch of a program."""
    state: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
    fired, out, had = read(output / "sums"), list[str](), tuple[str, ...]()
    for epoch, table in read(output / "seen").items():
        has = columns[max(since for since in columns if since <= epoch)]
        for kept in state.values():  # A column that returns begins empty.
            kept |= dict.fromkeys(set(has) - set(had))
        seqs, had = table.column("seq").to_numpy(), has
        begins = SmqGenerator(rate=PACE).times(seqs) // SPAN_MS * SPAN_MS
        for k, begin, seq in zip(table.column("k").to_pylist(), begins.tolist(), seqs.tolist(), strict=True):
            kept = state[k, begin] if has else {}
            kept["s"], kept["m"] = (kept.get("s") or 0) + seq, max(kept.get("m") or 0, seq)
        for row in fired[epoch].to_pylist() if epoch in fired else ():
            expected = state.pop((row["k"], row["window_start"]), {})
            if {name: expected.get(name) for name in has} != {name: row[name] for name in row if name in "sm"}:
                out.append(f"epoch {epoch}: {row}, expected {expected} of {has}")
    return out[:5] if fired else ["no windows"]


def joined(columns: str) -> str:
    """A join that has these columns, beside the numbers."""
    left, right = ({n: "seq"} | {c: "text" for c in columns if c == text} for n, text in (("l", "a"), ("r", "b")))
    return JOINED.format(left=left, right=right)


def wrong_pairs(output: Path, columns: dict[int, str]) -> list[str]:
    """Pairs that are missing, twice, or with a wrong text; `columns`: by the first epoch of a program."""
    epochs = {n: epoch for epoch, table in read(output / "seen").items() for n in table.column("seq").to_pylist()}
    begins = SmqGenerator(rate=PACE).times(np.arange(len(epochs))) // JOINED_MS * JOINED_MS
    fired = [(epoch, row) for epoch, table in read(output / "pairs").items() for row in table.to_pylist()]
    last = max((row["window_start"] for _, row in fired), default=-1)
    wanted = Counter(n for n in range(0, len(epochs) - 1, 2) if begins[n] == begins[n + 1] <= last)
    got = Counter(row["l"] for _, row in fired)
    out = [f"missing {list((wanted - got).items())[:3]}, unexpected {list((got - wanted).items())[:3]}"] * (
        wanted != got
    )
    ends = [*sorted(columns)[1:], max(epochs.values()) + 1]
    for epoch, row in fired:
        for name, number in (("a", row["l"]), ("b", row["r"])):
            there = [
                of
                for (since, of), end in zip(columns.items(), ends, strict=True)
                if since <= epoch and end > epochs[number]
            ]
            text = f"{number}!" if all(name in of for of in there) else None
            if row.get(name) != text or row["r"] != row["l"] + 1:
                out.append(f"epoch {epoch}: {row}, {name} is {text} since epoch {epochs[number]}")
    return out[:5] if fired else ["no pairs"]


def wrong(output: Path, steps: dict[int, int], name: str = "seen") -> list[str]:
    """Records by the wrong program, by two, or by none; `steps`: by the first epoch of a program."""
    counts, out = [0] * KEYS, list[str]()
    last, last_step = -1, steps[0]
    for epoch, table in read(output / name).items():
        step = steps[max(since for since in steps if since <= epoch)]
        rows = table.sort_by("seq")
        for i, (seq, k, n) in enumerate(zip(*(rows[name].to_pylist() for name in ("seq", "k", "n")), strict=True)):
            gap, counts[k] = seq - last, counts[k] + step
            # Between two programs, the old one may have left out numbers up to its next, and then the new one.
            follows = gap == step if i or step == last_step else 0 < gap < step + last_step
            if seq % step or not follows or n != counts[k] or k != seq % KEYS:
                out.append(f"epoch {epoch}, step {step}: {seq} after {last}, count {n} of {counts[k]}")
            last = seq
        last_step = step
    return out[:5] if last > 0 else ["no output"]
