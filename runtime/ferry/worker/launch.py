"""The start of Spark's worker: its command, its environment, its configuration. Values in, values out."""

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
"""Heartbeats of Spark's worker go out four times per timeout, which must equal the master's; logs are bounded."""

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
"""Spark's worker only starts executors: a small heap and a fast start."""

MEMORY = "1024g"
"""Memory that it offers to executors: the pod limits memory, and with too little Spark starts no executor."""


@dataclass(frozen=True, slots=True)
class Files:
    """Files of Spark's worker, below the run's directory."""

    directory: Path

    @property
    def work(self) -> Path:
        """Executors' directories, with their output."""
        return self.directory / "work"

    @property
    def work_before(self) -> Path:
        """The same of the previous worker."""
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


def command(env: Environment, files: Files, java: str, home: Path, driver: DriverPlace) -> list[str]:
    """The command line. It holds no secret, because every user of the machine sees it."""
    return [
        java,
        *OPTIONS,
        "-cp",
        f"{home / 'jars'}/*",
        f"-Dlog4j2.configurationFile={files.logging}",
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        bracketed(env.address),
        "--port",
        str(ports.SPARK_WORKER if env.fixed_ports else 0),
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
    """Variables for Spark's worker, its executors and their Python processes, besides the present ones."""
    return {
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(files.directory),  # executors find `logging` there: their output is in the pod's log
        "SPARK_SCALA_VERSION": scala_version(home),
        "SPARK_LOCAL_IP": "127.0.0.1",  # for the web interface; all else listens at `--host`
        "SPARK_LOCAL_DIRS": str(files.local),
        "_SPARK_AUTH_SECRET": derived(settings.secret, "spark"),
        "PYSPARK_PYTHON": sys.executable,
        names.WORKER: str(worker),
        f"SPARK_EXECUTOR_ATTRIBUTE_{names.WORKER}": str(worker),
    }


def scala_version(home: Path) -> str:
    """The Scala version from the name of a jar, such as '2.13': Spark needs it to start executors."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        return jar.name.removeprefix("spark-core_").split("-", 1)[0]
    raise SpecRefused(f"{home}: there is no Spark")
