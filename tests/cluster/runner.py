"""Runs jobs with the `ferry` command, as a user does, and compares what they wrote with the oracle.

Nothing of Ferry is imported: what is tested is the command, its processes and its files. It asserts nothing itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster import queries
from tests.cluster.wires import INSTANCE, THROUGH, Wires
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 400.0

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@dataclass
class Result:
    """What a run has left."""

    code: int
    output: Path
    directory: Path | None
    summary: dict[str, Any]
    errors: str
    """standard error"""
    records: list[dict[str, Any]]
    """the timeline"""
    left: list[str]
    """processes that outlived the run"""
    seconds: float

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        """Timeline records of one kind."""
        return [r for r in self.records if r["kind"] == kind]

    def changes(self, what: str) -> int:
        """How often members changed in this way: joined, in-sync, switched, promoted, removed, cleaned, ..."""
        return sum(1 for r in self.kinds("groups") for c in r["changes"] if c[1] == what)

    def story(self, lines: int = 40) -> str:
        """The end of what it printed, for a failed assertion."""
        end = "\n".join(self.errors.splitlines()[-lines:])
        return f"exit code {self.code} after {self.seconds:.0f} s, files {self.directory}, left {self.left}\n{end}"


@dataclass
class Running:
    """A run that is under way."""

    home: Path
    output: Path
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)

    @property
    def directory(self) -> Path | None:
        """Directory of the run, once it has one."""
        for entry in sorted((self.home / "registry").glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                return Path(json.loads(entry.read_text())["directory"])
        return None

    def records(self) -> list[dict[str, Any]]:
        """The timeline so far."""
        return read_timeline(self.directory)

    def await_epoch(self, epoch: int, seconds: float = 120.0) -> None:
        """Return when this epoch is finished; raises TimeoutError."""
        self.await_that(
            lambda: any(r["kind"] == "epoch" and r["epoch"] >= epoch for r in self.records()), f"epoch {epoch}", seconds
        )

    def await_that(self, true: Callable[[], bool], what: str, seconds: float) -> None:
        """Return when `true` is, or the run has ended; raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE * seconds
        while not true() and self.process.poll() is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no {what} after {PATIENCE * seconds:g} s")
            time.sleep(0.05)

    def pids(self, role: str) -> list[int]:
        """Processes of a role: redis, driver, worker-0, ..."""
        if role == "redis":
            # Its title is written over its environment, as far as it is long: only the socket's name is sure.
            assert self.directory is not None
            socket = json.loads((self.directory / "run.json").read_text())["redis"].removeprefix("unix://")
            return [p.pid for p in psutil.process_iter() if any(socket in part for part in _command(p))]
        return [p.pid for p in processes_of(self.home) if (_tag(p) or "").endswith(f"/{role}")]

    def instance(self, name: str) -> int:
        """Process of an instance "K.I", without its parent."""
        for pid in self.pids(f"worker-{name.split('.')[0]}"):
            with contextlib.suppress(psutil.Error):
                if psutil.Process(pid).name() == f"{INSTANCE}{name}":
                    return pid
        raise AssertionError(f"no process of instance {name}")

    def signal(self, role: str, number: int) -> None:
        """Send a signal to all processes of a role."""
        found = self.pids(role)
        assert found or number == signal.SIGCONT, f"no process of role {role}"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def start(
    job: Path,
    base: Path,
    events: int | None = None,
    sets: Sequence[str] = (),
    at: Sequence[str] = (),
    wires: Wires | None = None,
) -> Running:
    """Start `ferry run` with a home and an output of its own below `base`; instances reach each other over `wires`."""
    home, output = base / "home", base / "out"
    home.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "ferry_operator.cli",
        "run",
        str(job),
        "--json",
        "--keep",
        "--output",
        str(output),
    ]
    command += [] if events is None else ["--events", str(events)]
    for one in sets:
        command += ["--set", one]
    for one in at:
        command += ["--at", one]
    environment = {**os.environ, "FERRY_HOME": str(home), "PYTHONPATH": f"{ROOT / 'runtime'}:{ROOT / 'operator'}"}
    if wires is not None:
        environment |= {**wires.variables, "PYTHONPATH": f"{THROUGH}:{environment['PYTHONPATH']}"}
    with open(base / "stdout", "w") as out, open(base / "stderr", "w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, text=True, env=environment, cwd=base)
    return Running(home, output, process)


def finish(running: Running, timeout: float = TIMEOUT_SECONDS) -> Result:
    """Wait for the end; a run that takes longer is interrupted, and its code is not 0 then."""
    base = running.home.parent
    try:
        code = running.process.wait(PATIENCE * timeout)
    except subprocess.TimeoutExpired:
        dump_threads(running)
        end(running)
        code = -1000
    except BaseException:
        end(running)
        raise
    seconds = time.monotonic() - running.began
    left = [f"{p.pid} {' '.join(p.cmdline())[:100]}" for p in settle(running.home)]
    try:
        summary = json.loads((base / "stdout").read_text() or "{}")
    except ValueError:
        summary = {}
    where = summary.get("directory")
    directory = Path(where) if where else next(iter(sorted((running.home / "runs").glob("*"))), None)
    errors = (base / "stderr").read_text()
    return Result(code, running.output, directory, summary, errors, read_timeline(directory), left, seconds)


def end(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.process.wait(30)
    running.process.kill()


def ask(running: Running, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """A request to the supervisor, as the `ferry` command makes it."""
    entry = json.loads(next((running.home / "registry").glob("*.json")).read_text())
    headers = {"Authorization": f"Bearer {entry['token']}", "Content-Type": "application/json"}
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(entry["url"] + path, body, headers, method=method)
    trusted = ssl.create_default_context(cadata=entry["authority"])
    trusted.check_hostname = False  # certificates of a run name no addresses
    with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
        found: dict[str, Any] = json.loads(answer.read() or b"{}")
    return found


def stop(running: Running) -> None:
    """What `ferry stop` asks for: the run ends after the epoch under way."""
    ask(running, "POST", "/stop", {})


def run(
    job: Path | str,
    base: Path,
    events: int | None = None,
    sets: Sequence[str] = (),
    at: Sequence[str] = (),
    meanwhile: Callable[[Running], None] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    wires: Wires | None = None,
) -> Result:
    """One run from start to end; `meanwhile` is called while it runs. `job`: a file, or a name of `examples/`."""
    file = job if isinstance(job, Path) else ROOT / "examples" / f"{job}.yaml"
    running = start(file, base, events, sets, at, wires)
    if meanwhile is not None:
        try:
            meanwhile(running)
        except BaseException:
            end(running)
            raise
    return finish(running, timeout)


def difference(query: str, events: int, args: dict[str, Any], output: Path, work: Path) -> tuple[list[Any], list[Any]]:
    """(rows missing, rows not expected) of a run of `query` with these pipeline arguments, as the oracle sees it."""
    data, rows = work / "oracle", work / "expected.parquet"
    queries.generate_input(queries.workload_of(query), events, args, data)
    con, text = queries.expected(query, data, args)
    queries.write(con, text, str(rows))
    found = queries.rows_of(query, output)
    if not found:
        return con.execute(text).fetchall(), []
    actual = work / "actual.parquet"
    queries.write(con, f"SELECT * FROM read_parquet({found})", str(actual))
    missing, extra = queries.compare(str(rows), str(actual))
    shutil.rmtree(data)
    return missing, extra


def manifests(location: Path) -> list[int]:
    """Numbers of the checkpoints there, the oldest first."""
    return sorted(int(path.name.split("-")[0]) for path in location.glob("*/manifests/*.json"))


def lose_everything(running: Running) -> None:
    """All processes at once, and all their files; the output and checkpoints stay."""
    running.process.kill()
    redis = running.pids("redis") if running.directory is not None else []
    for pid in [*(process.pid for process in processes_of(running.home)), *redis]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.process.wait()
    for process in settle(running.home):
        process.kill()
    shutil.rmtree(running.home, ignore_errors=True)


@contextlib.contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size ("80m") at `folder`; raises PermissionError without the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True).returncode:
        raise PermissionError("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder])


def fill(folder: Path) -> Path:
    """Fill the file system of `folder` up to its last megabyte; the file to remove for room."""
    ballast = folder / "ballast"
    with open(ballast, "wb") as file:
        while True:
            try:
                os.posix_fallocate(file.fileno(), 0, max(shutil.disk_usage(folder).free - (1 << 20), 1))
                return ballast
            except OSError as error:  # who fills it, too, was quicker
                if error.errno != errno.ENOSPC:
                    raise


def swap(one: Path, other: Path) -> None:
    """Two files or folders change their names, at one moment. Raises FileNotFoundError."""
    code = ctypes.CDLL(None, use_errno=True).renameat2(-100, bytes(one), -100, bytes(other), 2)
    if code:
        raise OSError(number := ctypes.get_errno(), os.strerror(number), str(one))


def sets_of(args: dict[str, Any]) -> list[str]:
    """`--set` values for pipeline arguments."""
    return [f"pipeline.args.{name}={value}" for name, value in args.items()]


def read_timeline(directory: Path | None) -> list[dict[str, Any]]:
    """All whole records of a run's timeline."""
    records = []
    with contextlib.suppress(OSError):
        for line in ((directory or Path("/nonexistent")) / "timeline.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
    return records


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.name().startswith(("valkey-server", "redis-server")) else []
    except psutil.Error:
        return []


def processes_of(home: Path) -> Iterator[psutil.Process]:
    """Processes that run with this FERRY_HOME; the command itself and zombies apart."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("FERRY_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def settle(home: Path, seconds: float = 3.0) -> list[psutil.Process]:
    """What still runs with this home after a moment; ends it."""
    deadline = time.monotonic() + seconds
    while (left := list(processes_of(home))) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.cmdline()
            found.append(process)
    return found


def dump_threads(running: Running) -> None:
    """Have the driver and the instances write where their threads are to their logs (faulthandler on SIGUSR1)."""
    with contextlib.suppress(OSError):
        for process in processes_of(running.home):
            with contextlib.suppress(psutil.Error, IndexError):
                if "ferry.driver" in process.cmdline() or process.name().startswith(INSTANCE):
                    process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)


def _tag(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get("FERRY_PROCESS_TAG")
    return None
