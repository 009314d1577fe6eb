"""Where processes find each other: names in Redis and tickets for Flight. Data never goes through Redis; writes are few.

| key | type | written by | what |
|---|---|---|---|
| `ferry:RUN:journal` | string | driver | JSON {"version", "initial", "groups", "writer"}: the table, swapped |
| `ferry:RUN:pipeline` | string | driver | JSON {"shapes": [...]}: the stateful operators |
| `ferry:RUN:instances` | hash | instance | 'W.I' -> JSON Registration |
| `ferry:RUN:beat:W` | string with a time to live | sidecar parent | worker W is alive |
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


def journal(run: str) -> str:
    """The routing table."""
    return f"ferry:{run}:journal"


def pipeline(run: str) -> str:
    """Shapes of the stateful operators."""
    return f"ferry:{run}:pipeline"


def instances(run: str) -> str:
    """Registrations by instance."""
    return f"ferry:{run}:instances"


def beat(run: str, worker: int) -> str:
    """Heartbeat of a worker."""
    return f"ferry:{run}:beat:{worker}"


@dataclass(frozen=True, slots=True)
class Registration:
    """Where one life of an instance can be reached."""

    instance: str
    incarnation: str
    host: str
    port: int
    """of the channel endpoint"""
    flight: str
    """URI of the Flight server for the tasks, e.g. grpc+unix:///..."""
    pid: int

    def dump(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str | bytes) -> Registration:
        """Inverse of dump."""
        return Registration(**json.loads(text))


@dataclass(frozen=True, slots=True)
class ReadTicket:
    """What a reader of fired rows shows the Flight server; JSON."""

    secret: str
    generation: int
    epoch: int
    operator: int
    attempt: tuple[int, int]
    low: int
    high: int
    vnodes: tuple[int, ...]

    def dump(self) -> bytes:
        """JSON bytes."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def load(data: bytes) -> ReadTicket:
        """Inverse of dump."""
        doc = json.loads(data)
        return ReadTicket(**{**doc, "attempt": tuple(doc["attempt"]), "vnodes": tuple(doc["vnodes"])})


@dataclass(frozen=True, slots=True)
class StageTicket:
    """What a task shows when it streams a fragment; JSON, the command of the Flight descriptor."""

    secret: str
    epoch: int
    operator: int
    generation: int
    run: int
    task: int

    def dump(self) -> bytes:
        """JSON bytes."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def load(data: bytes) -> StageTicket:
        """Inverse of dump."""
        return StageTicket(**json.loads(data))
