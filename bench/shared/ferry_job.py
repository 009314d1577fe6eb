"""Runs one Ferry job as `ferry run` does, in a process of its own, and reads its timeline while it runs.

It knows the command line and the files of a run, nothing of Ferry's insides. Must never import pyspark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ferry_operator.cli import client
from ferry_operator.local.environment import read_ferry_env
from ferry_operator.local.registry import Registry
from ferry_operator.local.timeline.timeline import TimelineTail, epochs_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
FERRY = [sys.executable, "-m", "ferry_operator.cli"]

PATIENCE_SECONDS = 10.0
"""Until a driver answers: another one may have to come."""

Record = dict[str, Any]


class RunFailed(Exception):
    """A job of a benchmark did not do what it had to; the message holds the end of its log."""


def environment(root: Path = ROOT) -> dict[str, str]:
    """The variables of every process of a benchmark: the packages of a checkout, Java, Redis."""
    read_ferry_env()
    paths = [*(str(root / folder) for folder in ("runtime", "operator", "bench/workloads")), str(root)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def job_document(name: str, pipeline: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A StreamJob document; `spec` are the fields beside the pipeline."""
    return {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name},
        "spec": {"pipeline": pipeline, **spec},
    }  # fmt: skip


class FerryJob:
    """One run of a job. Use as a context: nothing of it is left at the end."""

    def __init__(
        self,
        job: dict[str, Any] | Path,
        work: Path,
        events: int | None = None,
        at: Sequence[str] = (),
        sets: Sequence[str] = (),
        command: Sequence[str] = FERRY,
        root: Path = ROOT,
    ) -> None:
        """`work` is emptied; it gets the state (`run`), the output (`out`), and the log. `command` is that of `ferry`,
        `root` the checkout whose packages run."""
        self._root = root
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        self.work, self.directory, self.output, self.home = work, work / "run", work / "out", work / "home"
        if isinstance(job, Path):
            file = job
        else:
            file = work / "job.yaml"
            file.write_text(json.dumps(job, indent=1))  # JSON is YAML
        self.command = [*command, "run", str(file), "--set", f"state.directory={self.directory}", "--quiet"]
        self.command += ["--output", str(self.output)]
        self.command += [] if events is None else ["--events", str(events)]
        self.command += [word for text in at for word in ("--at", text)]
        self.command += [word for text in sets for word in ("--set", text)]
        self.records: list[Record] = []
        self._tail = TimelineTail(self.directory / "timeline.jsonl")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FerryJob:
        with open(self.work / "log", "wb") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self._root, env={**environment(self._root), "FERRY_HOME": str(self.home)},
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        if process.poll() is None:
            for number, seconds in ((signal.SIGINT, 20.0), (signal.SIGINT, 10.0), (signal.SIGKILL, 10.0)):
                process.send_signal(number)
                try:
                    process.wait(seconds)
                    break
                except subprocess.TimeoutExpired:
                    continue

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The `ferry run` process."""
        assert self._process is not None, "the job has not been started"
        return self._process

    # ---- what it did
    def poll(self) -> list[Record]:
        """Records of the timeline that are new since the last call."""
        new = self._tail.read()
        self.records += new
        return new

    def epochs(self) -> list[Record]:
        """Finished epochs so far."""
        return epochs_of(self.records)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
        """Read the timeline until `condition` holds; raises RunFailed when the job ends or time is over."""
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            self.poll()
            if condition():
                return
            if ended:
                raise RunFailed(f"the job ended (exit code {self.process.returncode}) before {what}\n{self.log_end()}")
            if time.monotonic() > deadline:
                raise RunFailed(f"no {what} within {seconds:g} s\n{self.log_end()}")
            time.sleep(0.01)

    def wait_epochs(self, more: int, seconds: float = 300.0) -> None:
        """Wait for this many epochs more."""
        target = len(self.epochs()) + more
        self.wait_for(lambda: len(self.epochs()) >= target, f"epoch {target}", seconds)

    def finish(self, seconds: float = 600.0, show: Callable[[list[Record]], None] | None = None) -> list[Record]:
        """Wait for the end of a bounded job; returns all records. Raises RunFailed unless it ended well."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            new = self.poll()
            if show is not None:
                show(new)
            if time.monotonic() > deadline:
                raise RunFailed(f"the job did not end within {seconds:g} s\n{self.log_end()}")
            time.sleep(0.02)
        new = self.poll()
        if show is not None:
            show(new)
        if self.process.returncode != 0:
            raise RunFailed(f"the job ended with exit code {self.process.returncode}\n{self.log_end()}")
        return self.records

    def log_end(self, lines: int = 15) -> str:
        """The last lines of what `ferry run` printed."""
        text = (self.work / "log").read_text(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in text[-lines:])

    # ---- what it is told
    def ask(self, method: str, path: str, document: Record | None = None) -> Record:
        """A request to the supervisor, as the `ferry` command makes it."""
        (entry,) = Registry(self.home).entries()
        return client.ask(entry, method, path, document)

    def scale(self, workers: int) -> None:
        """Change the number of workers."""
        self.ask("PATCH", "/spec", {"workers": workers})

    def kill(self, what: str) -> None:
        """End a worker or the driver without warning."""
        self.ask("POST", "/kill", {"what": what})

    def status(self) -> Record | None:
        """The driver's status, None while it does not answer."""
        return self.ask("GET", "/job")["status"]  # type: ignore[no-any-return]

    def groups(self) -> list[tuple[list[str], list[str]]]:
        """(in sync, learning) of each virtual node. Raises RunFailed when the driver does not say."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (status := self.status()) is None:
            if time.monotonic() > deadline:
                raise RunFailed("the driver does not answer")
            time.sleep(0.05)
        return status["groups"]  # type: ignore[no-any-return]

    def move_half(self, origin: str, target: str) -> None:
        """Ask for half of what one instance leads to go to another; does not wait."""
        led = [v for v, (in_sync, _) in enumerate(self.groups()) if in_sync[0] == origin]
        self.ask("POST", "/move", {"vnodes": led[: max(1, len(led) // 2)], "instance": target})


@contextmanager
def work_directory(name: str, keep: bool = False, below: Path = RESULTS) -> Iterator[Path]:
    """A directory for states and inputs of one benchmark; removed at the end."""
    path = below / f"work-{name}-{os.getpid()}"
    path.mkdir(parents=True, exist_ok=True)
    # A request to end goes the way of an error, so that no process and no file is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)
