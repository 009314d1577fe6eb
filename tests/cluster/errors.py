"""Runs the broken programs of `pipelines/errors` as a person does, in a terminal of 80 columns, and keeps what it shows.

    python -m tests.cluster.errors [NAME...]      writes docs/errors/NAME.txt anew

What differs from run to run (times, numbers of processes, paths) is written alike; what only a busy machine says is left out.
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
    (r"/tmp/\S*/(?=home|jobs)", "/"),
]
"""(what differs from run to run, how it is written)"""

INCIDENTAL = re.compile(
    r"groups: |lost: |mended: |restart worker|driver ready|no task of Spark has asked|finished: |waiting for|epoch (-1|N)  "
    r"|workers \d/"
)
"""Lines that a run has or has not, as fast as the machine is."""


def screen(name: str, folder: Path) -> str:
    """What `ferry run` of a program shows, line by line as it comes; the folder is empty."""
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
    surroundings = {**os.environ, "TERM": "dumb", "COLUMNS": str(COLUMNS), "FERRY_HOME": str(home), "PYTHONPATH": path}
    command = [sys.executable, "-m", "ferry_operator.cli", "run", "job.yaml", "--output", str(folder / "out")]
    with subprocess.Popen(command, cwd=jobs, env=surroundings, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        shown = _read(ours, run, time.monotonic() + PATIENCE * SECONDS)
    os.close(ours)
    return _screen_lines(shown) + f"[exit code {run.returncode}]\n"


def _read(terminal: int, run: subprocess.Popen[bytes], deadline: float) -> bytes:
    shown, interrupted = b"", False
    while True:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 65_536)
                continue
            except OSError:  # nobody has the other end any more
                return shown
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


def shown_now(name: str) -> str:
    """What a person sees of a program today."""
    with TemporaryDirectory(prefix="e-") as folder:
        return screen(name, Path(folder))


def main(names: list[str]) -> None:
    """Write the files of these programs, of all if none is named."""
    TOLD.mkdir(exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, shown in zip(names or NAMES, pool.map(shown_now, names or NAMES), strict=True):
            (TOLD / f"{name}.txt").write_text(document(name, _wrapped(shown)))
            print(name)


def _wrapped(shown: str) -> str:
    """As it was shown, with what differs written alike."""
    for what, how in ALIKE:
        shown = re.sub(what, how, shown)
    return shown


if __name__ == "__main__":
    main(sys.argv[1:])
