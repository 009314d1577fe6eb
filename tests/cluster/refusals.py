"""Changes of a running job's program that are refused, and what the user reads: `docs/reference/refused-deploys.md`.

python -m tests.cluster.refusals [TITLE...]      writes the table of that page anew, or these rows of it
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import deploys, runner

PAGE = runner.ROOT / "docs" / "reference" / "refused-deploys.md"

MORE = """each = streams["smq"].map_batches(passing).event_time("ts")
    even = streams["smq"].map_batches(halved).event_time("ts").key_by("k")
    windows = each.key_by("k").window(ferry.sliding("2s", "1s")).aggregate("windows", n=ferry.count(), most=ferry.max("seq"))
    totals = each.key_by("k").aggregate("totals", n=ferry.count(), emit=ferry.changes(), ttl="1h")
    pairs = each.key_by("k").join("pairs", even, ["seq"], {"half": "seq"}, within="10ms")
    sinks = [s.sink(ferry.parquet(n)) for n, s in {"windows": windows, "totals": totals, "pairs": pairs}.items()]
    return [seen, *sinks]


def halved(numbers):
    return passing(numbers).filter(pa.array(numbers.column("seq").to_numpy() % 2 == 0))"""

IMPORTS = "import helper\n"

TABLE = '"n", pa.int64())]))}\n'
FLOATS = '"n", pa.float64())]))}\n\n    def upgrade(self, table, rows):\n        return {"count": {'
"""The process with another type in its table, and the beginning of its `upgrade`."""

SETS = ("workers=1", "state.replicas=0")
"""For short epochs."""

REFUSED = 2
"""The exit code."""


@dataclass(frozen=True)
class Change:
    """A change that is refused."""

    title: str
    old: str = ""
    """of the program's text"""
    new: str = ""
    """empty `old`: the whole text"""
    options: Sequence[str] = ()
    """of `ferry deploy`"""


CHANGES = (
    Change("The key of an operator is another column", 'totals = each.key_by("k")', 'totals = each.key_by("seq")'),
    Change("The key has another type", 'totals = each.key_by("k")', 'totals = each.map_batches(lambda rows: rows.set_column(3, "k", rows["k"].cast(pa.string()))).key_by("k")'),
    Change("The window is longer", 'ferry.sliding("2s", "1s")', 'ferry.sliding("4s", "1s")'),
    Change("The window slides in other steps", 'ferry.sliding("2s", "1s")', 'ferry.sliding("2s", "500ms")'),
    Change("A session in place of a window", 'ferry.sliding("2s", "1s")', 'ferry.session("2s")'),
    Change("Another function of an aggregate", 'most=ferry.max("seq")', 'most=ferry.min("seq")'),
    Change("Another type of an aggregated column", "windows = each", 'windows = each.map_batches(lambda rows: rows.set_column(0, "seq", rows["seq"].cast(pa.float64())))'),
    Change("Rows at the end in place of changes", "emit=ferry.changes()", "emit=ferry.at_end()"),
    Change("Keys are not forgotten any more", ', ttl="1h"', ""),
    Change("Another `how=` of a join", 'within="10ms"', 'within="10ms", how="left"'),
    Change("Another `within=` of a join", 'within="10ms"', 'within="20ms"'),
    Change("Another kind of operator", 'numbers.process("seen", Seen())', 'numbers.aggregate("seen", n=ferry.count(), emit=ferry.changes())'),
    Change("A table of a process has another type", '"n", pa.int64())]))}', '"n", pa.float64())]))}'),
    Change("A process has another table", 'tables = {"count"', 'tables = {"counts"'),
    Change("`upgrade` of a process fails", TABLE, FLOATS + '"n": rows["m"]}}\n'),
    Change("`upgrade` changes a key", TABLE, FLOATS + '"k": pa.array([-1] * rows.num_rows), "n": rows["n"]}}\n'),
    Change("A process has another key", 'numbers = streams["smq"].map_batches(passing).event_time("ts").key_by("k")', 'numbers = streams["smq"].map_batches(passing).event_time("ts").key_by("seq")'),
    Change("Two operators of the same name", 'aggregate("totals", n', 'aggregate("windows", n'),
    Change("A column that does not exist", 'ferry.max("seq")', 'ferry.max("price")'),
    Change("A source that does not exist", 'streams["smq"].map_batches(halved)', 'streams["orders"].map_batches(halved)'),
    Change("An operator that nothing reads", '"windows": windows, ', ""),
    Change("A source with other settings", options=("--set", "pipeline.args.pace=3000")),
    Change("A part that Spark has to plan", 'streams["smq"].map_batches(halved)', 'streams["smq"].transform(lambda frame: frame).map_batches(halved)'),
    Change("Two sinks in the same directory", 'ferry.parquet("seen")', 'ferry.parquet("totals")'),
    Change("A sink in the directory of another sink of the job", 'ferry.parquet("seen")', 'ferry.parquet("other/seen")'),
    Change("A sink whose directory cannot be created", 'ferry.parquet("seen")', 'ferry.parquet("blocked")'),
    Change("An error of syntax", "def pipeline(", "def pipeline(:"),
    Change("A module that does not exist", IMPORTS, IMPORTS + "import prices\n"),
    Change("A name that its module does not have", IMPORTS, IMPORTS + "from helper import PRICE\n"),
    Change("An exception in `pipeline()`", "    numbers = ", "    1 / 0\n    numbers = "),
    Change("An exception in `sources()`", "def passing(", "def sources(spark, args):\n    raise OSError('no answer of prices.example')\n\n\ndef passing("),
    Change("`pipeline()` returns nothing", "return [seen, *sinks]", "[seen, *sinks]"),
    Change("`sources()` returns no dict", "def passing(", "def sources(spark, args):\n    return [1]\n\n\ndef passing("),
    Change("`pipeline()` has no end", "    numbers = ", "    while True: pass\n    numbers = ", ("--wait", "30")),
    Change("The module calls `sys.exit`", IMPORTS, IMPORTS + "import sys\nsys.exit(3)\n"),
    Change("The module ends its process", IMPORTS, IMPORTS + "import os\nos._exit(3)\n"),
    Change("The module crashes its process", IMPORTS, IMPORTS + "import ctypes\nctypes.string_at(0)\n"),
    Change("An argument that the program does not know", options=("--set", "pipeline.args.paces=1")),
    Change("An argument that is missing", "    numbers = ", '    args["least"]\n    numbers = '),
    Change("An argument of the wrong type", options=("--set", "pipeline.args.pace=fast")),
    Change("A field that is no argument", options=("--set", "workers=3")),
    Change("An object that tasks cannot get", "def passing(", "import threading\nLOCK = threading.Lock()\n\n\ndef passing(", ()),
    Change("The function of a task fails", "    seq = numbers", "    if numbers.num_rows:\n        raise ValueError('not one number')\n    seq = numbers"),
    Change("A process fails", "        import helper\n", "        raise ValueError('not one key')\n"),
    Change("The file is empty"),
    Change("The file is no text", "", "\xff\xfe"),
)  # fmt: skip
"""Of a file. `SPECIAL` are the others."""

SPECIAL = ("The file does not exist", "The file is a folder", "A second deploy at the same time")


def written(change: Change, folder: Path) -> Path:
    """The program with a change; a file of Latin-1 is no text."""
    file = deploys.program(folder, re.sub(r"\W+", "-", change.title), 1, MORE)
    text = file.read_text()
    if change.title == "An object that tasks cannot get":
        text = text.replace("    seq = numbers", "    LOCK.locked()\n    seq = numbers")
    assert change.old in text, change.title
    if "blocked" in change.new:
        (folder / "out" / "blocked").write_text("a file in the way")
    whole = not change.old and not change.options
    file.write_text(change.new if whole else text.replace(change.old, change.new, 1), "latin-1")
    return file


def answer(running: runner.Running, folder: Path, title: str) -> tuple[int, str]:
    """What the user reads of a change: the exit code, and the text without its table."""
    change = next((one for one in CHANGES if one.title == title), None)
    if change is not None:
        code, text = deploys.ferry(running, "deploy", "numbers", written(change, folder), *change.options)
    elif title == SPECIAL[2]:
        good = deploys.program(folder, "second", 1, MORE)
        waits = deploys.ferry(running, "deploy", "numbers", good, "--at-epoch", 10**6, "--wait", 0)
        code, text = deploys.ferry(running, "deploy", "numbers", good)
        given_up = deploys.ferry(running, "rollback", "numbers")
        assert waits[0] == 1 and given_up[0] == 0, (waits, given_up)
    else:
        file = folder / "nothing.py" if title == SPECIAL[0] else folder
        code, text = deploys.ferry(running, "deploy", "numbers", file)
    return code, shown(text, folder)


def shown(text: str, folder: Path) -> str:
    """The refusal alone, as it would be in another folder, job and hour."""
    lines = [line for line in text.splitlines() if "refuse" in line or "error" in line.lower()]
    words = (lines or text.splitlines() or [""])[-1]
    words = re.sub(rf"{re.escape(str(folder))}(/programs/[^/]*)?", "DIR", words)
    words = re.sub(r"program \d+ (is|has)", r"program 2 \1", words)
    words = re.sub(r"since \d+ s", "since 3 s", words)
    words = re.sub(r"\d\.\d \(instance", "0.0 (instance", words)
    return re.sub(r"(?<=Python )3\.\d+\.\d+", "3.x", words).strip()


def titles() -> list[str]:
    """All changes."""
    return [*(one.title for one in CHANGES), *SPECIAL]


def table(answers: dict[str, str]) -> str:
    """The table of the page."""
    rows = [f"| {title} | `{text.replace('|', chr(92) + '|')}` |" for title, text in answers.items()]
    return "\n".join(["| change | what you read |", "|---|---|", *rows]) + "\n"


def told() -> dict[str, str]:
    """The table of the page."""
    rows = re.findall(r"^\| ([^|]+) \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
    return {title: text.replace("\\|", "|") for title, text in rows}


def main(asked: list[str]) -> None:
    """Write the page's table anew, or these rows of it."""
    answers = told()
    with TemporaryDirectory(prefix="refusals-") as folder:

        def ask(running: runner.Running) -> None:
            running.await_epoch(5)
            for title in asked or titles():
                answers[title] = answer(running, Path(folder), title)[1]
                print(f"{title}: {answers[title]}", flush=True)
            runner.stop(running)

        runner.run(deploys.job(Path(folder), more=MORE), Path(folder), sets=SETS, meanwhile=ask)
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index("| change |")] + table({title: answers.get(title, "") for title in titles()}))


if __name__ == "__main__":
    main(sys.argv[1:])
