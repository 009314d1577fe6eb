"""`ferry.run`: a job on this machine, from a script, a notebook or a test.

The run is a process of the command `ferry run`, with all of its output, and the handle asks it by the command, too: a run
that Python began and one that a terminal began are the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ferry.contract.errors import FerryError, SpecRefused

_COMMAND = (sys.executable, "-m", "ferry_operator.cli")
_MARK = "_ferry-life"
"""File in the folder of a sink."""


class RunFailed(FerryError):
    """A run has ended badly, or was asked what it cannot answer; the message is that of the `ferry` command.

    Example:
        >>> try:
        ...     ferry.run("sales.py", output="out").wait()
        ... except (ferry.RunFailed, ferry.SpecRefused) as error:
        ...     print(error)
        ferry.run: .../sales.py does not exist
    """


class Run:
    """A job that runs on this machine. As a context manager it is stopped at the end of the block, if it still runs.

    Attributes:
        name: of the job.
        output: the folder in which its file sinks write.
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
        """The run has not ended."""
        return self._process.poll() is None

    def status(self) -> dict[str, Any]:
        """Phase, workers, moves, epochs and watermark, as `ferry status --json` has them. Raises RunFailed."""
        found: dict[str, Any] = json.loads(self._ask("status", self.name, "--json"))
        return found

    def scale(self, workers: int | None = None, instances: int | None = None) -> None:
        """Change the number of workers, or of instances of each worker, while the job runs. Raises RunFailed."""
        sizes = {"--workers": workers, "--instances": instances}
        self._ask("scale", self.name, *(str(one) for pair in sizes.items() if pair[1] is not None for one in pair))

    def stop(self) -> dict[str, Any]:
        """End the run, and wait for its end: the summary. A job without an end ends in no other way. Raises RunFailed."""
        if self.running:
            self._ask("stop", self.name)
        return self.wait()

    def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Until the run has ended: the summary of `ferry run --json`.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
            RunFailed: it ended badly, for the reason in the message.
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
        """The rows that a `ferry.parquet` sink has written so far, of all complete epochs. No order is promised.

        Parameters:
            sink: the folder that the sink was given; None: there is only one.
        Raises: SpecRefused, where there is no such sink, or several and none is named.
        """
        there = sorted(path.parent.relative_to(self.output).as_posix() for path in self.output.rglob(_MARK))
        chosen = [one for one in there if sink is None or one == sink]
        if len(chosen) != 1:
            known = ", ".join(there) or "none has written yet"
            raise SpecRefused(
                f"result({'' if sink is None else repr(sink)}) of {self.name}: name one sink; there are: {known}"
            )
        epochs = sorted((self.output / chosen[0]).glob("epoch=*/*.parquet"))
        tables = [pq.read_table(file, partitioning=None) for file in epochs]
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _pass_on(self) -> None:
        """Standard error of the process, to that of Python's, which in a notebook is another one."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()

    def _ask(self, *arguments: str) -> str:
        ran = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
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
    """Begin to run a job on this machine, and return at once; progress goes to standard error, as with `ferry run`.

    A program must stand in a file, for processes of Spark load it: a notebook writes it with `%%writefile`.

    Parameters:
        job: a job file (`sales.yaml`), or a program (`sales.py`) with `sources` and `pipeline`.
        args: what `sources` and `pipeline` get; beside those of the job file.
        output: the folder for file sinks.
        workers: processes with state.
        name: of a program's job; None: the name of its file.
        sets: further fields below `spec`, as {"state.replicas": 1}.
        quiet: without progress.
    Returns: a handle.
    Raises: SpecRefused, where there is no such file. What else is wrong is told by `Run.wait`.

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
        raise SpecRefused(f"ferry.run: a name is for a program; {file} has its own")
    else:
        import yaml

        written, name = file, str(yaml.safe_load(file.read_text())["metadata"]["name"])
    sets_given = [part for key, value in fields.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [
        *_COMMAND,
        "run",
        str(written),
        "--output",
        str(output),
        "--json",
        *sets_given,
        *(["--quiet"] if quiet else []),
    ]
    with (Path(folder.name) / "summary").open("wb") as summary:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=summary, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    return Run(name, Path(output).absolute(), process, folder)


def _summary(folder: Path) -> dict[str, Any]:
    """What the run has printed; empty, where it ended before it could."""
    text = (folder / "summary").read_text()
    found: dict[str, Any] = json.loads(text) if text.strip() else {}
    return found
