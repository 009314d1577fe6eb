"""What /proc says of processes of a benchmark: which there are, what each of them is, and what it has used so far.

It reads; must never touch a process.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MARK = "FERRY_BENCH_RUN"
"""A variable of the environment, which all processes of a run have, also those whose parents have ended."""

KINDS = (
    ("Flink, job manager", r"StandaloneSessionClusterEntrypoint"),
    ("Flink, task managers", r"TaskManagerRunner"),
    ("Ferry, sidecars", r"\bferry\.sidecar\b"),
    ("Ferry, driver", r"\bferry\.driver\b"),
    ("Spark, Python of tasks", r"\bpyspark[./](daemon|worker)"),
    ("Kafka", r"\bkafka\.Kafka\b"),
    ("Spark, JVM", r"\borg\.apache\.spark\."),
    ("Redis", r"\b(valkey|redis)-server\b"),
    ("Spark, driver", r"\bbench\.[a-z_.]*spark"),
    ("Ferry, supervisor", r"\bferry_operator\b|\bbench\.shared\.apart\b"),
    ("the bench", r"\bbench\."),
)
"""By what is in their command lines; the first one that fits."""
OTHER = "other"

_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

Key = tuple[int, int]
"""Number of a process, and when it began: numbers are used again."""


@dataclass(frozen=True, slots=True)
class Process:
    """One of them, at one look."""

    key: Key
    parent: int
    cpu_seconds: float
    resident_bytes: int

    @property
    def pid(self) -> int:
        """Its number."""
        return self.key[0]


def group_of(command: str) -> str:
    """What a process of this command line is."""
    return next((name for name, words in KINDS if re.search(words, command)), OTHER)


def processes(proc: Path = PROC) -> dict[int, Process]:
    """All there are, by number."""
    found = (_stat(proc, int(entry.name)) for entry in proc.iterdir() if entry.name.isdecimal())
    return {one.pid: one for one in found if one is not None}


def command_of(pid: int, proc: Path = PROC) -> str:
    """Its command line; nothing of one that has ended."""
    return _text(proc / str(pid) / "cmdline").replace("\0", " ")


def mark_of(pid: int, proc: Path = PROC) -> str | None:
    """What `MARK` is in its environment, as it was when its program began."""
    words = _text(proc / str(pid) / "environ").split("\0")
    return next((word.partition("=")[2] for word in words if word.startswith(f"{MARK}=")), None)


def anonymous_bytes(pid: int, proc: Path = PROC) -> int:
    """Its memory that no file backs."""
    # Not smaps_rollup: it walks the page tables of gigabytes and keeps the process from mapping anything meanwhile.
    return _number(_text(proc / str(pid) / "status"), "RssAnon") * 1024


def disk_bytes(pid: int, proc: Path = PROC) -> tuple[int, int]:
    """What it has read from and written to disks, so far; what the page cache had is not in it."""
    text = _text(proc / str(pid) / "io")
    return _number(text, "read_bytes"), _number(text, "write_bytes")


def network_of(pid: int, proc: Path = PROC) -> str | None:
    """The network namespace it is in; None of one that has ended."""
    try:
        return os.readlink(proc / str(pid) / "ns" / "net")
    except OSError:
        return None


def network_bytes(pid: int, proc: Path = PROC) -> dict[str, tuple[int, int]]:
    """(received, sent) by each device of its namespace, so far."""
    made = {}
    for line in _text(proc / str(pid) / "net" / "dev").splitlines():
        name, colon, rest = line.partition(":")
        if colon and len(words := rest.split()) > 8:
            made[name.strip()] = int(words[0]), int(words[8])
    return made


def _stat(proc: Path, pid: int) -> Process | None:
    # The name of a program is in brackets, and may have anything in it.
    words = _text(proc / str(pid) / "stat").rpartition(")")[2].split()
    if len(words) < 22:
        return None
    cpu = (int(words[11]) + int(words[12])) / _TICKS
    return Process((pid, int(words[19])), int(words[1]), cpu, int(words[21]) * _PAGE)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # It has ended, or is somebody else's.
        return ""


def _number(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
