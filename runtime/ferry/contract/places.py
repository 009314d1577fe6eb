"""Where processes find each other: names in Redis. Data never goes through Redis; writes are few.

On Kubernetes the journal is elsewhere (`contract.journals`). All else is soft: whoever has written it does so again when
Redis has forgotten it.

| key | type | written by | what |
|---|---|---|---|
| `ferry:RUN:journal` | string | driver | JSON {"version", "initial", "groups", "writer"}: the table, swapped |
| `ferry:RUN:pipeline` | string | driver | JSON {"operators": [...]}: descriptors of the stateful operators |
| `ferry:RUN:instances` | hash | instance | 'W.I' -> JSON Registration |
| `ferry:RUN:instances:changed` | sorted set | instance | 'W.I' by the number of the last change of its registration |
| `ferry:RUN:instances:last` | string | instance | the number of the last change of any registration |
| `ferry:RUN:parents` | hash | sidecar parent | 'W' -> "LIFE PLACE PLACE ...": who has the worker, and who had it |
| `ferry:RUN:beat:W` | string with a time to live | sidecar parent | worker W is alive; its instances in the user's code |
| `ferry:RUN:driver` | string | driver, when Spark's workers are other processes | JSON DriverPlace, announced |
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from ferry.contract.lenient import known

SPARK_ENCRYPTED = {"spark.network.crypto.enabled": "true", "spark.network.crypto.cipher": "AES/GCM/NoPadding"}
"""What encrypts Spark's own connections, of master, workers, driver and executors alike; none of them takes another then."""

TLS_NAME = "process.ferry"
"""Name in every certificate of a run: its processes are known by who issued them, for their addresses come and go."""


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
    """Heartbeat of a worker; without one, what all of them begin with."""
    return f"ferry:{run}:beat:{worker}"


def in_sink(run: str) -> str:
    """How many drivers in a row have begun to give one epoch to one sink, and have not come back from it."""
    return f"ferry:{run}:in-sink"


def driver(run: str) -> str:
    """Where the driver is."""
    return f"ferry:{run}:driver"


def lasting(run: str) -> tuple[str, ...]:
    """All that stays of a run until it is deleted; heartbeats run out by themselves."""
    return tuple(name(run) for name in (journal, pipeline, instances, parents, changed, last_change, in_sink, driver))


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """Where one life of the driver can be reached. Announced twice: before its generation is claimed, and when it is.

    A claim is as strong as it is new: one of a higher generation replaces it, and of the same generation only one that is
    in the journal replaces one that is not. So workers can start early, and none stays with a driver that lost.
    """

    generation: int
    claimed: bool
    """The generation is in the journal."""
    life: str
    """Of this driver's Spark: another life, another Spark."""
    spark: str
    """URL of Spark's master, spark://host:port."""
    control: str
    """URL of the control endpoint; empty as long as the generation is not claimed."""
    cores: int = 1
    """Task slots of an executor: what a worker has to offer, no less and no more, so that it gets one."""

    def dump(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str | bytes) -> DriverPlace:
        """Inverse of dump."""
        return DriverPlace(**known(DriverPlace, json.loads(text)))


def life_of(parent: int, start: int) -> bytes:
    """A life of an instance: its parent's, as the registry numbers them, and which start of the parent's it is; ordered."""
    return struct.pack(">QQ", parent, start)


@dataclass(frozen=True, slots=True)
class Registration:
    """Where one life of an instance can be reached."""

    instance: str
    incarnation: str
    """of two lives the later one has the greater: `life_of`"""
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
