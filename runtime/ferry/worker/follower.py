"""Runs one worker of Spark at the driver that the registry names; starts a new one when either changes.

Must never decide which driver is the right one, nor hold state that a successor would need.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

from ferry import environment
from ferry.contract.backoff import back_off
from ferry.contract.errors import Unreachable
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.environment import Environment
from ferry.registry import JobRegistry
from ferry.system.parent import die_with_parent
from ferry.worker.launch import LOGGING, Files, command, configuration, variables
from ferry.worker.tail import LogTail

log = logging.getLogger("ferry.worker")

LOOK_SECONDS = 0.2
RESTART_SECONDS, RESTART_SECONDS_MAX = 0.2, 5.0

STEADY_SECONDS = 30.0
"""A worker that ran this long is restarted at once."""


class Follower:
    """One worker's place for tasks."""

    def __init__(self, settings: RunSettings, worker: int, env: Environment) -> None:
        self._settings = settings
        self._worker = worker
        self._env = env
        self._files = Files(settings.path / "executors" / str(worker))
        self._registry = JobRegistry(settings.run, settings.redis, settings.secret, patience_seconds=1.0)
        self._driver: DriverPlace | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tail = LogTail(self._files.work, say)
        self._started = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._stop = False

    def run(self) -> int:
        """Follow until SIGTERM, then kill the worker: its tasks are retried elsewhere."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._files.directory.mkdir(parents=True, exist_ok=True)
        self._files.configuration.write_text(configuration(self._settings))
        self._files.logging.write_text(LOGGING)
        while not self._stop:
            self.look(time.monotonic())
            time.sleep(LOOK_SECONDS)
        self._kill()
        return 0

    def look(self, now: float) -> None:
        """Start, restart or stop Spark's worker as needed; pass on executors' output."""
        if self._process is not None:
            self._tail.look()
        with suppress(Unreachable):  # Redis is unreachable: the known driver stays
            driver = self._registry.driver()
            if driver is not None and self._is_news(driver):
                log.info("follows the driver of generation %d at %s", driver.generation, driver.spark)
                self._kill()
                self._driver, self._failures, self._not_before = driver, 0, 0.0
        if self._process is not None and self._process.poll() is not None:
            self._ended(now, self._process.returncode)
        if self._process is None and self._driver is not None and now >= self._not_before:
            self._start(now, self._driver)

    def _is_news(self, driver: DriverPlace) -> bool:
        """Whether it is another driver and not an older one: after a data loss Redis may name an older one first."""
        mine = self._driver
        return mine is None or (driver.life != mine.life and driver.generation >= mine.generation)

    def _on_term(self, *_: object) -> None:
        self._stop = True

    def _ended(self, now: float, code: int) -> None:
        self._kill()
        self._failures = 1 if now - self._started > STEADY_SECONDS else self._failures + 1
        delay = back_off(self._failures, RESTART_SECONDS, RESTART_SECONDS_MAX)
        self._not_before = now + delay
        log.warning("Spark's worker ended with %s, again in %.1f s", code, delay)

    def _start(self, now: float, driver: DriverPlace) -> None:
        files, home = self._files, environment.spark_home()
        shutil.rmtree(files.local, ignore_errors=True)
        shutil.rmtree(files.work_before, ignore_errors=True)
        with suppress(FileNotFoundError):
            files.work.rename(files.work_before)
        files.local.mkdir()
        arguments = command(self._env, files, environment.java(), home, driver)
        more = variables(self._settings, self._worker, files, home)
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            env=environment.with_variables(more),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._started = now

    def _kill(self) -> None:
        """End Spark's worker and its executors; their Python processes then end as well."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._tail.close()


def say(line: str) -> None:
    """Write to the log of this container, where this process's lines are."""
    print(line, file=sys.stderr, flush=True)
