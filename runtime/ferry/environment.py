"""What a process is told by its surroundings: its address, its ports, its worker, which Spark to use.

The only place of the runtime that reads the environment; everything else gets values. Nothing set = one machine, where
everything listens on the loopback interface and tasks reach instances through unix sockets.

| variable | read by | meaning |
|---|---|---|
| `FERRY_HOST` | all | address to listen on and to be reached at; tasks reach instances over TCP then |
| `FERRY_PORTS` | all | `fixed`: the ports below, so that they can be named in network policies; else any free ones |
| `FERRY_CONTROL_PORT` | driver | port of the control endpoint; 0: any free one |
| `FERRY_MASTER_PORT` | driver | port of Spark's master; 0: any free one |
| `FERRY_SPARK` | driver | `standalone`: Spark's workers are other processes, on other hosts; else task slots in the driver |
| `FERRY_WORKER` | tasks | the worker that a task runs beside: its instances are the helpers nearby |
| `FERRY_METRICS_TOKEN` | driver, sidecar | who shows it may read the metrics; not set: nobody listens |
| `FERRY_METRICS_PORT` | driver, sidecar | port of the metrics; not set: 7071 of the fixed ones, else any free one |
| `FERRY_PLACE` | sidecar | where it was started (a pod): a start elsewhere takes its worker away for good |
| `FERRY_INSTANCES_FILE` | sidecar | holds the number of wanted instances, instead of `workers/K/instances` |
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ferry.contract.errors import SpecRefused

LOOPBACK = "127.0.0.1"

CHANNEL_PORT = 7100
"""Fixed port of instance 0's channel; instance I has this plus I."""

FLIGHT_PORT = 7200
"""Fixed port of instance 0's Flight server; instance I has this plus I."""

METRICS_PORT = 7071
"""Where Prometheus reads."""

SPARK_DRIVER_PORT = 7078
SPARK_BLOCKS_PORT = 7079
"""Of the driver and of executors. Spark takes one of the 16 ports behind it while an older process still has this one."""

SPARK_WORKER_PORT = 7077
"""Of Spark's worker beside a sidecar."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables, checked."""

    host: str | None = None
    fixed_ports: bool = False
    control_port: int = 0
    master_port: int = 0
    standalone: bool = False
    worker: int | None = None
    instances_file: Path | None = None
    place: str | None = None
    metrics_token: str | None = field(default=None, repr=False)
    metrics_port: int = 0
    """Port for Prometheus; 0: any free one."""

    @property
    def address(self) -> str:
        """Where this process listens."""
        return self.host or LOOPBACK

    def channel_port(self, instance: int) -> int:
        """Port of an instance's channel; 0: any free one."""
        return CHANNEL_PORT + instance if self.fixed_ports else 0

    def flight_port(self, instance: int) -> int:
        """Port of an instance's Flight server; 0: any free one."""
        return FLIGHT_PORT + instance if self.fixed_ports else 0


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process. Raises SpecRefused for what cannot be meant."""
    given = os.environ if variables is None else variables
    spark = given.get("FERRY_SPARK", "")
    if spark not in ("", "standalone"):
        raise SpecRefused(f"FERRY_SPARK: {spark!r} is unknown; it is 'standalone', or not set")
    ports = given.get("FERRY_PORTS", "")
    if ports not in ("", "0", "fixed"):
        raise SpecRefused(f"FERRY_PORTS: {ports!r} is unknown; it is 'fixed', '0', or not set")
    worker, file = given.get("FERRY_WORKER", ""), given.get("FERRY_INSTANCES_FILE", "")
    return Environment(
        host=given.get("FERRY_HOST") or None,
        fixed_ports=ports == "fixed",
        control_port=_port(given, "FERRY_CONTROL_PORT"),
        master_port=_port(given, "FERRY_MASTER_PORT"),
        standalone=spark == "standalone",
        worker=int(worker) if worker.isdigit() else None,
        instances_file=Path(file) if file else None,
        place=given.get("FERRY_PLACE") or None,
        metrics_token=given.get("FERRY_METRICS_TOKEN") or None,
        metrics_port=_port(given, "FERRY_METRICS_PORT") or (METRICS_PORT if ports == "fixed" else 0),
    )


def spark_home() -> Path:
    """Where Spark is: `SPARK_HOME`, else the installed pyspark (which is not imported: that takes long)."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise SpecRefused("pyspark is not installed, and SPARK_HOME is not set")
    return Path(found.submodule_search_locations[0])


def java() -> str:
    """The command that starts Java: of `JAVA_HOME`, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


def with_variables(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process to be started: this one's, and more."""
    return {**os.environ, **more}


def give(more: Mapping[str, str]) -> None:
    """Set variables for what this process will start by itself (Spark does)."""
    os.environ.update(more)


def _port(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "") or "0"
    if not text.isdigit() or int(text) > 65_535:
        raise SpecRefused(f"{name}: {text!r} is no port")
    return int(text)
