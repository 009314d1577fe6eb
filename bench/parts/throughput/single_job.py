"""Starts the program of one thread (`single`) in a process, and reads what it says of its batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.shared.ferry_job import ROOT, RunFailed, environment


class SingleJob:
    """One run of it. Use as a context."""

    def __init__(self, conf: dict[str, Any], directory: Path) -> None:
        """`conf` as `single` reads it; `directory` is emptied."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.directory = directory
        (directory / "conf.json").write_text(json.dumps(conf))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> SingleJob:
        one = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.parts.throughput.single", str(self.directory / "conf.json")], cwd=ROOT,
                env={**environment(), **one}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def finish(self) -> list[tuple[float, int]]:
        """Wait for its end: (when a batch was over, its rows). Raises RunFailed unless it ended well."""
        assert self._process is not None and self._process.stdout is not None
        lines = [json.loads(line) for line in self._process.stdout]
        if self._process.wait():
            log = (self.directory / "log").read_text(errors="replace")
            raise RunFailed(f"one thread ended with exit code {self._process.returncode}\n{log[-2000:]}")
        return [(line["end"], line["rows"]) for line in lines if line["rows"]]
