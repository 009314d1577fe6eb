"""The environment of a process: its address, its ports, its worker, which Spark to use.

The only reader of environment variables in the runtime (`contract.variables`); other code gets values. Without
variables: one machine, where everything listens on the loopback interface and tasks reach instances through unix
sockets.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ferry.contract import ports
from ferry.contract import variables as names
from ferry.contract.addresses import netloc
from ferry.contract.errors import SpecRefused

LOOPBACK = "127.0.0.1"
HTTPS = 443

NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""For a process that is forked. Without these NumPy and Arrow each start a thread at their import."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables, checked."""

    host: str | None = None
    fixed_ports: bool = False
    control_port: int = 0
    has_executors: bool = False
    """Tasks run in executors on other hosts."""
    worker: int | None = None
    instances_file: Path | None = None
    place: str | None = None
    metrics_token: str | None = field(default=None, repr=False)
    metrics_port: int = 0
    """Port for Prometheus; 0: any free one."""
    journal: tuple[str, str] | None = None
    """Namespace and name of the object that holds the journal; None: Redis holds it."""
    api_server: str = ""
    """URL of the API server, for a driver whose journal is there."""
    begun: bool = False
    """The job finished an epoch before this process started."""
    standby: bool = False
    """Another driver runs the job."""
    spark_kept: bool = False
    """The predecessor in this process has left its Spark running."""
    program: str | None = None
    """folder with the copy of the user's program; None: there is no copy"""
    life: str | None = None
    """life of the Spark of this process, as workers know it"""

    @property
    def address(self) -> str:
        """The address on which this process listens."""
        return self.host or LOOPBACK

    def channel_port(self, instance: int) -> int:
        """Port of an instance's channel; 0: any free one."""
        return ports.CHANNEL + instance if self.fixed_ports else 0

    @property
    def loops_port(self) -> int:
        """Port where the driver assigns shares to its loops; 0: any free one."""
        return ports.LOOPS if self.fixed_ports else 0

    def flight_port(self, instance: int) -> int:
        """Port of an instance's Flight server; 0: any free one."""
        return ports.FLIGHT + instance if self.fixed_ports else 0


def read(variables: Mapping[str, str] | None = None) -> Environment:
    """The environment of this process. Raises SpecRefused for invalid values."""
    variables_set = os.environ if variables is None else variables
    spark = variables_set.get(names.SPARK, "")
    if spark not in ("", names.EXECUTORS):
        raise SpecRefused(f"{names.SPARK}: {spark!r} is unknown; it is {names.EXECUTORS!r}, or not set")
    which = variables_set.get(names.PORTS, "")
    if which not in ("", "0", names.FIXED):
        raise SpecRefused(f"{names.PORTS}: {which!r} is unknown; it is {names.FIXED!r}, '0', or not set")
    namespace, _, journal = variables_set.get(names.JOURNAL, "").partition("/")
    api_host = variables_set.get(names.API_HOST, "")
    if namespace and not (journal and api_host):
        raise SpecRefused(f"{names.JOURNAL}: {namespace!r}: it is NAMESPACE/NAME, in a pod of Kubernetes")
    worker, file = variables_set.get(names.WORKER, ""), variables_set.get(names.INSTANCES_FILE, "")
    return Environment(
        host=variables_set.get(names.HOST) or None,
        fixed_ports=which == names.FIXED,
        control_port=_port(variables_set, names.CONTROL_PORT),
        has_executors=spark == names.EXECUTORS,
        worker=int(worker) if worker.isdigit() else None,
        instances_file=Path(file) if file else None,
        place=variables_set.get(names.PLACE) or None,
        metrics_token=variables_set.get(names.METRICS_TOKEN) or None,
        metrics_port=_port(variables_set, names.METRICS_PORT) or (ports.METRICS if which == names.FIXED else 0),
        journal=(namespace, journal) if namespace else None,
        api_server=f"https://{netloc(api_host, _port(variables_set, names.API_PORT) or HTTPS)}" if namespace else "",
        begun=variables_set.get(names.BEGUN) == "yes",
        standby=variables_set.get(names.STANDBY) == "yes",
        spark_kept=names.GATEWAY_PORT in variables_set,
        program=variables_set.get(names.PROGRAM) or None,
        life=variables_set.get(names.LIFE) or None,
    )


def spark_home() -> Path:
    """Spark's home: `SPARK_HOME`, else the installed pyspark (which is not imported, because that is slow)."""
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
    """The environment for a new process: this one's, and more."""
    return {**os.environ, **more}


def give(more: Mapping[str, str]) -> None:
    """Set variables for processes that this one will start indirectly (as Spark does)."""
    os.environ.update(more)


def forget(*variables: str) -> None:
    """Hide these variables from processes that this one will start."""
    for name in variables:
        os.environ.pop(name, None)


REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A reference to a variable, for secrets of the user's that must not be written down."""


def is_reference(value: object) -> bool:
    """Whether a value is a reference to a variable, and nothing else."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def filled(value: Any) -> Any:
    """A text with its references replaced by their variables; any other value unchanged. Raises SpecRefused for an
    unset variable."""
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        if found[1] not in os.environ:
            raise SpecRefused(f"{found[0]}: this variable is not set in the environment of the driver, or of a worker")
        return os.environ[found[1]]

    return REFERENCE.sub(variable, value)


def _port(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "") or "0"
    if not text.isdigit() or int(text) > 65_535:
        raise SpecRefused(f"{name}: {text!r} is no port")
    return int(text)
