"""The parent of a sidecar: heartbeats and supervision, so that a long computation never looks like death.

Starts `instances` children, restarts one that died (it comes back to its own files), follows the file
`workers/K/instances` (or another given one) when vertical scaling changes their number. First of all it claims the
worker: when the worker is started elsewhere, this parent ends with its children. It must never touch state or channels.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import prometheus_client as prom

from ferry.contract import limits
from ferry.contract.backoff import back_off
from ferry.contract.errors import Superseded, Unreachable
from ferry.contract.exit_codes import ExitCode
from ferry.contract.names import InstanceId
from ferry.contract.places import life_of
from ferry.contract.run_directory import INSTANCES, SYNCING
from ferry.contract.settings import RunSettings
from ferry.contract.signs import Pulse
from ferry.contract.timeline import append_record
from ferry.environment import Environment
from ferry.registry import Claim, JobRegistry
from ferry.sidecar import ALIVE, REASON, STARTED, forks
from ferry.sidecar.instance import live
from ferry.sidecar.metrics import InstanceLife, InstancesCollector
from ferry.sidecar.signs import write_end
from ferry.sidecar.watchdog import Watchdog, cpu_seconds, is_stopped
from ferry.system.monitoring import MonitoringServer

log = logging.getLogger("ferry.sidecar")

RESTART_SECONDS, RESTART_SECONDS_MAX = 0.05, 5.0

CLAIM_SECONDS = 0.2
"""Interval of attempts to claim the worker while Redis is unreachable."""

END_SECONDS = 3.0
"""Children that are told to end leave within `node.LEAVE_SECONDS`; after this only children that wait for the disk
stay."""

STEADY_SECONDS = 10.0
"""An instance that lived this long is restarted at once."""


class Parent:
    """Supervises the instances of one worker until SIGTERM."""

    def __init__(self, settings: RunSettings, run_json: str, worker: int, instances: int, env: Environment) -> None:
        self._settings = settings
        self._run_json = run_json
        self._worker = worker
        self._wanted = instances
        self._dir = settings.worker_path(worker)
        self._wanted_file = env.instances_file or self._dir / INSTANCES
        self._children: dict[int, BaseProcess] = {}
        self._watchdogs: dict[int, Watchdog] = {}
        self._failures: dict[int, int] = {}
        self._retry_at: dict[int, float] = {}
        self._started: dict[int, float] = {}
        self._lives: dict[int, InstanceLife] = {}
        self._env = env
        self._stop = False
        self._code = 0
        self._job_registry = JobRegistry(settings.run, settings.redis, settings.secret, patience_seconds=1.0)
        self._place = env.place or secrets.token_hex(8)
        self._claimed: Claim | None = None
        """None until this parent has claimed the worker."""
        self._starts = 0
        self._preloaded = threading.Event()
        """forks are fast"""

    def run(self) -> int:
        """Supervise until SIGTERM, or until no instance has a usable transport; kills the children then."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._dir.mkdir(parents=True, exist_ok=True)
        (self._dir / STARTED).unlink(missing_ok=True)
        (self._dir / "pid").write_text(str(os.getpid()))
        forks.when_loaded(self._preloaded.set)
        self._serve_metrics()
        beat_at = read_at = claim_at = 0.0
        while not self._stop:
            now = time.monotonic()
            if now >= read_at:
                self._read_wanted()
                read_at = now + 1.0
            if self._claimed is not None:
                self._supervise(now)
                if now >= beat_at:
                    self._reach(self._beat)
                    beat_at = now + self._settings.heartbeat_ms / 1000
            elif now >= claim_at:
                self._reach(self._claim)
                claim_at = now + CLAIM_SECONDS
            time.sleep(0.05)
        for child in self._children.values():
            child.terminate()
        until = time.monotonic() + END_SECONDS
        for index, child in self._children.items():
            self._end(index, child, until)
        return self._code

    def _end(self, index: int, child: BaseProcess, until: float) -> None:
        """Wait for a child that was told to end: until then, or as long as the disk may take."""
        for seconds in (until - time.monotonic(), limits.SYNC_SECONDS):
            child.join(max(seconds, 0.0))
            if child.exitcode is not None:
                return
            if not (self._dir / str(index) / SYNCING).exists():
                break
        log.error("instance %d.%d did not end in time: killed", self._worker, index)
        child.kill()

    def _serve_metrics(self) -> None:
        around = self._env
        if around.metrics_token is not None:
            registry = prom.CollectorRegistry()
            # An atomic copy: the scrape is on another thread.
            registry.register(InstancesCollector(self._worker, self._dir, lambda: dict(self._lives)))
            MonitoringServer(registry, (around.address, around.metrics_port), around.metrics_token)

    def _on_term(self, *_: object) -> None:
        self._stop = True

    def _read_wanted(self) -> None:
        if self._wanted_file.exists() and (text := self._wanted_file.read_text().strip()).isdigit():
            self._wanted = int(text)

    def _supervise(self, now: float) -> None:
        for index, child in list(self._children.items()):
            if child.exitcode is not None:
                del self._children[index]
                self._lives[index].up = False
                delay = self._delay(index, now)
                write_end(self._dir / str(index), child.exitcode)
                if child.exitcode == ExitCode.NO_TRANSPORT and not self._any_steady(now):
                    self._stop, self._code = (
                        True,
                        ExitCode.NO_TRANSPORT,
                    )  # the child's last words must stay the last line
                    return
                self._report(index, child.exitcode, delay)
            elif index >= self._wanted:
                child.terminate()
            elif self._watchdogs[index].hangs(now):
                log.error("instance %d.%d hangs for %.0f s: killed", self._worker, index, limits.HANG_SECONDS)
                child.kill()
        for index in range(self._wanted if self._preloaded.is_set() else 0):
            if index not in self._children and now >= self._retry_at.get(index, 0.0):
                self._start(index)

    def _report(self, index: int, code: int, delay: float) -> None:
        """Report why an instance ended; on one machine also in the timeline."""
        try:
            why = (self._dir / str(index) / REASON).read_text("utf-8")
        except OSError:
            why = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        log.warning("instance %d.%d ended: %s; again in %.2f s", self._worker, index, why, delay)
        if code and not self._env.host:
            record = {"kind": "ended", "t": time.time(), "process": f"instance {self._worker}.{index}", "text": why}
            with suppress(OSError):  # the disk may be full
                append_record(self._settings.directory, record)

    def _delay(self, index: int, now: float) -> float:
        """Seconds until an instance that ended may be restarted."""
        steady = now - self._started[index] > STEADY_SECONDS
        self._failures[index] = 1 if steady else self._failures.get(index, 0) + 1
        delay = back_off(self._failures[index], RESTART_SECONDS, RESTART_SECONDS_MAX)
        self._retry_at[index] = now + delay
        return delay

    def _any_steady(self, now: float) -> bool:
        return any(now - self._started[index] > STEADY_SECONDS for index in self._children)

    def _start(self, index: int) -> None:
        directory = self._dir / str(index)
        directory.mkdir(parents=True, exist_ok=True)
        for name in (ALIVE, SYNCING, REASON):
            (directory / name).unlink(missing_ok=True)
        child, now = self._process(index), time.monotonic()
        try:
            child.start()
        except (OSError, EOFError) as error:
            # The fork server was killed: the next start begins a new one.
            log.error("instance %d.%d could not be started: %r", self._worker, index, error)
            self._started[index] = now
            self._delay(index, now)
            return
        self._children[index] = child
        pid = child.pid or 0
        self._watchdogs[index] = Watchdog(directory / ALIVE, partial(cpu_seconds, pid), partial(is_stopped, pid))
        life = self._lives.setdefault(index, InstanceLife(restarts=-1))
        life.up, life.restarts = True, life.restarts + 1
        self._started[index] = now
        Path(directory / "pid").write_text(str(child.pid))

    def _process(self, index: int) -> BaseProcess:
        """The process of a new life of an instance."""
        assert self._claimed is not None
        self._starts += 1
        life = life_of(self._claimed.life, self._starts)
        return forks.fork(live, self._run_json, self._worker, index, life)

    def _claim(self) -> None:
        self._claimed = self._job_registry.claim(self._worker, self._place)

    def _beat(self) -> None:
        assert self._claimed is not None
        now = time.monotonic()
        seen = [(i, dog.in_code(now)) for i, dog in self._watchdogs.items() if i in self._children]
        pulses = [Pulse(InstanceId(f"{self._worker}.{i}"), one[1], *one) for i, one in seen if one is not None]
        self._job_registry.beat(self._worker, self._claimed, self._settings.timeout_ms, pulses)
        (self._dir / STARTED).touch()

    def _reach(self, act: Callable[[], None]) -> None:
        """Call the registry; its refusal, when the worker is elsewhere, ends this parent and its children."""
        try:
            act()
        except Unreachable as error:
            log.debug("%s", error)
        except Superseded as error:
            log.critical("the sidecar ends: %s", error)
            for child in self._children.values():
                child.kill()
            self._stop, self._code = True, ExitCode.SUPERSEDED
