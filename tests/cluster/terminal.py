"""What a command shows a person who has a terminal of 80 columns.

What differs from run to run (times, numbers of processes, paths) is written alike; what only a busy machine says is left out.
"""

from __future__ import annotations

import fcntl
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyte

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 80

WHOLE_SECONDS = 0.5
"""In which what belongs together is on the screen, and the next of it is not."""

ALIKE = [
    (re.escape(f"{ROOT}/"), ""),
    (r"\d\d:\d\d:\d\d", "12:00:00"),
    (r"\b[a-z-]+-[0-9a-f]{6}\b", "RUN"),
    (r"\b(process|pid|pids|epoch|run|share|attempt|generation) \d+", r"\1 N"),
    (r"\b\d[\d,.]* (s|rows|times|lines|bytes)\b", r"N \1"),
    (r"\b\d[\d,.]* ms\b", "N s"),
    (r"(epochs +)\d+ in", r"\1N in"),
    (r"\b(signal N|tried|after) [\d,.]+", r"\1 N"),
    (r"\bin [\d.]+s\b", "in N s"),
    (r"\([\d,]+ rows/s\)", "(N rows/s)"),
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


def watched(
    command: Sequence[str], folder: Path, more: Mapping[str, str], seconds: float, until: str | None = None
) -> tuple[Chunks, int]:
    """(What a command sends to its terminal, its exit code); after so many seconds, or a text, it is interrupted."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    path = f"{ROOT / 'runtime'}:{ROOT / 'operator'}"
    surroundings = {**os.environ, "TERM": "dumb", "COLUMNS": str(COLUMNS), "PYTHONPATH": path, **more}
    with subprocess.Popen(command, cwd=folder, env=surroundings, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        chunks = _read(ours, run, time.monotonic() + PATIENCE * seconds, until)
    os.close(ours)
    return chunks, run.returncode


def screen(chunks: Chunks, until: str | None = None) -> str:
    """The screen of an emulated terminal: at the end, or when this text first appears."""
    shown = pyte.Screen(COLUMNS, 300)
    stream = pyte.ByteStream(shown)
    last = math.inf
    for at, chunk in chunks:
        if at > last:
            break
        stream.feed(chunk)
        if last == math.inf and until is not None and any(until in line for line in shown.display):
            last = at + WHOLE_SECONDS
    return "\n".join(line.rstrip() for line in shown.display).strip("\n") + "\n"


def _read(terminal: int, run: subprocess.Popen[bytes], deadline: float, until: str | None) -> Chunks:
    chunks: Chunks = []
    interrupted = False
    while True:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                chunk = os.read(terminal, 65_536)
            except OSError:  # nobody has the other end any more
                return chunks
            chunks.append((time.time(), chunk))
        if until is not None and any(until.encode() in chunk for _, chunk in chunks):
            deadline, until = min(deadline, time.monotonic() + 2 * WHOLE_SECONDS), None
        if not interrupted and time.monotonic() > deadline:
            interrupted = True
            run.send_signal(signal.SIGINT)


def screen_lines(chunks: Chunks) -> str:
    """As a terminal shows it: what is too long goes on in the next line."""
    lines, shown = [], b"".join(chunk for _, chunk in chunks)
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


def written_alike(shown: str) -> str:
    """As it was shown, with what differs written alike."""
    for what, how in ALIKE:
        shown = re.sub(what, how, shown)
    return shown
