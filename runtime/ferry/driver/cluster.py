"""Spark as on Kubernetes: the driver's scheduler takes executors of pods that the operator made, and asks for none.

The master is `k8s://`, with every call of the API server switched off (docs/decisions/0041). Pods outlive the driver,
because they hold state: the process beside a sidecar (`ferry.worker`) starts an executor at the present driver. Must know
nothing of epochs or groups, nor start any executor.
"""

from __future__ import annotations

import shlex
from base64 import b64decode
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ferry import environment
from ferry.contract import limits, ports
from ferry.contract.addresses import bracketed
from ferry.contract.errors import SpecRefused
from ferry.contract.executors import ExecutorStart, application, spark_secret
from ferry.contract.places import SPARK_ENCRYPTED
from ferry.contract.settings import RunSettings
from ferry.environment import Environment
from ferry.spark import private

MASTER = {
    # Never called.
    "spark.master": "k8s://https://kubernetes.default.svc",
    # Spark has nothing to allocate: executors register on their own.
    "spark.executor.instances": "0",
    "spark.dynamicAllocation.enabled": "false",
}

BLIND = {
    "spark.kubernetes.executor.enableApiPolling": "false",
    "spark.kubernetes.executor.enableApiWatcher": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",
    "spark.kubernetes.executor.deleteOnTermination": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    # After this time Spark looks for the pod of an executor whose heartbeats it misses.
    "spark.kubernetes.dynamicAllocation.deleteGracePeriod": "36500d",
}
"""Switches off all that Spark reads from the API server, creates there, or deletes there."""

TUNED = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -Djava.security.egd=file:/dev/urandom",
    "spark.network.timeoutInterval": "500ms",
    # A task may be fetching its code from a silent executor.
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.connectionCreationTimeout": "3s",
    "spark.shuffle.io.retryWait": "500ms",
    # The loss of an executor counts as a failure of its tasks. Errors of the user's code still end a job.
    "spark.task.maxFailures": "16",
}
"""Defaults that a job may change by `spec.spark`; `tuned` adds the heap and the heartbeats."""

BEAT_MS, HANGS_MS_MIN = 500, 10_000
"""Interval of Spark's heartbeats; the shortest time without any after which an executor is lost."""

OVERHEAD, OVERHEAD_MIN, HEAP_MIN = 0.4, 384 << 20, 472 << 20
"""For an executor of a Python job, as in Spark on Kubernetes: memory overhead as a fraction of the heap, minimum overhead,
and the smallest heap that Spark starts with."""


def heap(container_bytes: int) -> str:
    """The heap of an executor that fits into its container beside Python."""
    fitting = min(container_bytes / (1 + OVERHEAD), container_bytes - OVERHEAD_MIN)
    return f"{int(max(fitting, HEAP_MIN)) >> 20}m"


def tuned(settings: RunSettings) -> dict[str, str]:
    """Defaults that a job may change by `spec.spark`."""
    memory = {} if settings.executor_bytes is None else {"spark.executor.memory": heap(settings.executor_bytes)}
    return {**TUNED, **_heartbeats(settings), **memory}


def _heartbeats(settings: RunSettings) -> dict[str, str]:
    """For an executor that hangs beside a living worker: a closed connection, and a silent worker, are noticed sooner."""
    hangs_ms = max(HANGS_MS_MIN, limits.STANDSTILL_TIMEOUTS * settings.timeout_ms)
    return {
        "spark.executor.heartbeatInterval": f"{BEAT_MS}ms",
        "spark.executor.heartbeat.maxFailures": str(-(-hangs_ms // BEAT_MS)),
        "spark.storage.blockManagerHeartbeatTimeoutMs": str(hangs_ms),
    }


def fixed(settings: RunSettings, env: Environment) -> dict[str, str]:
    """Settings that a job may not change: addresses, ports, authentication, task slots."""
    conf = {
        **MASTER,
        **BLIND,
        "spark.executor.cores": str(settings.slots),
        "spark.driver.host": bracketed(env.address),
        "spark.driver.bindAddress": bracketed(env.address),
        "spark.app.id": application(settings.run, env.life or ""),
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": str(secret_file(settings)),
        **(SPARK_ENCRYPTED if settings.encrypted else {}),
    }
    if env.fixed_ports:
        conf["spark.driver.port"] = str(ports.SPARK_DRIVER)
        conf["spark.blockManager.port"] = str(ports.SPARK_BLOCKS)
    return conf


def start(settings: RunSettings, env: Environment, conf: dict[str, str]) -> None:
    """Start Spark's JVM and its context with `conf`."""
    environment.give({"SPARK_LOCAL_IP": environment.LOOPBACK})
    assert env.life is not None
    launch = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        if key not in MASTER:  # The program that starts the JVM takes `k8s://` for its own, and no 0 executors.
            launch.set(key, value)
    private.launch(launch)
    secret = secret_file(settings)
    secret.touch(mode=0o600)
    secret.write_bytes(b64decode(spark_secret(settings.secret, env.life)))
    SparkContext.getOrCreate(SparkConf().setAll(list(conf.items())))
    secret.unlink()


def secret_file(settings: RunSettings) -> Path:
    """Where Spark's driver reads its secret when it starts: as a setting it would reach executors and pages."""
    return settings.path / "spark-secret"


def place(spark: SparkSession) -> str:
    """The URL at which executors register."""
    conf = spark.sparkContext.getConf()
    return f"spark://{private.SCHEDULER}@{conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"


STARTUP = ("spark.authenticate", "spark.network.", "spark.rpc.", "spark.port.")
"""Settings that an executor needs before it can reach the driver; it gets all others from there. Ports, too."""

VARIABLE = "spark.executorEnv."

LIBRARIES = "LD_LIBRARY_PATH"


def start_of_executors(spark: SparkSession) -> ExecutorStart:
    """What workers need to know for the start of an executor.

    Raises SpecRefused for options of Java without an end, and for names of variables that no process can have.
    """
    conf = dict(spark.sparkContext.getConf().getAll())
    options = [conf.get(f"spark.executor.{which}JavaOptions", "") for which in ("default", "extra")]
    variables = {key.removeprefix(VARIABLE): value for key, value in conf.items() if key.startswith(VARIABLE)}
    if (library := conf.get("spark.executor.extraLibraryPath")) is not None:
        variables[LIBRARIES] = ":".join(path for path in (library, variables.get(LIBRARIES)) if path)
    for name in variables:
        if not name or "=" in name:
            raise SpecRefused(f"{VARIABLE}{name}: {name!r} is no name of a variable")
    settings = {k: v for k, v in conf.items() if k.startswith(STARTUP) or k.endswith(".port")}
    return ExecutorStart(
        memory_mb=private.executor_memory(spark),
        java=[option for text in options for option in _words(text)],
        settings={key: value for key, value in settings.items() if "secret" not in key},
        variables={"SPARK_USER": spark.sparkContext.sparkUser(), **variables},
        class_path=conf.get("spark.executor.extraClassPath", ""),
    )


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise SpecRefused(f"spark.executor.extraJavaOptions: {error}") from None
