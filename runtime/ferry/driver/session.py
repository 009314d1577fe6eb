"""The Spark session of a run, with the settings that short epochs need. Must know nothing of epochs or groups."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ferry import environment
from ferry.contract import variables as names
from ferry.contract.settings import RunSettings
from ferry.driver import standalone
from ferry.environment import Environment
from ferry.spark import private
from ferry.system import flight_places

OURS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "ferry.spark.daemon",
    # Over TCP every job waits 40 ms for an acknowledgement that is delayed.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # Columns of times of the day pass through like others.
    "spark.sql.timeType.enabled": "true",
    # A batch is a few splits: nothing to gain from adaptive planning or wide shuffles.
    "spark.sql.adaptive.enabled": "false",
    # Each task is one of an input alone, and stages one fragment: partitions of several inputs must not become one.
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
    # Of a task that dies of a signal the exception has Python's stack.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # A shortened traceback has no error from which another came.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Without Hadoop's native library Spark starts a `chmod` process for every checkpoint file and for its .crc file, four
    # of them an epoch. This file system and this manager set no permissions and rename just as atomically.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Without data for `jstat`: Java stands still when the disk is slow to take that file.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:-UsePerfData -Djava.security.egd=file:/dev/urandom",
}


SOCKETS = "spark.python.unix.domain.socket.dir"
"""They ask for no secret. On other hosts it is the container's own folder for temporary files."""

LOCAL_AUTHENTICATION = {"spark.authenticate": "true"}
"""Other users of the machine reach Spark's ports, too. Spark makes the secret itself, and its JVM alone knows it."""

EXITS = "-XX:+ExitOnOutOfMemoryError"
"""Without memory Spark loses threads that nobody misses, and hangs: another process goes on."""

ANSWER_SECONDS = 60
"""A JVM that gives no answer for so long counts as gone: a collection of a full heap takes less."""

CLASSES = Path(pyspark.__file__).with_name("classes.jsa")
"""Archive of Spark's classes, where set-up has made one (`scripts/setup`): Java starts a driver sooner then."""


def shared_classes(archive: Path) -> str:
    """Java's options for an archive of classes. What does not fit is passed over by Java, and in silence."""
    if not archive.exists():
        return ""
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def temporary_files(folder: str) -> str:
    """Java's option for their folder: it does not know TMPDIR, and what Spark leaves in the machine's folder stays there."""
    return f'"-Djava.io.tmpdir={folder}"'


_begun: list[Future[None]] = []
"""The start of Spark, if it goes on beside what this process does."""


def begin(settings: RunSettings, surroundings: Environment) -> None:
    """Have Spark's JVM start beside what this process imports before it calls `start`: each takes a second."""
    if not surroundings.spark_kept:
        _begun.append(ThreadPoolExecutor(1, "spark").submit(_launch, settings, surroundings))


def start(settings: RunSettings, surroundings: Environment, announce: Callable[[str], None]) -> SparkSession:
    """A session with `slots` task slots in this process, or one with as many in every executor that comes.

    `announce` is told the URL of Spark's master as early as possible: workers take seconds to start. Tasks are tried
    again several times: a helper may be restarting.
    """
    if surroundings.spark_kept:
        kept = _kept()
        if surroundings.standalone:
            announce(kept.sparkContext.master)
        return kept
    if _begun:
        _begun.pop().result()
    conf = _conf(settings, surroundings)
    if surroundings.standalone:
        conf["spark.master"] = standalone.start_master(settings, surroundings, conf)
        announce(conf["spark.master"])
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    private.check(session)
    return session


def tried(folder: str) -> SparkSession:
    """A session in which a pipeline is tried: it runs nothing. All its files are in `folder`."""
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


def _conf(settings: RunSettings, surroundings: Environment) -> dict[str, str]:
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
    if surroundings.standalone:
        return conf | {**standalone.tuned(settings), **settings.spark, **standalone.fixed(settings, surroundings)}
    sockets = str(flight_places.socket_folder(settings.path / "spark-sockets"))
    master = {"spark.master": f"local[{settings.slots},8]", **LOCAL_AUTHENTICATION}
    return conf | {SOCKETS: sockets, **settings.spark, **master}


def _launch(settings: RunSettings, surroundings: Environment) -> None:
    """The JVM, and all of Spark that needs no address of a master."""
    environment.give({"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable})
    if settings.program is not None and not surroundings.standalone:
        environment.give({names.PROGRAM: settings.program})
    conf = _conf(settings, surroundings)
    if surroundings.standalone:
        standalone.start_jvm(conf)
    else:
        SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))


STOP_SECONDS = 10
"""What a query of the driver before has to end; one that does not ends this process, and with it Spark."""


def keep() -> None:
    """Let Spark outlive the program that this process runs, for the next one that it runs (`start`)."""
    gateway = private.gateway()
    if not isinstance(gateway.proc, _Kept):
        os.set_inheritable(gateway.proc.stdin.fileno(), True)  # Spark ends with it.
    at = gateway.gateway_parameters
    environment.give({names.GATEWAY_PORT: str(at.port), names.GATEWAY_SECRET: at.auth_token, names.BEGUN: "yes"})


@dataclass(frozen=True, slots=True)
class _Kept:
    """A JVM that the program before has started: a child of this process all the same."""

    pid: int

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _kept() -> SparkSession:
    """The session that the program before has left: no query runs in it."""
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
    """End this process when Spark's JVM stands still: everything here would wait for it for ever, and nobody would know."""

    def end() -> None:
        kill()
        print(f"Spark's JVM has given no answer for {ANSWER_SECONDS} s", file=sys.stderr)
        os._exit(1)

    asked = private.jvm(spark).java.lang.System.nanoTime
    threading.Thread(target=await_silence, args=(asked, end), name="jvm", daemon=True).start()


def await_silence(ask: Callable[[], object], end: Callable[[], None], second: float = 1.0) -> None:
    """Call `end` when `ask`, which is asked again and again, has not returned for ANSWER_SECONDS."""
    answered, over = threading.Event(), threading.Event()

    def asks() -> None:
        while not over.wait(second):
            with suppress(Exception):  # of a JVM that has ended, which its query tells
                ask()
                answered.set()

    threading.Thread(target=asks, name="jvm-asked", daemon=True).start()
    silent = 0
    while silent < ANSWER_SECONDS:
        time.sleep(second)  # Counted, not measured: a process that stood still itself blames nobody.
        silent = 0 if answered.is_set() else silent + 1
        answered.clear()
    over.set()
    end()


def kill() -> None:
    """End Spark's JVM at once, if there is one. It would complain of a driver that is gone, after its last words."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    wait(_begun, ANSWER_SECONDS)  # What it says while it starts would be the last word, too.
    gateway = private.gateway()
    if gateway is not None:
        gateway.proc.kill()
        gateway.proc.wait()
