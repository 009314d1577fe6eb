"""The start of an executor: its command, its environment, its files. Values in, values out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ferry import environment
from ferry.contract import variables as names
from ferry.contract.addresses import bracketed
from ferry.contract.executors import ExecutorStart, application, spark_secret
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.environment import Environment

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Files:
    """Files of executors, below the run's directory."""

    directory: Path

    @property
    def work(self) -> Path:
        """The working directory of an executor; Spark puts files of the job there."""
        return self.directory / "work"

    @property
    def local(self) -> Path:
        """Blocks and shuffle files."""
        return self.directory / "local"

    @property
    def logging(self) -> Path:
        """Properties of its log."""
        return self.directory / "log4j2.properties"


def command(
    run: str, env: Environment, files: Files, home: Path, driver: DriverPlace, start: ExecutorStart, number: int
) -> list[str]:
    """The command line of executor `number`. It holds no secret, because every user of the machine sees it."""
    name = application(run, driver.life)
    return [
        environment.java(),
        f"-Xmx{start.memory_mb}m",
        *(word.replace("{{APP_ID}}", name).replace("{{EXECUTOR_ID}}", str(number)) for word in start.java),
        "-cp",
        ":".join(path for path in (start.class_path, f"{home / 'jars'}/*") if path),
        f"-Dlog4j2.configurationFile={files.logging}",
        *(f"-D{key}={value}" for key, value in sorted(start.settings.items())),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url",
        driver.spark,
        "--executor-id",
        str(number),
        "--cores",
        str(driver.cores),
        "--app-id",
        name,
        "--hostname",
        bracketed(env.address),
        "--resourceProfileId",
        "0",
        "--podName",
        bracketed(env.address),
    ]


def variables(settings: RunSettings, worker: int, files: Files, home: Path) -> dict[str, str]:
    """Variables for an executor and its Python processes, besides the present ones."""
    return {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",  # all listens at `--hostname`
        "SPARK_LOCAL_DIRS": str(files.local),
        "PYSPARK_PYTHON": sys.executable,
        names.WORKER: str(worker),
    }


def of_life(settings: RunSettings, driver: DriverPlace, start: ExecutorStart) -> dict[str, str]:
    """Variables of an executor that this life of the driver names, and its secret. The variables of `variables` prevail."""
    return {**start.variables, "_SPARK_AUTH_SECRET": spark_secret(settings.secret, driver.life)}
