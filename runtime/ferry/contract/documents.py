"""Documents that processes hand each other as files or over HTTP: settings of a run, status, timeline.

Settings and status are read by programs of other releases, because jobs keep their image: a new field has a default, a
released field is never removed, and unknown fields are ignored.

A run lives in one directory:

| file | written by | what |
|---|---|---|
| `run.json` | supervisor | RunSettings; mode 0600, because it holds the secret |
| `program/` | supervisor | the program that the run was started with |
| `driver.json` | driver | DriverAddress, once its control endpoint listens |
| `timeline.jsonl` | driver, supervisor | one JSON record a line (`contract.timeline`). At
`limits.TIMELINE_BYTES_MAX` it becomes `timeline.1.jsonl`; the previous one is deleted |
| `checkpoint/` | Spark, driver | offsets and commits of the query; lost files are written again from the state |
| `workers/K/instances` | supervisor | how many instances the worker should have |
| `workers/K/I/` | instance K.I | its state, log and commit record; `sealed` after a clean end |
| `workers/K/I/syncing` | instance K.I | the instance has ended and waits until its files are on the disk |
| `workers/K/flight-I.sock`, `logs/` | sidecar | the socket for tasks; what processes print |

Control endpoint of the driver (header `Authorization: Bearer` and the key derived for `control`): `GET /status` -> Status,
`GET, PUT /desired` <-> {"number", "placements": [[leader, replica...], ...]}, `PUT /bandwidth` {"bytes": a second},
`POST /stop` (after the epoch under way),
`POST /checkpoint` {"name": text or null} -> 202 {"number"}, `POST /suspend` (after one last checkpoint), `GET /metrics`.
`GET /healthz` needs no token: it answers 503 when the coordinator's loop has not completed a pass for
`limits.HANG_SECONDS`; a hung driver has to be replaced from outside.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ferry.contract import limits, rings
from ferry.contract.latency import LatencyQuantiles
from ferry.contract.lenient import known
from ferry.contract.plans import Boundary
from ferry.contract.work import WorkReport

DRIVER, WORKERS, INSTANCES, SYNCING = "driver.json", "workers", "instances", "syncing"
"""Names in a run's directory, as above."""

LIFE = "_ferry-life"
"""File in a sink's directory: the job that owns it, and the last restore, after which epoch numbers start again."""

DEAD_LETTER = "dead-letter"
"""Folder of a run's directory for malformed records, unless the job names another one."""

CONTINUOUS, MICRO_BATCH = "continuous", "micro-batch"
"""Values of `RunSettings.epoch_mode` besides "auto"."""

SET_ASIDE = "set-aside"
"""A value of `RunSettings.on_crash`."""

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


@dataclass(frozen=True, slots=True)
class Links:
    """The transports of the links between the instances of a run; each link is counted at both ends."""

    rdma: int = 0
    tcp: int = 0
    reason: str = ""
    """why some links are not RDMA although a device was asked for"""

    @property
    def kind(self) -> str:
        """rdma, tcp or mixed; empty when there are none."""
        return "mixed" if self.rdma and self.tcp else "rdma" if self.rdma else "tcp" if self.tcp else ""


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
    """auto: continuous if possible; continuous: Spark tasks hold their place; micro-batch: one Spark job an epoch"""
    driver_standby: bool = False
    """A second driver is ready and takes over when the first one ends. On one machine."""
    program: str | None = None
    """Folder with the run's copy of the program, which is read instead of the user's files (`system.user_module`);
    None: there is no copy."""
    tls: str = "off"
    """run: HTTP, Flight and Spark's connections are encrypted (`contract.certificates`)"""

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
        """Task slots per `cores`: loops hold theirs, and Spark jobs need some beside them."""
        return self.cores if self.epoch_mode == MICRO_BATCH else 2 * self.cores

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
        """Inverse of write; ignores fields of other releases."""
        doc = known(RunSettings, json.loads(Path(file).read_text()))
        doc["stops"] = tuple((int(e), str(s)) for e, s in doc.get("stops", ()))
        doc["transport"] = TransportSettings(**known(TransportSettings, doc.get("transport", {})))
        if (checkpoint := doc.get("checkpoint")) is not None:
            doc["checkpoint"] = CheckpointSettings(**known(CheckpointSettings, checkpoint))
        return RunSettings(**doc)


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Address of the driver of a run on this machine."""

    url: str
    """URL of its control endpoint."""
    pid: int
    generation: int

    def dump(self) -> str:
        """The text of `driver.json`."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> DriverAddress:
        """Inverse of dump. Raises ValueError, TypeError or KeyError for any other text."""
        doc = json.loads(text)
        return DriverAddress(str(doc["url"]), int(doc["pid"]), int(doc["generation"]))


@dataclass(frozen=True, slots=True)
class ReportedProblem:
    """A problem that the driver retries and that may pass without help."""

    reason: str
    """In CamelCase, such as SinkFailing; at most one problem per reason at a time."""
    text: str
    since: float
    """Seconds since 1970."""


BEGAN_AGAIN = "BeganAgain"
"""Notice: the job went on from a durable checkpoint on its own; it stays until the next checkpoint."""

CHECKPOINT_DELAYED = "CheckpointDelayed"
"""Notice: a durable checkpoint is late, or the store refuses it."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The last durable checkpoint of a job, and the state of the next one."""

    number: int | None = None
    """of the last complete one; None: there is no complete one"""
    name: str | None = None
    epoch: int = -1
    """its state is as of the end of this one"""
    at: float | None = None
    """when it was complete, in seconds since 1970"""
    bytes: int = 0
    """bytes that this checkpoint has written"""
    total_bytes: int = 0
    """bytes that a restore reads"""
    under_way: bool = False
    """another one is being written"""


@dataclass(slots=True)
class Status:
    """Status of a job as the driver reports it. Plain values only: it travels as JSON."""

    job: str
    generation: int
    phase: str
    epoch: int
    """Last finished epoch, -1 before the first."""
    watermark: int | None
    """Milliseconds of event time; None before any input."""
    version: tuple[int, int]
    groups: list[tuple[list[str], list[str]]]
    """Per virtual node: (in-sync members with the leader first, learners)."""
    settled: bool
    """The groups are as desired, among living instances."""
    desired: int
    """Number of the plan in force, 0 for none."""
    alive: list[str]
    """Instances that obey this driver."""
    loads: list[tuple[float, float]]
    """Per virtual node: (records per second that arrive for it, over all operators; bytes)."""
    rows: int
    late: int
    malformed: int
    rows_per_second: float
    epoch_seconds: float
    """Median of the last epochs."""
    journal_up: bool
    finished: bool
    problems: tuple[ReportedProblem, ...] = ()
    """Problems that stop progress at present, the oldest first; the driver goes on trying."""
    replica_lag: int = 0
    """Number of epochs since the oldest copy that is not yet in sync was begun."""
    transport: Links = Links()
    began: int | None = None
    """The last epoch that was committed before this driver, -1 for none; None: not known yet."""
    notices: tuple[ReportedProblem, ...] = ()
    """Conditions that do not stop the job and should be fixed. InstanceFailed, InstancesApart, MovesGivenUp,
    JournalNotSafe, BeganAgain, StateDamaged."""
    moves_given_up: int = 0
    """Planned copies that are abandoned for a while; MovesGivenUp among the notices says why."""
    checkpoint: CheckpointStatus | None = None
    """None: the job has no location for durable checkpoints. A late one is among the notices: CHECKPOINT_DELAYED."""
    epoch_mode: str = ""
    """How epochs are run: continuous, or micro-batch and why; empty: not known yet."""
    plan_steps: tuple[int, int] = (0, 0)
    """Of the plan in force: steps begun, and all steps; 0 for a plan without steps."""
    members_gone: int = 0
    """Members that groups should have now and that are not alive: the plan in force cannot replace them."""
    prepared: str = ""
    """The scheduled plan and when it begins; empty: no plan is scheduled."""
    rolled_back: str = ""
    """Why the plan in force was rolled back; empty: it was not."""
    quiet_seconds: float = 0.0
    """Since the last change of a group, or since the driver began."""
    move_costs: tuple[float | None, float | None] = (None, None)
    """Of the last plans: seconds per copied byte, and seconds of pause per new leader; None: not measured yet."""
    boundaries: tuple[Boundary, ...] = ()
    """Virtual nodes that wait for the end of windows."""
    unbounded: str = ""
    """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
    bandwidth: int | None = None
    """Bytes a second that copies may use; 0: unlimited, -1: as set at the start of the instances; None: unknown."""
    windows_end_in: float | None = None
    """Seconds until all windows that hold records now have ended, at the present pace of event time; None: unknown."""
    latency: LatencyQuantiles | None = None
    """Of records of the last seconds, from their creation to the sink; None: no source knows when records were
    created."""
    work: WorkReport | None = None
    """None: nothing was measured yet."""

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps. Version 0.1.0 reads problems from `degraded`."""
        # Long lists are not copied: with 4,096 virtual nodes that took the driver 20 ms per request.
        long = {"groups": self.groups, "loads": self.loads}
        degraded = "; ".join(one.text for one in self.problems) or None
        return {**asdict(replace(self, groups=[], loads=[])), **long, "degraded": degraded}

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Status:
        """Inverse of to_wire; ignores fields of other releases."""
        checkpoint, took, work = doc.get("checkpoint"), doc.get("latency"), doc.get("work")
        older = [{"reason": "DriverDegraded", "text": doc["degraded"], "since": 0.0}] if doc.get("degraded") else []
        return Status(
            **{
                **known(Status, doc),
                "version": tuple(doc["version"]),
                "groups": [(a, b) for a, b in doc["groups"]],
                "problems": tuple(ReportedProblem(**known(ReportedProblem, one)) for one in doc.get("problems", older)),
                "notices": tuple(ReportedProblem(**known(ReportedProblem, one)) for one in doc.get("notices", ())),
                "transport": Links(**known(Links, doc.get("transport", {}))),
                "checkpoint": None if checkpoint is None else CheckpointStatus(**known(CheckpointStatus, checkpoint)),
                "plan_steps": tuple(doc.get("plan_steps", (0, 0))),
                "move_costs": tuple(doc.get("move_costs", (None, None))),
                "boundaries": tuple(Boundary(**known(Boundary, one)) for one in doc.get("boundaries", ())),
                "latency": None if took is None else LatencyQuantiles(**known(LatencyQuantiles, took)),
                "work": None if work is None else WorkReport(**known(WorkReport, work)),
            }
        )
