"""The readers of settings and status as version 0.1.0 had them: a copy that is never changed.

Images of that version read what the present operator writes, and its operator reads what present drivers say.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How the instances of a run talk to each other."""

    mode: str = "auto"
    """auto, rdma or tcp"""
    expected: bool = False
    """a device was asked for: TCP is a fallback then, and said aloud"""
    device: str | None = None
    """its name; None: the first that can be used"""
    gid_index: int | None = None
    """which of its addresses; None: the best"""
    slots: int = 8
    slot_bytes: int = 64 * 1024
    notify: str = "auto"
    """auto, footer or imm"""
    pinned_bytes: int = 6 << 20
    """what one instance may pin"""
    lend_bytes: int = 0
    """of the log of deltas, lent to the device: each link pins them, and sends from there"""


@dataclass(frozen=True, slots=True)
class Links:
    """What the links between the instances of a run are carried by; each is counted at both of its ends."""

    rdma: int = 0
    tcp: int = 0
    reason: str = ""
    """why some are not RDMA although a device was asked for"""

    @property
    def kind(self) -> str:
        """rdma, tcp or mixed; empty when there are none."""
        return "mixed" if self.rdma and self.tcp else "rdma" if self.rdma else "tcp" if self.tcp else ""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Everything the driver and the sidecars of one run need; written once by the supervisor."""

    job: str
    """Name of the StreamJob."""
    run: str
    """Unique name of this run."""
    directory: str
    secret: str
    """Shared by the processes of the run: channels, control endpoint, Flight; and the password of a private Redis."""
    redis: str
    """URL: unix:///.../redis.sock of a private Redis, or redis://:password@host:port/0 (rediss:// with TLS)."""
    pipeline_module: str | None
    pipeline_file: str | None
    pipeline_args: dict[str, Any]
    virtual_nodes: int
    replicas: int
    workers: int
    instances_per_worker: int
    memory_bytes: int
    epoch_interval_ms: int
    epoch_max_rows: int
    cores: int
    """Spark task slots; where executors come and go, what to begin with."""
    events: int | None = None
    """Bound of generator sources: run to the end, fire everything, exit 0."""
    output: str | None = None
    """Replaces the directory of parquet sinks."""
    dead_letter: str | None = None
    spark: dict[str, str] = field(default_factory=dict)
    handover_batch: int | None = None
    """Virtual nodes warming at one time; None = all at once."""
    handover_gap: int = 0
    """Epochs between two steps of a plan."""
    handover_deadline_ms: int = 600_000
    bandwidth_bytes: int | None = None
    """Bytes per second that one instance sends for snapshots; None = no limit."""
    heartbeat_ms: int = 500
    timeout_ms: int = 2500
    return_deadline_ms: int = 60_000
    sink_attempts: int = 6
    stops: tuple[tuple[int, str], ...] = ()
    """(epoch, stage) at which the driver asks the supervisor (POST supervisor/stage {"epoch", "stage"}) and waits."""
    supervisor: str | None = None
    """URL of the supervisor's endpoint."""
    transport: TransportSettings = TransportSettings()

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.directory)

    def write(self) -> Path:
        """Write run.json (mode 0600) and return its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "run.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self), indent=1))
        return file

    @staticmethod
    def read(file: str | Path) -> RunSettings:
        """Inverse of write; what another version says besides is left out."""
        doc = _known(RunSettings, json.loads(Path(file).read_text()))
        doc["stops"] = tuple((int(e), str(s)) for e, s in doc.get("stops", ()))
        doc["transport"] = TransportSettings(**_known(TransportSettings, doc.get("transport", {})))
        return RunSettings(**doc)


@dataclass(slots=True)
class Status:
    """What the driver says of itself. Plain values only: it travels as JSON."""

    job: str
    generation: int
    phase: str
    epoch: int
    """Last finished epoch, -1 before the first."""
    watermark: int | None
    """Milliseconds of event time; None before any input."""
    version: tuple[int, int]
    groups: list[tuple[list[str], list[str]]]
    """Per virtual node: (in-step members with the leader first, learners)."""
    settled: bool
    """The groups are what is desired, among living instances."""
    desired: int
    """Number of the desired placement in force, 0 for none."""
    alive: list[str]
    """Instances that obey this driver."""
    loads: list[tuple[float, float]]
    """Per virtual node: (records per second, bytes)."""
    rows: int
    late: int
    malformed: int
    rows_per_second: float
    epoch_seconds: float
    """Median of the last epochs."""
    journal_up: bool
    finished: bool
    degraded: str | None
    replica_lag: int = 0
    """Epochs since the oldest copy that is not in step yet was begun."""
    transport: Links = Links()

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps."""
        return asdict(self)

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Status:
        """Inverse of to_wire; what another version says besides is left out."""
        return Status(
            **{
                **_known(Status, doc),
                "version": tuple(doc["version"]),
                "groups": [(a, b) for a, b in doc["groups"]],
                "transport": Links(**_known(Links, doc.get("transport", {}))),
            }
        )


def _known(kind: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """What a class has a field for. The operator and the images of its jobs are released, and updated, apart."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in doc.items() if key in names}
