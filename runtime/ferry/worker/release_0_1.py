"""A worker of Spark's standalone mode, for a driver of release 0.1: a new image rolls the workers before the driver.

Such a driver has a master in its Java, and announces nothing about the start of executors. It refuses a process without the
secret of the run. Values in, values out. To be deleted with the support of release 0.1.
"""

from __future__ import annotations

from pathlib import Path

from ferry import environment
from ferry.contract import ports
from ferry.contract import variables as names
from ferry.contract.addresses import bracketed
from ferry.contract.errors import SpecRefused
from ferry.contract.places import SPARK_ENCRYPTED, DriverPlace
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived
from ferry.environment import Environment
from ferry.worker.launch import Files

CONFIGURATION = """\
spark.authenticate true
spark.worker.timeout 4
spark.port.maxRetries 16
spark.executor.logs.rolling.strategy size
spark.executor.logs.rolling.maxSize 4194304
spark.executor.logs.rolling.maxRetainedFiles 2
"""
"""Heartbeats go out four times per timeout, which must equal the master's. Logs of executors are bounded."""

MEMORY = "1024g"
"""Memory that the worker offers: the pod limits memory, and with too little Spark starts no executor."""


def has_master(driver: DriverPlace) -> bool:
    """Whether the driver is of release 0.1: its address is a master, and not an endpoint of a scheduler."""
    return not driver.executor and driver.spark.startswith("spark://") and "@" not in driver.spark


def configuration(settings: RunSettings) -> str:
    """Properties of the worker."""
    more = SPARK_ENCRYPTED if settings.encrypted else {}
    return CONFIGURATION + "".join(f"{key} {value}\n" for key, value in more.items())


def command(env: Environment, files: Files, home: Path, driver: DriverPlace) -> list[str]:
    """The command line of the worker. It holds no secret."""
    return [
        environment.java(),
        *("-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        "-XX:+ExitOnOutOfMemoryError",
        "-cp",
        f"{home / 'jars'}/*",
        f"-Dlog4j2.configurationFile={files.logging}",
        "org.apache.spark.deploy.worker.Worker",
        *("--host", bracketed(env.address)),
        *("--port", str(ports.SPARK_MASTER if env.fixed_ports else 0)),
        *("--webui-port", "0"),
        *("--cores", str(driver.cores)),
        *("--memory", MEMORY),
        *("--work-dir", str(files.work)),
        *("--properties-file", str(files.directory / "worker.conf")),
        driver.spark,
    ]


def variables(settings: RunSettings, worker: int, files: Files, home: Path) -> dict[str, str]:
    """Variables for the worker and its executors, besides the variables of an executor of this release."""
    return {
        "SPARK_CONF_DIR": str(files.directory),  # executors find `logging` there
        "SPARK_SCALA_VERSION": _scala_version(home),
        "_SPARK_AUTH_SECRET": derived(settings.secret, "spark"),
        f"SPARK_EXECUTOR_ATTRIBUTE_{names.WORKER}": str(worker),
    }


def _scala_version(home: Path) -> str:
    """The Scala version from the name of a jar, such as '2.13': Spark needs it to start executors."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-", 1)[0]
    raise SpecRefused(f"{home}: there is no Spark")
