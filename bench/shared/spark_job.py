"""Starts and ends vanilla Spark (`vanilla_spark`) in a process and watches what it commits. Must never import pyspark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.shared.ferry_job import RunFailed, environment


class SparkJob:
    """One process of vanilla Spark. Use as a context."""

    def __init__(self, conf: dict[str, Any], directory: Path) -> None:
        """`conf` as `vanilla_spark` reads it; files of the run are put below `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.conf = {"directory": str(directory), "checkpoint": str(directory / "checkpoint"), **conf}
        self.commits_in = Path(self.conf.get("commits") or Path(self.conf["checkpoint"]) / "commits")
        """where they lie as files of this machine"""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SparkJob:
        self.launch()
        self.answer()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def launch(self) -> None:
        """Start the process; its first answer comes when the session is there."""
        file = self.directory / "conf.json"
        file.write_text(json.dumps(self.conf))
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.shared.vanilla_spark", str(file)], env=environment(), cwd=self.directory,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id of the Python process; the JVM is its child."""
        assert self._process is not None
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """The next answer; raises RunFailed when it is an error or the process ended."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                document: dict[str, Any] = json.loads(line)
                if "error" in document:
                    raise RunFailed(f"Spark: {document['error']}")
                return document
        raise RunFailed("Spark ended:\n" + (self.directory / "log").read_text(errors="replace")[-2000:])

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def kill(self) -> None:
        """kill -9 of the driver with all that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    # ---- what it committed, seen from outside
    def commits(self) -> dict[int, float]:
        """Time of every batch's commit file."""
        found = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.commits_in):
                if entry.name.isdigit():
                    found[int(entry.name)] = entry.stat().st_mtime
        return found

    def last_commit(self) -> tuple[int, float]:
        """The highest batch and its time; (-1, 0) when there is none."""
        return max(self.commits().items(), default=(-1, 0.0))

    def wait_commit(self, after: int, seconds: float = 600.0) -> tuple[int, float]:
        """Wait for a batch above `after`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            last = self.last_commit()
            if last[0] > after:
                return last
            time.sleep(0.005)
        raise RunFailed(f"Spark: no batch after {after} within {seconds:g} s")
