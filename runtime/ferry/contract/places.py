"""Where processes find each other: names in Redis. Data never goes through Redis; writes are few.

On Kubernetes the journal is elsewhere (`contract.journals`). All other keys are soft state: their writers write them
again when Redis has lost them.

| key | type | written by | what |
|---|---|---|---|
| `ferry:RUN:journal` | string | driver | JSON {"version", "initial", "groups", "writer"}: the table, swapped |
| `ferry:RUN:pipeline` | string | driver | JSON {"operators": [...]}: descriptors of the stateful operators |
| `ferry:RUN:instances` | hash | instance | 'W.I' -> JSON Registration |
| `ferry:RUN:instances:changed` | sorted set | instance | 'W.I' by the number of the last change of its registration |
| `ferry:RUN:instances:last` | string | instance | the number of the last change of any registration |
| `ferry:RUN:parents` | hash | sidecar parent | 'W' -> "LIFE PLACE PLACE ...": the worker's owner, and its former ones |
| `ferry:RUN:beat:W` | string with a time to live | sidecar parent | worker W is alive; its instances in the user's code |
| `ferry:RUN:driver` | string | driver, when executors are other processes | JSON DriverPlace, announced |
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from ferry.contract.lenient import known

SPARK_ENCRYPTED = {"spark.network.crypto.enabled": "true", "spark.network.crypto.cipher": "AES/GCM/NoPadding"}
"""Settings that encrypt Spark's own connections, between driver and executors; they then refuse unencrypted ones."""

TLS_NAME = "process.ferry"
"""Name in every certificate of a run: its issuer identifies a process, because addresses come and go."""


def prefix(run: str) -> str:
    """The beginning of all names of a run."""
    return f"ferry:{run}:"


def journal(run: str) -> str:
    """The routing table."""
    return f"ferry:{run}:journal"


def pipeline(run: str) -> str:
    """Descriptors of the stateful operators."""
    return f"ferry:{run}:pipeline"


def instances(run: str) -> str:
    """Registrations by instance."""
    return f"ferry:{run}:instances"


def parents(run: str) -> str:
    """The latest life of each worker's parent."""
    return f"ferry:{run}:parents"


def changed(run: str) -> str:
    """When each registration changed last."""
    return f"{instances(run)}:changed"


def last_change(run: str) -> str:
    """Number of the last change of a registration."""
    return f"{instances(run)}:last"


def beat(run: str, worker: int | str = "") -> str:
    """Heartbeat of a worker; without a worker, the common prefix of all heartbeats."""
    return f"ferry:{run}:beat:{worker}"


def in_sink(run: str) -> str:
    """Number of drivers in a row that began to give one epoch to one sink and did not return from it."""
    return f"ferry:{run}:in-sink"


def driver(run: str) -> str:
    """Address of the driver."""
    return f"ferry:{run}:driver"


def lasting(run: str) -> tuple[str, ...]:
    """All keys of a run that last until it is deleted; heartbeats expire."""
    return tuple(name(run) for name in (journal, pipeline, instances, parents, changed, last_change, in_sink, driver))


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """Address of one life of the driver. Announced twice: before and after its generation is claimed.

    The higher generation wins; within a generation the announcement that is in the journal wins. So workers can start
    early, and no worker stays with a driver that lost.
    """

    generation: int
    claimed: bool
    """The generation is in the journal."""
    life: str
    """Life of this driver's Spark: another life, another Spark."""
    spark: str
    """URL of Spark's scheduler, spark://CoarseGrainedScheduler@host:port."""
    control: str
    """URL of the control endpoint; empty until the generation is claimed."""
    cores: int = 1
    """Task slots of an executor."""
    executor: str = ""
    """How workers start an executor: a sealed `ExecutorStart`. Empty: this driver has no executors, or is of release 0.1."""

    def dump(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str | bytes) -> DriverPlace:
        """Inverse of dump."""
        return DriverPlace(**known(DriverPlace, json.loads(text)))


def life_of(parent: int, start: int) -> bytes:
    """A life of an instance: the number of its parent in the registry, and the start within this parent; ordered."""
    return struct.pack(">QQ", parent, start)


@dataclass(frozen=True, slots=True)
class Registration:
    """Address of one life of an instance."""

    instance: str
    incarnation: str
    """the later of two lives has the greater one: `life_of`"""
    host: str
    port: int
    """of the channel endpoint"""
    flight: str
    """URI of the Flight server for the tasks: grpc+unix:///... on one machine, else grpc+tls://host:port (or grpc+tcp)"""
    pid: int

    def dump(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str | bytes) -> Registration:
        """Inverse of dump."""
        return Registration(**known(Registration, json.loads(text)))
