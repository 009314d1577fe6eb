"""`ferry.run`: a job on this machine, from a script, a notebook or a test.

The run is a process of the command `ferry run`, with the same output. The handle uses the commands of `ferry`, too, so a run
from Python is the same as a run from a terminal.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.contract.errors import FerryError, SpecRefused

_COMMAND = (sys.executable, "-m", "ferry_operator.cli")
_NO_SUCH_JOB = 4
"""Exit code of a command: `ferry run` has not listed the run yet, or the run has ended."""
_LOOK_SECONDS = 0.2
"""Pause between two tries of a command, until the run is listed."""
_MARK = "_ferry-life"
"""A file in the folder of every parquet sink."""


class RunFailed(FerryError):
    """A run has failed, or a request to a run has failed. The message is the message of the `ferry` command.

    Example:
        >>> try:
        ...     ferry.run("sales.py", output="out").wait()
        ... except (ferry.RunFailed, ferry.SpecRefused) as error:
        ...     print(error)
        ferry.run: .../sales.py does not exist
    """


class Run:
    """A job on this machine. As a context manager it stops a running job at the end of the block.

    Attributes:
        name: name of the job.
        output: parent of the folders of its file sinks.
    """

    def __init__(self, name: str, output: Path, process: subprocess.Popen[str], folder: Any) -> None:
        self.name = name
        self.output = output
        self._process = process
        self._folder = folder
        self._summary: dict[str, Any] | None = None
        self._last_lines: deque[str] = deque(maxlen=20)
        self._listener = threading.Thread(target=self._pass_on, name=f"run of {name}", daemon=True)
        self._listener.start()

    def __repr__(self) -> str:
        return f"<run of {self.name}, {'running' if self.running else 'ended'}, output {self.output}>"

    @property
    def running(self) -> bool:
        """Whether the run has not ended."""
        return self._process.poll() is None

    def status(self) -> dict[str, Any]:
        """Phase, workers, moves, epochs and watermark, as in `ferry status --json`. Raises RunFailed."""
        status: dict[str, Any] = json.loads(self._command("status", self.name, "--json"))
        return status

    def scale(self, workers: int | None = None, instances: int | None = None) -> None:
        """Change the number of workers, or of instances per worker, of the running job. Raises RunFailed."""
        sizes = {"--workers": workers, "--instances": instances}
        options = [part for option, size in sizes.items() if size is not None for part in (option, str(size))]
        self._command("scale", self.name, *options)

    def stop(self) -> dict[str, Any]:
        """Stop the run and wait for its end. Returns the summary. Needed for an endless input. Raises RunFailed."""
        if self.running:
            self._command("stop", self.name)
        return self.wait()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end of the run. Returns the summary of `ferry run --json`.

        Parameters:
            timeout: longest wait in seconds. None: no limit.
        Raises:
            TimeoutError: the run has not ended within `timeout`.
            RunFailed: the run has failed; the message has the reason.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} has not ended within {timeout:g} s") from None
        self._listener.join()
        if self._summary is None:
            self._summary = _summary(Path(self._folder.name))
            self._folder.cleanup()
        if code:
            last = self._last_lines[-1].strip() if self._last_lines else f"exit code {code}"
            raise RunFailed(f"{self.name}: {self._summary.get('reason') or last.removeprefix('ferry: ')}")
        return self._summary

    def result(self, sink: str | None = None) -> pa.Table:
        """The rows of all published epochs of a `ferry.parquet` sink, without a defined order.

        Parameters:
            sink: the folder of the sink. None: the only sink.
        Returns: an Arrow table.
        Raises: SpecRefused, if the sink has not begun, or if `sink` is None and there are several sinks.
        """
        there = sorted(path.parent.relative_to(self.output).as_posix() for path in self.output.rglob(_MARK))
        chosen = [folder for folder in there if sink is None or folder == sink]
        if len(chosen) != 1:
            result = f"result({'' if sink is None else repr(sink)}) of {self.name}"
            if not there:
                raise SpecRefused(f"{result}: no parquet sink has begun yet")
            raise SpecRefused(f"{result}: name one sink; there are: {', '.join(there)}")
        epochs = sorted((self.output / chosen[0]).glob("epoch=*/*.parquet"))
        tables = [pq.read_table(file, partitioning=None) for file in epochs]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _pass_on(self) -> None:
        """Copy the process's standard error to Python's `sys.stderr`, which a notebook replaces."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()

    def _command(self, *arguments: str) -> str:
        """The output of a command, about a run on this machine only: a job on a cluster may have the same name.

        In its first seconds the run is not listed yet: the command waits.
        """
        env = {**os.environ, "KUBECONFIG": os.devnull}
        while True:
            ran = subprocess.run(
                [*_COMMAND, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
            )
            if ran.returncode != _NO_SUCH_JOB or not self.running:
                break
            time.sleep(_LOOK_SECONDS)
        if ran.returncode:
            raise RunFailed(ran.stderr.strip().removeprefix("ferry: "))
        return ran.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running and error is None:
            self.stop()
        elif self.running:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()


def run(
    job: str | Path,
    *,
    args: Mapping[str, Any] | None = None,
    output: str | Path,
    workers: int | None = None,
    name: str | None = None,
    sets: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Run:
    """Start a job on this machine and return at once. Progress goes to standard error, as with `ferry run`.

    A program must be a file, because Spark's processes import it. A notebook writes it with `%%writefile`.

    Parameters:
        job: a job file (`sales.yaml`), or a program (`sales.py`) with `sources` and `pipeline`.
        args: arguments for `sources` and `pipeline`, in addition to the job file's.
        output: parent of the folders of file sinks.
        workers: number of worker processes, which hold the state. None: as in the job file, or the default.
        name: name of a program's job. None: the name of its file.
        sets: further fields of `spec`, such as {"state.replicas": 1}.
        quiet: True: no progress.
    Returns: a handle of the run.
    Raises: SpecRefused, if the file does not exist, or `name` is used with a job file. `Run.wait` raises all other errors.
    Example:
        >>> run = ferry.run("sales.py", args={"directory": "orders"}, output="out")  # and then run.wait(timeout=120)
        Traceback (most recent call last):
        ferry.contract.errors.SpecRefused: ferry.run: .../sales.py does not exist
    """
    file = Path(job).absolute()
    if not file.is_file():
        raise SpecRefused(f"ferry.run: {file} does not exist")
    folder = tempfile.TemporaryDirectory(prefix="ferry-run-")
    fields = {**{f"pipeline.args.{key}": value for key, value in (args or {}).items()}, **(sets or {})}
    fields |= {} if workers is None else {"workers": workers}
    if file.suffix == ".py":
        name = name or re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")
        document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": name}}
        written = Path(folder.name) / "job.yaml"
        written.write_text(json.dumps({**document, "spec": {"pipeline": {"file": str(file)}}}))
    elif name is not None:
        raise SpecRefused(f"ferry.run: name= works with a program; the job file {file} has a name")
    else:
        import yaml

        written, name = file, str(yaml.safe_load(file.read_text())["metadata"]["name"])
    settings = [part for key, value in fields.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [
        *_COMMAND,
        "run",
        str(written),
        "--output",
        str(output),
        "--json",
        *settings,
        *(["--quiet"] if quiet else []),
    ]
    with (Path(folder.name) / "summary").open("wb") as summary:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=summary, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    return Run(name, Path(output).absolute(), process, folder)


def _summary(folder: Path) -> dict[str, Any]:
    """The summary that the run has printed. Empty if the run ended before."""
    text = (folder / "summary").read_text()
    summary: dict[str, Any] = json.loads(text) if text.strip() else {}
    return summary
