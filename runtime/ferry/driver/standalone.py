"""Spark's standalone mode: a master inside the driver's JVM; workers on other hosts join and leave.

Spark's own allocator on Kubernetes ties executor pods to the driver's pod. Here worker pods outlive the driver, because
they hold state (docs/decisions/0006). Must know nothing of epochs or groups, nor start any worker.
"""

from __future__ import annotations

import logging

from pyspark import SparkConf

from ferry import environment
from ferry.contract import ports
from ferry.contract.addresses import bracketed
from ferry.contract.places import SPARK_ENCRYPTED
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived
from ferry.environment import Environment
from ferry.spark import private

log = logging.getLogger("ferry.driver")

MASTER = {
    "spark.master.rest.enabled": "false",
    "spark.ui.killEnabled": "false",
    "spark.worker.timeout": "4",
}
"""Settings of the master. Its web interface cannot be disabled: it listens on the loopback interface, on any free port."""

TUNED = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -Djava.security.egd=file:/dev/urandom",
    # Spark also detects a lost executor within seconds, not minutes. Ferry's own detector is faster.
    "spark.executor.heartbeatInterval": "500ms",
    "spark.executor.heartbeat.maxFailures": "20",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "4000",
    "spark.network.timeoutInterval": "500ms",
    # A task may be fetching its code from a silent executor.
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.connectionCreationTimeout": "3s",
    "spark.shuffle.io.retryWait": "500ms",
    # The loss of an executor counts as a failure of its tasks. Errors of the user's code still end a job.
    "spark.task.maxFailures": "16",
}
"""Defaults that a job may change by `spec.spark`; `tuned` adds the heap."""

OVERHEAD, OVERHEAD_MIN, HEAP_MIN = 0.4, 384 << 20, 472 << 20
"""For an executor of a Python job, as in Spark on Kubernetes: memory overhead as a fraction of the heap, minimum overhead,
and the smallest heap that Spark starts with."""


def heap(container_bytes: int) -> str:
    """The heap of an executor that fits into its container beside Python and Spark's worker process."""
    fitting = min(container_bytes / (1 + OVERHEAD), container_bytes - OVERHEAD_MIN)
    return f"{int(max(fitting, HEAP_MIN)) >> 20}m"


def tuned(settings: RunSettings) -> dict[str, str]:
    """Defaults that a job may change by `spec.spark`."""
    if settings.executor_bytes is None:
        return TUNED
    return {**TUNED, "spark.executor.memory": heap(settings.executor_bytes)}


def fixed(settings: RunSettings, env: Environment) -> dict[str, str]:
    """Settings that a job may not change: addresses, ports, authentication, task slots."""
    conf = {
        "spark.executor.cores": str(settings.slots),
        "spark.driver.host": bracketed(env.address),
        "spark.driver.bindAddress": bracketed(env.address),
        "spark.authenticate": "true",
        "spark.authenticate.secret": derived(settings.secret, "spark"),
        **(SPARK_ENCRYPTED if settings.encrypted else {}),
    }
    if env.fixed_ports:
        conf["spark.driver.port"] = str(ports.SPARK_DRIVER)
        conf["spark.blockManager.port"] = str(ports.SPARK_BLOCKS)
    return conf


def start_jvm(conf: dict[str, str]) -> None:
    """Start Spark's JVM, unless it runs already."""
    environment.give({"SPARK_LOCAL_IP": environment.LOOPBACK})
    launch = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        if not key.startswith("spark.authenticate"):  # other users of the machine see the command line
            launch.set(key, value)
    private.launch(launch)


def start_master(settings: RunSettings, env: Environment, conf: dict[str, str]) -> str:
    """Start the JVM with `conf`, unless it runs already, and the master in it; returns the master's URL."""
    start_jvm(conf)
    mine = {
        key: value
        for key, value in {**MASTER, **conf}.items()
        if key in MASTER or key.startswith(("spark.authenticate", "spark.network", "spark.rpc", "spark.ssl"))
    }
    url = private.start_master(bracketed(env.address), env.master_port, mine)
    log.info("Spark's master listens at %s", url)
    return url
