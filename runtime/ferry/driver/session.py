"""The Spark session of a run, with the settings that short epochs need. Must know nothing of epochs or groups."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ferry import environment
from ferry.contract import variables as names
from ferry.contract.settings import RunSettings
from ferry.driver import cluster
from ferry.environment import Environment
from ferry.spark import private
from ferry.system import flight_places
from ferry.system.priority import compilers_give_way
from ferry.system.user_module import ProgramCopy

OURS = {
    "spark.ui.enabled": "false",
    "spark.ui.killEnabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "ferry.spark.daemon",
    # Over TCP, every job waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # So that columns of type TIME pass through like others.
    "spark.sql.timeType.enabled": "true",
    # A batch is a few splits: adaptive planning and wide shuffles gain nothing.
    "spark.sql.adaptive.enabled": "false",
    # Each task reads one input and stages one fragment: partitions of several inputs must not be merged.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stateStore.maintenanceInterval": "3600s",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.locality.wait": "0s",
    # The exception of a task that a signal killed then has Python's stack.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # A simplified traceback lacks the cause of an error.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Without Hadoop's native library Spark starts a `chmod` process for every checkpoint file and for its .crc file: four
    # per epoch. This file system and this manager set no permissions, and their renames are just as atomic.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # No data for `jstat`: Java stalls when the disk is slow to write its file.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData -Djava.security.egd=file:/dev/urandom",
}


SOCKETS = "spark.python.unix.domain.socket.dir"
"""The sockets need no secret. On other hosts they are in the container's own temporary folder."""

LOCAL_AUTHENTICATION = {"spark.authenticate": "true"}
"""Other users of the machine can reach Spark's ports. Spark generates the secret, which stays in its JVM."""

EXITS = "-XX:+ExitOnOutOfMemoryError"
"""Out of memory, Spark silently loses threads and hangs. With this option the JVM exits, and a new process recovers."""

ANSWER_SECONDS = 60
"""A JVM that does not answer for this long counts as dead: a full garbage collection takes less."""

CLASSES = Path(pyspark.__file__).with_name("classes.jsa")
"""Archive of Spark's classes, if set-up wrote one (`scripts/setup`). With it, Java starts a driver faster."""


def shared_classes(archive: Path) -> str:
    """Java's options for an archive of classes. Java silently ignores an archive that does not match."""
    if not archive.exists():
        return ""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def temporary_files(folder: str) -> str:
    """Java's option for the temporary folder: Java ignores TMPDIR, and Spark leaves files behind."""
    return f'"-Djava.io.tmpdir={folder}"'


_begun: list[Future[None]] = []
"""The start of Spark in the background."""


def begin(settings: RunSettings, env: Environment) -> None:
    """Start Spark's JVM in the background while this process imports its modules: each takes a second."""
    if not env.spark_kept:
        life = secrets.token_hex(8)
        environment.give({names.LIFE: life})
        _begun.append(ThreadPoolExecutor(1, "spark").submit(_launch, settings, replace(env, life=life)))


def start(settings: RunSettings, env: Environment, announce: Callable[[str, str], None]) -> SparkSession:
    """A session with `slots` task slots in this process, or in every executor that joins.

    `announce` gets the place where executors register, and the sealed text about their start. Tasks are retried several
    times, because a helper may be restarting.
    """
    session = _kept() if env.spark_kept else _started(settings, env)
    if env.has_executors:
        assert env.life is not None
        announce(cluster.place(session), cluster.start_of_executors(session).sealed(settings.secret, env.life))
    return session


def _started(settings: RunSettings, env: Environment) -> SparkSession:
    if _begun:
        _begun.pop().result()
    builder = SparkSession.builder
    for key, value in _conf(settings, env).items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    private.check(session)
    return session


def tried(folder: str) -> SparkSession:
    """A session that only builds a pipeline and runs nothing. All its files are in `folder`."""
    environment.give({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable})
    conf = {
        **OURS,
        **LOCAL_AUTHENTICATION,
        "spark.master": "local[1]",
        "spark.app.name": "ferry-validate",
        "spark.driver.defaultJavaOptions": f"{EXITS} {temporary_files(folder)} {shared_classes(CLASSES)}",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    started: SparkSession = builder.getOrCreate()
    return started


def _conf(settings: RunSettings, env: Environment) -> dict[str, str]:
    conf = {
        **OURS,
        "spark.app.name": f"ferry-{settings.job}",
        "spark.driver.defaultJavaOptions": f"{EXITS} {temporary_files(tempfile.gettempdir())} {shared_classes(CLASSES)}",
        "spark.executor.defaultJavaOptions": EXITS,
        "spark.sql.shuffle.partitions": str(settings.cores),
        "spark.default.parallelism": str(settings.cores),
        "spark.local.dir": str(settings.path / "spark-local"),
        "spark.sql.warehouse.dir": str(settings.path / "warehouse"),
    }
    if env.has_executors:
        return conf | {**cluster.tuned(settings), **settings.spark, **cluster.fixed(settings, env)}
    sockets = str(flight_places.socket_folder(settings.path / "spark-sockets"))
    master = {"spark.master": f"local[{settings.slots},8]", **LOCAL_AUTHENTICATION}
    return conf | {SOCKETS: sockets, **settings.spark, **master}


def _launch(settings: RunSettings, env: Environment) -> None:
    """Start the JVM and Spark's context in it."""
    environment.give({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable})
    if settings.program is not None and not env.has_executors:
        environment.give({names.PROGRAM: settings.program})
    conf = _conf(settings, env)
    if env.has_executors:
        cluster.start(settings, env, conf)
    else:
        SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))


def ship(spark: SparkSession, folder: str) -> None:
    """Have Spark send the copy of a program to every executor, over its own authenticated connections."""
    spark.sparkContext.addFile(str(ProgramCopy.of(folder).archive()))


STOP_SECONDS = 10
"""Time for a query of the previous driver to end. A query that does not end makes this process exit, and Spark with it."""


def keep() -> None:
    """Let Spark outlive the program of this process, for the next program of this process (`start`)."""
    gateway = private.gateway()
    if not isinstance(gateway.proc, _Kept):
        os.set_inheritable(gateway.proc.stdin.fileno(), True)  # Spark ends when it closes.
    at = gateway.gateway_parameters
    environment.give({names.GATEWAY_PORT: str(at.port), names.GATEWAY_SECRET: at.auth_token, names.BEGUN: "yes"})


@dataclass(frozen=True, slots=True)
class _Kept:
    """A JVM that the previous program of this process started: it is still a child process."""

    pid: int

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _kept() -> SparkSession:
    """The session of the previous program, with its queries stopped."""
    private.launch()
    environment.forget(names.GATEWAY_PORT, names.GATEWAY_SECRET)
    private.gateway().proc = _Kept(int(private.jvm().java.lang.ProcessHandle.current().pid()))
    spark = private.running_session()
    spark.conf.set("spark.sql.streaming.stopTimeout", f"{STOP_SECONDS}s")
    for query in spark.streams.active:
        query.stop()
    spark.sparkContext.cancelAllJobs()
    return spark


def watch_over(spark: SparkSession) -> None:
    """End this process when Spark's JVM hangs: all threads here would silently wait for ever."""

    def end() -> None:
        kill()
        print(f"Spark's JVM has given no answer for {ANSWER_SECONDS} s", file=sys.stderr)
        os._exit(1)

    java = private.jvm(spark).java.lang
    call, pid = java.System.nanoTime, int(java.ProcessHandle.current().pid())

    def ask() -> None:
        call()
        compilers_give_way(pid)  # A JVM starts compilers when they have much to do.

    threading.Thread(target=await_silence, args=(ask, end), name="jvm", daemon=True).start()


def await_silence(ask: Callable[[], object], end: Callable[[], None], second: float = 1.0) -> None:
    """Call `ask` repeatedly, and `end` when a call has not returned for ANSWER_SECONDS."""
    answered, over = threading.Event(), threading.Event()

    def asks() -> None:
        while not over.wait(second):
            with suppress(Exception):  # the JVM has ended: its query reports that
                ask()
                answered.set()

    threading.Thread(target=asks, name="jvm-asked", daemon=True).start()
    silent = 0
    while silent < ANSWER_SECONDS:
        time.sleep(second)  # Counted, not measured: this process may have been stopped itself.
        silent = 0 if answered.is_set() else silent + 1
        answered.clear()
    over.set()
    end()


def kill() -> None:
    """Kill Spark's JVM, if it runs: it would log the loss of the driver after the driver's last words."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    wait(_begun, ANSWER_SECONDS)  # A JVM that is still starting would log, too.
    gateway = private.gateway()
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()
