"""Spark's standalone mode: a master inside the driver's JVM; workers on other hosts come to it and go.

Spark's own allocator on Kubernetes ties executor pods to the driver's pod; here worker pods outlive the driver, for they
hold state (docs/decisions/0006). Must know nothing of epochs or groups, nor start any worker.
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
"""Of the master. Its web interface cannot be left out: it listens on the loopback interface, on any free port."""

TUNED = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -Djava.security.egd=file:/dev/urandom",
    # Spark finds out by itself that an executor is gone within seconds, not minutes. Ours is the quicker detector.
    "spark.executor.heartbeatInterval": "500ms",
    "spark.executor.heartbeat.maxFailures": "20",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "4000",
    "spark.network.timeoutInterval": "500ms",
    # A task may be fetching its own code from an executor that is silent.
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.connectionCreationTimeout": "3s",
    "spark.shuffle.io.retryWait": "500ms",
    # A task is lost with its executor, and that counts as its failure; errors of the user's code end a job all the same.
    "spark.task.maxFailures": "16",
}
"""With the heap that `tuned` knows: what a job may change by `spec.spark`."""

OVERHEAD, OVERHEAD_MIN, HEAP_MIN = 0.4, 384 << 20, 472 << 20
"""Of an executor of a Python job, as Spark on Kubernetes has it: what it takes beside its heap, as a part of the heap, and
at least; and the smallest heap that Spark starts with."""


def heap(container_bytes: int) -> str:
    """The heap of an executor that fits into its container with all else that runs there: Python, the worker of Spark."""
    fitting = min(container_bytes / (1 + OVERHEAD), container_bytes - OVERHEAD_MIN)
    return f"{int(max(fitting, HEAP_MIN)) >> 20}m"


def tuned(settings: RunSettings) -> dict[str, str]:
    """What a job may change by `spec.spark`."""
    if settings.executor_bytes is None:
        return TUNED
    return {**TUNED, "spark.executor.memory": heap(settings.executor_bytes)}


def fixed(settings: RunSettings, surroundings: Environment) -> dict[str, str]:
    """What a job may not change here: addresses, ports, authentication, task slots."""
    conf = {
        "spark.executor.cores": str(settings.slots),
        "spark.driver.host": bracketed(surroundings.address),
        "spark.driver.bindAddress": bracketed(surroundings.address),
        "spark.authenticate": "true",
        "spark.authenticate.secret": derived(settings.secret, "spark"),
        **(SPARK_ENCRYPTED if settings.encrypted else {}),
    }
    if surroundings.fixed_ports:
        conf["spark.driver.port"] = str(ports.SPARK_DRIVER)
        conf["spark.blockManager.port"] = str(ports.SPARK_BLOCKS)
    return conf


def start_jvm(conf: dict[str, str]) -> None:
    """Spark's JVM, if there is none yet."""
    environment.give({"SPARK_LOCAL_IP": environment.LOOPBACK})
    launch = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        if not key.startswith("spark.authenticate"):  # everybody on the machine sees the command line
            launch.set(key, value)
    private.launch(launch)


def start_master(settings: RunSettings, surroundings: Environment, conf: dict[str, str]) -> str:
    """Start the JVM with `conf`, if there is none, and in it the master; returns the master's URL."""
    start_jvm(conf)
    mine = {
        key: value
        for key, value in {**MASTER, **conf}.items()
        if key in MASTER or key.startswith(("spark.authenticate", "spark.network", "spark.rpc", "spark.ssl"))
    }
    url = private.start_master(bracketed(surroundings.address), surroundings.master_port, mine)
    log.info("Spark's master listens at %s", url)
    return url
