"""Runs one executor of Spark at the driver that the registry names; starts a new one when either changes.

The end of an executor closes its connection, which tells the driver at once.

Must never decide which driver is the right one, nor hold state that a successor would need.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

from ferry import environment
from ferry.contract.backoff import back_off
from ferry.contract.errors import Refusal, Unreachable
from ferry.contract.executors import ExecutorStart, executor_id
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.environment import Environment
from ferry.registry import JobRegistry
from ferry.system.parent import die_with_parent
from ferry.worker import release_0_1
from ferry.worker.launch import LOGGING, Files, command, of_life, variables

log = logging.getLogger("ferry.worker")

LOOK_SECONDS = 0.2
RESTART_SECONDS, RESTART_SECONDS_MAX = 0.2, 5.0

STEADY_SECONDS = 30.0
"""An executor that ran this long is started again at once."""


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
        self._start_of_executors: ExecutorStart | None = None
        self._attempt = 0
        self._started = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._stop = False

    def run(self) -> int:
        """Follow until SIGTERM, then kill the executor: its tasks are retried elsewhere."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._files.directory.mkdir(parents=True, exist_ok=True)
        self._files.logging.write_text(LOGGING)
        while not self._stop:
            self.look(time.monotonic())
            time.sleep(LOOK_SECONDS)
        self._kill()
        return 0

    def look(self, now: float) -> None:
        """Start, restart or stop the executor as needed."""
        with suppress(Unreachable):  # Redis is unreachable: the known driver stays
            driver = self._registry.driver()
            if driver is not None and self._is_news(driver):
                self._follow(driver)
        if self._process is not None and self._process.poll() is not None:
            self._ended(now, self._process.returncode)
        if self._process is None and self._driver is not None and now >= self._not_before:
            if release_0_1.has_master(self._driver):
                self._start_worker(now, self._driver)
            elif self._start_of_executors is not None:
                self._start_executor(now, self._driver, self._start_of_executors)

    def _follow(self, driver: DriverPlace) -> None:
        log.info("follows the driver of generation %d at %s", driver.generation, driver.spark)
        self._kill()
        self._driver, self._failures, self._not_before = driver, 0, 0.0
        self._start_of_executors = None
        if release_0_1.has_master(driver):
            return
        try:
            self._start_of_executors = ExecutorStart.opened(self._settings.secret, driver.life, driver.executor)
        except Refusal as refusal:
            log.error("starts no executor: %s", refusal)

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
        log.warning("the executor ended with %s, again in %.1f s", code, delay)

    def _start_executor(self, now: float, driver: DriverPlace, start: ExecutorStart) -> None:
        home = environment.spark_home()
        # By the clock: another process of this worker goes on with other numbers.
        self._attempt = max(self._attempt + 1, int(time.time()))
        number = executor_id(driver.generation, self._worker, self._attempt)
        more = of_life(self._settings, driver, start) | variables(self._settings, self._worker, self._files, home)
        self._start(now, command(self._settings.run, self._env, self._files, home, driver, start, number), more)
        log.info("starts executor %d", number)

    def _start_worker(self, now: float, driver: DriverPlace) -> None:
        home = environment.spark_home()
        (self._files.directory / "worker.conf").write_text(release_0_1.configuration(self._settings))
        more = variables(self._settings, self._worker, self._files, home)
        more |= release_0_1.variables(self._settings, self._worker, self._files, home)
        self._start(now, release_0_1.command(self._env, self._files, home, driver), more)
        log.info("starts a worker for a driver of release 0.1")

    def _start(self, now: float, arguments: list[str], more: dict[str, str]) -> None:
        for folder in (self._files.local, self._files.work):
            shutil.rmtree(folder, ignore_errors=True)
            # A Python process of the executor before may still write there, or has locked it.
            folder.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            cwd=self._files.work,
            env=environment.with_variables(more),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        self._started = now

    def _kill(self) -> None:
        """End the executor; its Python processes then end as well."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
