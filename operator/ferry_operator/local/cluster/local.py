"""A cluster of processes on this machine: a worker is a sidecar with its instances, the driver is a separate process.

A method that observes has no side effect, and a method that acts is idempotent: to start a running process, or to stop an
ended one, is no error. It decides nothing. The state of worker K is in `workers/K` of the run's directory; the number of
its instances is in `workers/K/instances`, which the sidecar polls.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ferry.contract import limits, variables
from ferry.contract.errors import NO_TRANSPORT, Refusal
from ferry.contract.exit_codes import ExitCode
from ferry.contract.run_directory import DRIVER, INSTANCES, SYNCING, WORKERS
from ferry.contract.settings import RunSettings
from ferry.system import files
from ferry_operator.control.observed import Worker
from ferry_operator.local.cluster.private_redis import PrivateRedis
from ferry_operator.local.cluster.processes import ChildProcess, Processes, last_lines

YOUNG_SECONDS = 10.0
"""A worker that exits sooner than this after its start has failed; the next start waits longer."""

END_SECONDS = 4.0
"""A sidecar that does not end after SIGTERM is killed after this time, unless one of its instances syncs to the disk."""

STANDBY_SECONDS = 10.0
"""Least time between two starts of a standby that exits."""

REDIS_SECONDS = 1.0
"""Least time between two starts of Redis."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The commands of the driver and of a sidecar, without their arguments."""

    driver: tuple[str, ...] = (sys.executable, "-m", "ferry.driver")
    sidecar: tuple[str, ...] = (sys.executable, "-m", "ferry.sidecar")


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """The driver's process."""

    running: bool
    code: int | None = None
    """exit code of the last driver (negative: the signal); None: it has not ended"""
    starts: int = 0
    """number of started drivers"""


class LocalCluster:
    """The processes of one run."""

    def __init__(self, settings: RunSettings, processes: Processes, redis: PrivateRedis, programs: Programs) -> None:
        """`settings` are already written to run.json; Redis may still be starting."""
        self._settings = settings
        self._processes = processes
        self._redis = redis
        self._programs = programs
        self._run_json = str(settings.path / "run.json")
        self._workers: dict[int, ChildProcess] = {}
        self._failures: dict[int, int] = {}
        self._driver: ChildProcess | None = None
        self._driver_starts = 0
        self._standby: ChildProcess | None = None

    # ---- observe
    def workers(self) -> tuple[Worker, ...]:
        """Workers that run, and workers that are down and still have state; by index."""
        indexes = {int(path.name) for path in (self._settings.path / WORKERS).glob("[0-9]*") if path.name.isdigit()}
        return tuple(self._seen(index) for index in sorted(indexes | set(self._workers)))

    def _seen(self, index: int) -> Worker:
        process, now = self._workers.get(index), time.monotonic()
        if process is None:
            return Worker(index, self._wanted_instances(index), running=False, seconds=0.0)
        if process.code is None:
            return Worker(index, self._wanted_instances(index), running=True, seconds=now - process.started)
        assert process.ended is not None
        failed = not process.killed and process.ended - process.started < YOUNG_SECONDS
        failures = self._failures.get(index, 0) + 1 if failed else 0
        return Worker(
            index, self._wanted_instances(index), running=False, failures=failures, seconds=now - process.ended
        )

    def driver(self) -> DriverSeen:
        """The driver's process."""
        if self._driver is None:
            return DriverSeen(False)
        code = self._driver.code
        return DriverSeen(code is None, code, self._driver_starts)

    def driver_pid(self) -> int | None:
        """Process id of the running driver."""
        return self._driver.pid if self._driver is not None and self._driver.code is None else None

    def driver_was_killed(self) -> bool:
        """Whether the last driver was killed on purpose."""
        return self._driver is not None and self._driver.killed

    def why_driver_ended(self) -> str:
        """Why the last driver ended; empty if it runs, or was killed on purpose."""
        return _why(self._driver)

    def why_worker_ended(self, index: int) -> str:
        """Why a worker ended; empty if it runs, or was killed on purpose."""
        return _why(self._workers.get(index))

    def was_started(self, index: int) -> bool:
        """Whether this run has started the worker before."""
        return index in self._workers

    def worker_log(self, index: int) -> Path:
        """The output of a worker's sidecar."""
        return self._processes.log(_role(index))

    def without_transport(self, index: int) -> str | None:
        """The error of a worker that ended because no allowed transport works; None for other ends."""
        process = self._workers.get(index)
        if process is None or process.code != ExitCode.NO_TRANSPORT:
            return None
        words = [line for line in last_lines(self.worker_log(index)) if line.startswith(NO_TRANSPORT)]
        return words[-1] if words else f"{NO_TRANSPORT}see {self.worker_log(index)}"

    # ---- act
    def start_worker(self, index: int, instances: int) -> None:
        """Start a worker, with its earlier state if there is any."""
        seen = self._seen(index)
        if seen.running:
            return
        self._failures[index] = seen.failures
        old = self._workers.get(index)
        if old is not None:
            self._processes.kill(old)  # children of the dead sidecar must not keep its files open
        self._write_instances(index, instances)
        arguments = (self._run_json, "--worker", str(index), "--instances", str(instances))
        self._workers[index] = self._processes.start(_role(index), (*self._programs.sidecar, *arguments))

    def set_instances(self, index: int, instances: int) -> None:
        """Set the number of instances of a worker."""
        self._write_instances(index, instances)

    def stop_worker(self, index: int) -> None:
        """End a worker for good, and remove its state."""
        process = self._workers.pop(index, None)
        if process is not None:
            self._processes.end(process, END_SECONDS)
        self._failures.pop(index, None)
        shutil.rmtree(self._settings.worker_path(index), ignore_errors=True)

    def start_driver(self) -> None:
        """Start the driver."""
        old = self._driver
        if old is not None and old.code is None:
            return
        (self._settings.path / DRIVER).unlink(missing_ok=True)
        self._driver_starts += 1
        self._driver = self._promoted_standby()
        if old is not None:
            self._processes.kill(old)  # its children; a standby does not have to wait for them
        if self._driver is None:
            self._driver = self._processes.start("driver", (*self._programs.driver, self._run_json))

    def _promoted_standby(self) -> ChildProcess | None:
        """Make the standby the driver; None if there is no standby."""
        standby, self._standby = self._standby, None
        if standby is None or standby.code is not None:
            return None
        assert standby.popen.stdin is not None
        try:
            standby.popen.stdin.write(b"go\n")
            standby.popen.stdin.flush()
        except OSError:
            return None
        return standby

    def keep_standby(self) -> None:
        """Start a second driver that waits for the end of the first, unless there is one."""
        old = self._standby
        if old is not None:
            if old.code is None or time.monotonic() - old.started < STANDBY_SECONDS:
                return
            self._processes.kill(old)
        command = (*self._programs.driver, self._run_json)
        role = f"driver-{self._driver_starts}"
        self._standby = self._processes.start(role, command, "driver", {variables.STANDBY: "yes"})

    def kill_worker(self, index: int) -> None:
        """Kill all processes of a worker. Raises Refusal if the worker is not running."""
        process = self._workers.get(index)
        if process is None or process.code is not None:
            raise Refusal(f"worker {index} is not running")
        self._processes.kill(process)

    def kill_instance(self, index: int, instance: int) -> None:
        """Kill one instance. Raises Refusal if it is not running."""
        try:
            pid = int((self._settings.worker_path(index) / str(instance) / "pid").read_text())
        except (OSError, ValueError):
            raise Refusal(f"instance {index}.{instance} has written no pid: it is not running") from None
        if not self._processes.belongs(pid, _role(index)):
            raise Refusal(f"instance {index}.{instance} is not running")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def kill_driver(self) -> None:
        """Kill the driver and its children. Raises Refusal if the driver is not running."""
        if self._driver is None or self._driver.code is not None:
            raise Refusal("the driver is not running")
        self._processes.strike(self._driver)

    def end_driver(self) -> None:
        """Kill the driver and its children; the driver may have ended already."""
        if self._driver is not None:
            self._processes.kill(self._driver)

    def keep_redis(self) -> str | None:
        """Start Redis again if it has ended. Returns why it ended, or None."""
        if self._redis.running or time.monotonic() - self._redis.started < REDIS_SECONDS:
            return None
        why = self._redis.why_ended
        self._redis.start()
        return why

    def close(self) -> None:
        """End all processes, the driver first, because it uses all others. Returns when no process is left."""
        if self._standby is not None:
            self._processes.kill(self._standby)
        self.end_driver()
        for process in self._workers.values():
            if process.code is None:
                process.killed = True
                process.popen.terminate()
        began = time.monotonic()
        for index, process in self._workers.items():
            while process.code is None and time.monotonic() - began < self._patience(index):
                time.sleep(0.02)
            self._processes.kill(process)
        self._redis.close()
        self._processes.close()

    def _patience(self, index: int) -> float:
        """Seconds that a worker has to end: more while one of its instances syncs to the disk."""
        syncing = any(self._settings.worker_path(index).glob(f"*/{SYNCING}"))
        return END_SECONDS + limits.SYNC_SECONDS if syncing else END_SECONDS

    def _wanted_instances(self, index: int) -> int:
        try:
            return int((self._settings.worker_path(index) / INSTANCES).read_text())
        except (OSError, ValueError):
            return 0

    def _write_instances(self, index: int, instances: int) -> None:
        directory = self._settings.worker_path(index)
        directory.mkdir(parents=True, exist_ok=True)
        with files.replacing(directory / INSTANCES) as new:
            new.write_text(f"{instances}\n")


def _why(process: ChildProcess | None) -> str:
    return "" if process is None or process.code is None or process.killed else process.why_ended


def _role(index: int) -> str:
    return f"worker-{index}"
