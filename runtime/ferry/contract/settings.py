"""The settings of a run: `run.json`, written by the supervisor or the operator, read by the driver and the sidecars.

A reader may be of another release than the writer, for jobs keep the image they have: a new field has a default, a released
field is never taken away, and unknown fields are dropped.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ferry.contract import lenient, limits, rings
from ferry.contract.run_directory import WORKERS

CONTINUOUS, MICRO_BATCH = "continuous", "micro-batch"
"""Values of `RunSettings.epoch_mode` besides "auto"."""

SET_ASIDE = "set-aside"
"""A value of `RunSettings.on_crash`."""

JOURNAL, SETTINGS = "journal", "settings"
"""Values of `RunSettings.begins_with` besides ""."""

STAGES = ("begin", "ingest", "prepare", "commit", "emit", "sink")
"""Stages of an epoch at which a run can be told to stop and let an action happen."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How the instances of a run talk to each other."""

    mode: str = "auto"
    """auto, rdma or tcp"""
    expected: bool = False
    """the job asks for a device: a fallback to TCP is reported"""
    device: str | None = None
    """its name; None: the first that can be used"""
    gid_index: int | None = None
    """index of its address; None: the best one"""
    slots: int = rings.SLOTS
    slot_bytes: int = rings.SLOT_BYTES
    notify: str = "auto"
    """auto, footer or imm"""
    pinned_bytes: int = rings.PINNED_BYTES_MAX
    """bytes that one instance may pin"""
    lend_bytes: int = 0
    """bytes of the log of deltas that are lent to the device: each link pins them and sends from them"""
    huge_bytes: int = 0
    """bytes of rings that may be in huge pages, of all instances of a worker"""


LATEST, NOTHING = "latest", "none"
"""Start of a job without state, besides a named checkpoint: the newest checkpoint, or empty state."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Where durable checkpoints of a run go, and how often."""

    location: str
    """a path, or a URL of `pyarrow.fs`; checkpoints of a job are below `location`/JOB"""
    every_ms: int | None = None
    """interval between checkpoints; None: only on request"""
    keep: int = 3
    """number of newest checkpoints that stay, besides named ones"""


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
    """Spark task slots: of the one process that has all, or of each executor if executors come and go."""
    events: int | None = None
    """Bound of generator sources: run to the end, fire everything, exit 0."""
    output: str | None = None
    """Replaces the directory of parquet sinks."""
    dead_letter: str | None = None
    on_crash: str = "stop"
    """What happens to a record that kills tasks: stop, or set-aside (write it to the dead letters)."""
    spark: dict[str, str] = field(default_factory=dict)
    bandwidth_bytes: int | None = None
    """Bytes per second that one instance sends for snapshots; None = no limit."""
    heartbeat_ms: int = limits.HEARTBEAT_MS
    timeout_ms: int = limits.HEARTBEAT_TTL_MS
    return_deadline_ms: int = limits.RETURN_DEADLINE_MS
    slow_ms: int = limits.SLOW_MS
    """How long the user's code may run before it is reported as slow."""
    sink_patience_ms: int | None = None
    """How long a sink may fail before the job stops; None: for ever."""
    stops: tuple[tuple[int, str], ...] = ()
    """(epoch, stage) at which the driver asks the supervisor (POST supervisor/stage {"epoch", "stage"}) and waits."""
    supervisor: str | None = None
    """URL of the supervisor's endpoint."""
    transport: TransportSettings = TransportSettings()
    executor_bytes: int | None = None
    """Memory limit of an executor's container, heap included; None: unknown."""
    checkpoint: CheckpointSettings | None = None
    """durable checkpoints; None: the job has none"""
    restore_from: str | None = None
    """checkpoint from which a job without state begins: latest, a name, a number, or the URL of a manifest; none:
    empty state; None: not set"""
    restore_sink: str = "truncate"
    """rows that sinks hold beyond that checkpoint: truncate or keep them"""
    lasting: bool = True
    """another run may read the files of this one after a reboot: a clean end waits until they are on the disk"""
    epoch_mode: str = MICRO_BATCH
    """auto: continuous where it can be; continuous: tasks of Spark hold their place; micro-batch: a job of Spark an epoch"""
    driver_standby: bool = False
    """A second driver is ready, and takes over when the first one ends. On one machine."""
    program: str | None = None
    """Folder with the run's copy of the program, which is read instead of the user's files (`system.user_module`);
    None: there is no copy."""
    pipeline_text: str = ""
    """Packed text of the program, which `pipeline_file` only names then."""
    begins_with: str = ""
    """journal: a driver goes on with the program of the journal, and the operator deploys the program of the spec; settings:
    it begins with the program of these settings. Empty: with the settings if their program was edited."""
    tls: str = "off"
    """run: HTTP, Flight and Spark's connections are encrypted (`contract.certificates`)"""

    @property
    def started_with(self) -> str:
        """Identifies the program of these settings, with its arguments: the same files have the same folder."""
        return json.dumps([self.pipeline_module, self.pipeline_file, self.program, self.pipeline_args], sort_keys=True)

    @property
    def pipeline(self) -> tuple[str | None, str | None, str | None]:
        """How the user's module is loaded: (module, file, folder of the copy)."""
        return self.pipeline_module, self.pipeline_file, self.program

    @property
    def encrypted(self) -> bool:
        """Whether all connections but channels and Redis must be encrypted."""
        return self.tls == "run"

    @property
    def slots(self) -> int:
        """Task slots per `cores`: loops hold theirs, loops of a deployed program up to as many, and Spark jobs need a slot
        beside them."""
        return self.cores if self.epoch_mode == MICRO_BATCH else 2 * self.cores + 1

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.directory)

    def worker_path(self, worker: int) -> Path:
        """Directory of a worker's instances."""
        return self.path / WORKERS / str(worker)

    def write(self) -> Path:
        """Write run.json (mode 0600) and return its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "run.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self), indent=1))
        return file

    @staticmethod
    def read(file: str | Path) -> RunSettings:
        """Inverse of write; fields of another release are left out."""
        return lenient.read(RunSettings, json.loads(Path(file).read_text()))
