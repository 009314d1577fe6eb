"""How Spark's worker is started: its command, its environment, its configuration. Values in, values out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ferry.contract import ports
from ferry.contract import variables as names
from ferry.contract.addresses import bracketed
from ferry.contract.errors import SpecRefused
from ferry.contract.places import SPARK_ENCRYPTED, DriverPlace
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived
from ferry.environment import Environment

CONFIGURATION = """\
spark.authenticate true
spark.worker.timeout 4
spark.port.maxRetries 16
spark.executor.logs.rolling.strategy size
spark.executor.logs.rolling.maxSize 4194304
spark.executor.logs.rolling.maxRetainedFiles 2
"""
"""Heartbeats of Spark's worker go out four times in its timeout, which has to be the master's; logs are bounded."""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

OPTIONS = (
    "-Xmx96m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError",
)  # fmt: skip
"""Spark's worker only starts executors: it shall be small, and there quickly."""

MEMORY = "1024g"
"""What it offers executors: a bound is the pod's matter, and one that executors do not fit into would start none."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where Spark's worker keeps what it needs, below the run's directory."""

    directory: Path

    @property
    def work(self) -> Path:
        """Executors' directories, with what they print."""
        return self.directory / "work"

    @property
    def work_before(self) -> Path:
        """The same of the worker before this one."""
        return self.directory / "work.before"

    @property
    def local(self) -> Path:
        """Blocks and shuffle files."""
        return self.directory / "local"

    @property
    def configuration(self) -> Path:
        """Properties of Spark's worker."""
        return self.directory / "worker.conf"

    @property
    def logging(self) -> Path:
        """Properties of its log."""
        return self.directory / "log4j2.properties"


def configuration(settings: RunSettings) -> str:
    """Properties of Spark's worker."""
    more = SPARK_ENCRYPTED if settings.encrypted else {}
    return CONFIGURATION + "".join(f"{key} {value}\n" for key, value in more.items())


def command(surroundings: Environment, files: Files, java: str, home: Path, driver: DriverPlace) -> list[str]:
    """The command line. It holds no secret: everybody on the machine sees it."""
    return [
        java,
        *OPTIONS,
        "-cp",
        f"{home / 'jars'}/*",
        f"-Dlog4j2.configurationFile={files.logging}",
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        bracketed(surroundings.address),
        "--port",
        str(ports.SPARK_WORKER if surroundings.fixed_ports else 0),
        "--webui-port",
        "0",
        "--cores",
        str(driver.cores),
        "--memory",
        MEMORY,
        "--work-dir",
        str(files.work),
        "--properties-file",
        str(files.configuration),
        driver.spark,
    ]


def variables(settings: RunSettings, worker: int, files: Files, home: Path) -> dict[str, str]:
    """What Spark's worker, its executors and their Python processes find in their environment, besides what is there."""
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(files.directory),  # executors find `logging` there: what they print is in the pod's log
        "SPARK_SCALA_VERSION": scala_version(home),
        "SPARK_LOCAL_IP": "127.0.0.1",  # of the web interface; all else listens where `--host` says
        "SPARK_LOCAL_DIRS": str(files.local),
        "_SPARK_AUTH_SECRET": derived(settings.secret, "spark"),
        "PYSPARK_PYTHON": sys.executable,
        names.WORKER: str(worker),
        f"SPARK_EXECUTOR_ATTRIBUTE_{names.WORKER}": str(worker),
    }


def scala_version(home: Path) -> str:
    """Spark starts executors only when it knows: '2.13', from the name of a jar."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-", 1)[0]
    raise SpecRefused(f"{home}: there is no Spark")
