"""Random jobs with hostile input and hostile code, drawn by a seed; `tests.cluster.fuzz` runs them.

What must hold of each: it ends well, and has written what a few lines of Python compute of the records that are good; or it
stops within STOP_SECONDS of its first epoch's begin, and the last lines of the terminal name the culprit.
"""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from tests.cluster import runner

STOP_SECONDS = 60.0
"""From when the driver is ready to the end of a job that cannot go on."""

USERS = ["ann", "bob", "", "Ünal", "x" * 300, "null", '"', "\t"]
BAD_LINES = [
    "null", " null ", "null null", "[]", "5", "true", '"text"', "{", "}", '{"user": "ann"', "{'user': 'ann'}", "\x00", "nul",
    '{"user": "ann", "n": "five", "ts": 5}', '{"user": "ann", "n": 1.5, "ts": 5}', '{"user": 7, "n": 1, "ts": 5}',
    '{"user": "ann", "n": 9223372036854775808, "ts": 5}', '{"user": "ann", "n": [1], "ts": 5}', '{"user": {}, "n": 1, "ts": 5}',
    '{"user": "ann", "n": 1, "ts": 5} {"user": "ann", "n": 1, "ts": 5}', '{"user": "ann", "n": 1, "ts": null}',
    '{"user": "ann", "n": 1}', "\ufeffnull", "NaN", "-", "[null]", '{"user": "ann", "n": NaN, "ts": 5}', "\x1b[2J",
]  # fmt: skip
"""None of them is a record of the schema."""

ODD_FIELDS = [
    "", ', "more": null', ', "more": [null]', ', "more": {"a": [1, {"b": null}]}', ', "more": ' + "9" * 400,
    ', "more": ' + "[" * 60 + "]" * 60, ', "user2": "x"',
]  # fmt: skip
"""Behind the fields of a record that is one all the same."""


@dataclass(frozen=True)
class Hostility:
    """One way in which the user's code goes wrong."""

    name: str
    body: str
    """of `touch(batch)`, which is called with each batch of records; `bad(batch)` says whether it has the bad one"""
    named: str
    """pattern that the end of the terminal's output matches when the job stops; empty: it is to end well"""
    aggregate: str = "emit=ferry.at_end()"
    sink: str = 'ferry.parquet("sums")'
    head: str = ""


RAISES = r"ValueError: bad record.*job\.py:\d+"
DIES = r"dies of record \d+ .*'in', \d\.json.*touch \(job\.py:\d+\)"

WAYS = [
    Hostility("none", "return batch", ""),
    Hostility("raises", 'if bad(batch): raise ValueError("bad record")\nreturn batch', RAISES),
    Hostility("raises at first", 'if first(batch): raise ConnectionError("not yet")\nreturn batch', ""),
    Hostility("signal", "if bad(batch): os.kill(os.getpid(), 11)\nreturn batch", DIES),
    Hostility("exits", "if bad(batch): os._exit(3)\nreturn batch", DIES),
    Hostility("sys.exit", "if bad(batch): sys.exit(3)\nreturn batch", r"SystemExit: 3 \(job\.py:\d+"),
    Hostility("dies at first", "if first(batch): os._exit(0)\nreturn batch", ""),
    Hostility("other columns", 'return batch.select(["user", "ts"]) if bad(batch) else batch', r"job\.py|touch"),
    Hostility("no batch", "return None if bad(batch) else batch", r"job\.py|touch"),
    Hostility("forks", "if first(batch) and os.fork() == 0: os._exit(0)\nreturn batch", ""),
    Hostility("sink", "return batch", r"ValueError: no table.*job\.py:\d+", sink="ferry.foreach_epoch(store)"),
    Hostility("import", "return batch", r"ModuleNotFoundError.*no_such_module", head="import no_such_module"),
    Hostility("build", "return batch", r"KeyError.*job\.py:\d+|job\.py:\d+.*KeyError", aggregate='**{}["no"]'),
]

PROGRAM = """
import os, sys
import pyarrow as pa
import ferry
{head}

MARK = {mark!r}
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("ts", pa.int64())])

def bad(batch):
    return 666 in batch.column("n").to_pylist()

def first(batch):
    if not batch.num_rows:
        return False
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def touch(batch):
{body}

def store(epoch, generation, rows):
    raise ValueError("no table")

def sources(spark, args):
    return {{"in": ferry.json_files({directory!r}, SCHEMA, finite=True)}}

def pipeline(streams, args):
    keyed = streams["in"].event_time("ts", delay="1s").map_batches(touch).key_by("user")
    return keyed.aggregate("sums", rows=ferry.count(), n=ferry.sum("n"), {aggregate}).sink({sink})
"""


@dataclass(frozen=True)
class Case:
    """One random job."""

    seed: int
    way: Hostility
    set_aside: bool
    files: dict[str, list[str]]
    expected: Counter[tuple[str | None, int, int]]
    """(user, rows, sum) of the good records"""
    sets: tuple[str, ...]

    def command(self) -> str:
        """In one line."""
        lines = sum(map(len, self.files.values()))
        words = [f"hostile: {self.way.name}, {len(self.files)} files, {lines} lines"]
        return " ".join([*words, *(f"--set {one}" for one in self.sets)])


def case_of(seed: int) -> Case:
    """The case of a seed, always the same one."""
    draw = random.Random(f"hostile {seed}")
    way = draw.choice(WAYS)
    deadly = way.name in ("signal", "exits")
    set_aside = deadly and draw.random() < 0.6
    files: dict[str, list[str]] = {}
    good: list[tuple[str | None, int]] = []
    chance = draw.choice([0.0, 0.01, 0.2, 0.9])
    for number in range(draw.randint(1, 4)):
        lines = []
        for _ in range(draw.choice([0, 1, 7, 60, 400])):
            if draw.random() < chance:
                lines.append(draw.choice(BAD_LINES))
                continue
            user, n = draw.choice([*USERS, f"u{draw.randrange(50)}"]), draw.randrange(-5, 500)
            good.append((user, n))
            lines.append(_record(draw, user, n))
        files[f"{number}.json"] = lines
    # The bad record is one of its own, with good ones on both sides.
    name = draw.choice(sorted(files))
    files[name].insert(draw.randint(0, len(files[name])), _record(draw, "bad", 666))
    if not set_aside:
        good.append(("bad", 666))
    rows, sums = Counter(user for user, _ in good), Counter[str | None]()
    for user, n in good:
        sums[user] += n
    expected = Counter((user, rows[user], sums[user]) for user in rows)
    sets = [f"workers={draw.choice([1, 2])}", "state.virtualNodes=4", f"state.replicas={draw.choice([0, 1])}"]
    sets += [f"epoch.mode={draw.choice(['auto', 'auto', 'micro-batch'])}", f"epoch.maxRows={draw.choice([50, 1000])}"]
    sets += ["deadLetter.onCrash=set-aside"] if set_aside else []
    return Case(seed, way, set_aside, files, expected, tuple(sets))


def _record(draw: random.Random, user: str, n: int) -> str:
    head = json.dumps({"user": user, "n": n, "ts": draw.randrange(10_000)}, ensure_ascii=draw.random() < 0.5)
    return draw.choice(["", "", " ", "\t"]) + head[:-1] + draw.choice(ODD_FIELDS) + "}"


def check(case: Case, base: Path) -> str | None:
    """Run a case; what is wrong, or None."""
    folder = base / "in"
    folder.mkdir(parents=True)
    for name, lines in case.files.items():
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    body = textwrap.indent(case.way.body, "    ")
    fill = {"head": case.way.head, "body": body, "aggregate": case.way.aggregate, "sink": case.way.sink}
    (base / "job.py").write_text(PROGRAM.format(directory=str(folder), mark=str(base / "mark"), **fill))
    spec = {"pipeline": {"file": str(base / "job.py")}}
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "hostile"}, "spec": spec}
    (base / "job.yaml").write_text(json.dumps(document))
    running = runner.start(base / "job.yaml", base, sets=case.sets)
    late = _await_end(running)
    result = runner.finish(running, 5)
    wrong = [late] if late else []
    if result.left:
        wrong.append(f"left behind: {result.left}")
    stops = case.way.named and not case.set_aside
    if stops:
        wrong += _not_named(case, result)
    elif result.code != 0:
        wrong.append(f"exit code {result.code}")
    else:
        wrong += _other_rows(case, result.output)
    return f"{'; '.join(wrong)}\n{result.story(25)}" if wrong else None


def _await_end(running: runner.Running) -> str:
    """Why it has not ended in time, if so: a good one and one that stops have the same time here."""
    try:
        running.await_that(lambda: any(r["kind"] == "ready" for r in running.records()), "driver that is ready", 120)
        running.await_that(lambda: False, "end", STOP_SECONDS)
    except TimeoutError as error:
        return str(error)
    return ""


def _not_named(case: Case, result: runner.Result) -> list[str]:
    said = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", result.errors).split())
    if result.code in (0, -1000):
        return [f"it should have stopped, exit code {result.code}"]
    return [] if re.search(case.way.named, said) else [f"the terminal does not match {case.way.named!r}"]


def _other_rows(case: Case, output: Path) -> list[str]:
    files = [str(file) for file in output.glob("sums/*/*.parquet")]
    if not files:
        return [] if not case.expected else [f"no rows, {len(case.expected)} were expected"]
    rows = duckdb.sql(f'SELECT "user", "rows", n FROM read_parquet({files}, hive_partitioning = false)').fetchall()
    found = Counter[Any](rows)
    missing, extra = case.expected - found, found - case.expected
    return [f"missing {[*missing][:3]}, unexpected {[*extra][:3]}"] if missing or extra else []
