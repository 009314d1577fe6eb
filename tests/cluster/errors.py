"""Runs the broken programs of `pipelines/errors` as a person does, in a terminal of 80 columns, and keeps what it shows.

    python -m tests.cluster.errors [NAME...]      writes docs/errors/NAME.txt anew
    python -m tests.cluster.errors --seconds      writes docs/errors/seconds.json anew: on a machine that does nothing else

The seconds are those from when a program first goes wrong, which it writes down itself, until the screen names its line.
"""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import terminal

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS, TOLD = Path(__file__).parent / "pipelines" / "errors", ROOT / "docs" / "errors"
NAMES = sorted(one.stem for one in PROGRAMS.glob("*.py") if one.stem != "orders")
AT_ONCE = 3
MEASURED = 3
"""Runs of each program, one at a time; the least of their seconds counts."""

SECONDS = 90.0
"""A run that has not ended by then is interrupted, as a person would."""

JOB = """apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  pipeline: {{file: {file}.py, args: {{directory: {orders}}}}}
  workers: 1
  cores: 1
  state: {{virtualNodes: 4, replicas: 0}}
"""


def screen(name: str, folder: Path) -> tuple[str, float]:
    """(What `ferry run` of a program shows, the seconds until it names the cause); the folder is empty."""
    jobs, home = folder / "jobs", folder / "home"
    shutil.copytree(PROGRAMS, jobs, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "orders").mkdir()
    orders = (
        {"shop": "ab"[n % 2], "ts": n, "number": n, "cents": 0 if n == 1000 else 1 + n % 7} for n in range(1, 3001)
    )
    (folder / "orders" / "1.json").write_text("".join(json.dumps(one) + "\n" for one in orders))
    (jobs / "job.yaml").write_text(JOB.format(name=name.replace("_", "-"), file=name, orders=folder / "orders"))
    wrong_at = folder / "wrong-at"
    more = {"FERRY_HOME": str(home), "WRONG_AT": str(wrong_at)}
    command = [sys.executable, "-m", "ferry_operator.cli", "run", "job.yaml", "--output", str(folder / "out")]
    chunks, code = terminal.watched(command, jobs, more, SECONDS)
    shown = terminal.screen_lines(chunks) + f"[exit code {code}]\n"
    return shown, _told_at(name, chunks) - float(wrong_at.read_text().split()[0])


def _told_at(name: str, chunks: terminal.Chunks) -> float:
    """When the screen first named a line of the program."""
    shown = b""
    for at, chunk in chunks:
        shown += chunk
        if f"{name}.py:".encode() in shown:
            return at
    raise AssertionError(f"{name}: the screen never named the cause:\n{shown.decode()}")


def document(name: str, shown: str) -> str:
    """The file about a program."""
    about = (PROGRAMS / f"{name}.py").read_text().split('"""')[1].splitlines()[0]
    return f"{about} (tests/cluster/pipelines/errors/{name}.py)\n\n$ ferry run job.yaml\n{shown}"


def shown_now(name: str) -> tuple[str, float]:
    """(What a person sees of a program today, the seconds until it names the cause)."""
    with TemporaryDirectory(prefix="e-") as folder:
        return screen(name, Path(folder))


def main(arguments: list[str]) -> None:
    """Write the files of these programs, of all if none is named; or the seconds."""
    if arguments == ["--seconds"]:
        seconds = {name: round(min(shown_now(name)[1] for _ in range(MEASURED)), 1) for name in NAMES}
        text = json.dumps(seconds, indent=1)
        (TOLD / "seconds.json").write_text(f"{text}\n")
        print(text)
        return
    names = arguments or NAMES
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, (shown, took) in zip(names, pool.map(shown_now, names), strict=True):
            (TOLD / f"{name}.txt").write_text(document(name, terminal.written_alike(shown)))
            print(f"{name}: {took:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
