"""Runs the broken programs of `pipelines/errors` as a person does, in a terminal of 80 columns, and keeps what it shows.

    python -m tests.cluster.errors [NAME...]      writes docs/errors/NAME.txt anew
    python -m tests.cluster.errors --seconds      writes docs/errors/seconds.json anew: on a machine that does nothing else

What differs from run to run (times, numbers of processes, paths) is written alike; what only a busy machine says is left out.
The seconds are those from when a program first goes wrong, which it writes down itself, until the screen names its line.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS, TOLD = Path(__file__).parent / "pipelines" / "errors", ROOT / "docs" / "errors"
NAMES = sorted(one.stem for one in PROGRAMS.glob("*.py") if one.stem != "orders")
COLUMNS, AT_ONCE = 80, 3
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

ALIKE = [
    (re.escape(f"{ROOT}/"), ""),
    (r"\d\d:\d\d:\d\d", "12:00:00"),
    (r"\b[a-z-]+-[0-9a-f]{6}\b", "RUN"),
    (r"\b(process|pid|pids|epoch|run|share|attempt|generation) \d+", r"\1 N"),
    (r"\b\d[\d,.]* (ms|s|rows|times|lines|bytes)\b", r"N \1"),
    (r"\b(signal N|tried|after) [\d,.]+", r"\1 N"),
    (r"/tmp/\S*/(?=home|jobs|out/)", "/"),
]
"""(what differs from run to run, how it is written)"""

INCIDENTAL = re.compile(
    r"groups: |lost: |mended: |restart worker|driver ready|no task of Spark has asked|finished: |waiting for|epoch (-1|N)  "
    r"|workers \d/|first epoch: "
)
"""Lines that a run has or has not, as fast as the machine is."""


Chunks = list[tuple[float, bytes]]
"""(when it came, what a terminal was sent)"""


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
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    path = f"{ROOT / 'runtime'}:{ROOT / 'operator'}"
    wrong_at = folder / "wrong-at"
    surroundings = {**os.environ, "TERM": "dumb", "COLUMNS": str(COLUMNS), "FERRY_HOME": str(home), "PYTHONPATH": path}
    surroundings["WRONG_AT"] = str(wrong_at)
    command = [sys.executable, "-m", "ferry_operator.cli", "run", "job.yaml", "--output", str(folder / "out")]
    with subprocess.Popen(command, cwd=jobs, env=surroundings, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        chunks = _read(ours, run, time.monotonic() + PATIENCE * SECONDS)
    os.close(ours)
    shown = _screen_lines(b"".join(chunk for _, chunk in chunks)) + f"[exit code {run.returncode}]\n"
    return shown, _told_at(name, chunks) - float(wrong_at.read_text().split()[0])


def _told_at(name: str, chunks: Chunks) -> float:
    """When the screen first named a line of the program."""
    shown = b""
    for at, chunk in chunks:
        shown += chunk
        if f"{name}.py:".encode() in shown:
            return at
    raise AssertionError(f"{name}: the screen never named the cause:\n{shown.decode()}")


def _read(terminal: int, run: subprocess.Popen[bytes], deadline: float) -> Chunks:
    chunks: Chunks = []
    interrupted = False
    while True:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                chunk = os.read(terminal, 65_536)
            except OSError:  # nobody has the other end any more
                return chunks
            chunks.append((time.time(), chunk))
            continue
        if not interrupted and time.monotonic() > deadline:
            interrupted = True
            run.send_signal(signal.SIGINT)


def _screen_lines(shown: bytes) -> str:
    """As a terminal shows it: what is too long goes on in the next line."""
    lines = []
    for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n").split("\n"):
        line = line.rsplit("\r", 1)[-1].rstrip()
        lines += [line[i : i + COLUMNS] for i in range(0, len(line), COLUMNS)] or [""]
    return "\n".join(lines).strip("\n") + "\n"


def alike(shown: str) -> str:
    """Without what differs from run to run; a line that comes again stands there once."""
    lines: list[str] = []
    for block in _blocks(shown):
        for what, how in ALIKE:
            block = re.sub(what, how, block)
        if block not in lines and not INCIDENTAL.search(block):
            lines.append(block)
    return "\n".join(lines).strip("\n") + "\n"


def _blocks(shown: str) -> list[str]:
    """Lines, each with the indented ones that belong to it."""
    blocks: list[str] = []
    for line in shown.splitlines():
        if line.startswith("          ") and blocks:
            blocks[-1] += f" {line.strip()}"
        else:
            blocks.append(line)
    return blocks


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
            (TOLD / f"{name}.txt").write_text(document(name, _wrapped(shown)))
            print(f"{name}: {took:.1f} s")


def _wrapped(shown: str) -> str:
    """As it was shown, with what differs written alike."""
    for what, how in ALIKE:
        shown = re.sub(what, how, shown)
    return shown


if __name__ == "__main__":
    main(sys.argv[1:])
