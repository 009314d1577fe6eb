"""The readers of settings and status as version 0.1.0 had them: a copy that is never changed.

Images of that version read what the present operator writes, and its operator reads what present drivers say.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar


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


T = TypeVar("T")

Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """What people read: seconds that this share of the records took at most."""

    records: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    def to_wire(self) -> dict[str, Any]:
        """Plain values, with a precision that says as much as is known."""
        return {name: value if name == "records" else round(value, 6) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class WorkReport:
    """How many records come, and how long they keep the job busy, over the last seconds."""

    seconds: float
    """it was measured for; less than WORK_SECONDS after a change of groups"""
    records_per_second: float
    """read"""
    arriving_per_second: float
    """offered: read, and by how much the backlog grew; as many as were read where no source knows what waits"""
    backlog: int | None
    """records that wait to be read; None: no source knows"""
    tasks: float
    """seconds a second for which tasks were busy with records, all together; then the same, of instances"""
    instances: float
    epochs: float = 0.0
    """the same, of both, before the first record of an epoch, as far as it is known; then what of it was of instances"""
    instance_epochs: float = 0.0


@dataclass(frozen=True, slots=True)
class Boundary:
    """A virtual node that goes to another leader when windows have ended: no state is moved."""

    vnode: int
    origin: str
    target: str
    begins: int | None
    """Windows that start here or later are the target's, in milliseconds of event time; None: that depends on what comes."""


@dataclass(frozen=True, slots=True)
class ReportedProblem:
    """Something that the driver tries again and again, and that may pass by itself."""

    reason: str
    """In CamelCase, such as SinkFailing; one of each at a time."""
    text: str
    since: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The last durable checkpoint of a job, and what became of the one after it."""

    number: int | None = None
    """of the last complete one; None: there is none"""
    name: str | None = None
    epoch: int = -1
    """its state is as of the end of this one"""
    at: float | None = None
    """when it was complete, in seconds since 1970"""
    bytes: int = 0
    """that it has written"""
    total_bytes: int = 0
    """that a restore reads"""
    under_way: bool = False
    """another one is being written"""


@dataclass(frozen=True, slots=True)
class ProgressStatus:
    """What the job has read and written so far."""

    began: int | None = None
    """The last epoch that was committed before this driver, -1 for none; None: not known yet."""
    watermark: int | None = None
    """Milliseconds of event time; None before any input."""
    rows: int = 0
    late: int = 0
    malformed: int = 0
    epoch_mode: str = ""
    """How epochs are run: continuous, or micro-batch and why; empty: not known yet."""


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """How much comes, and how long it takes."""

    vnodes: list[tuple[float, float]] = field(default_factory=list)
    """Per virtual node: (records per second that come for it, of all operators; bytes)."""
    rows_per_second: float = 0.0
    epoch_seconds: float = 0.0
    """Median of the last epochs."""
    latency: LatencyQuantiles | None = None
    """Of the records of the last seconds, from when they were created to the sink; None: no source says when that was."""
    work: WorkReport | None = None
    """None: nothing was measured yet."""


@dataclass(frozen=True, slots=True)
class MovesStatus:
    """How state moves to where the plan in force wants it."""

    steps: tuple[int, int] = (0, 0)
    """Of the plan in force: how many steps have begun, and how many it has; 0 where it is not cut."""
    prepared: str = ""
    """Which plan is to come, and when; empty: none."""
    rolled_back: str = ""
    """Why the plan in force was rolled back; empty: it was not."""
    members_gone: int = 0
    """Members that groups should have now, and that are not alive: the plan in force cannot mend it."""
    given_up: int = 0
    """Copies that are wanted and not tried for a while; MovesGivenUp among the notices says why."""
    replica_lag: int = 0
    """Epochs since the oldest copy that is not in sync yet was begun."""
    quiet_seconds: float = 0.0
    """Since a group changed last, or since the driver began."""
    costs: tuple[float | None, float | None] = (None, None)
    """Seconds per byte that is copied, and seconds of pause per new leader, of the last plans; None: not measured yet."""
    boundaries: tuple[Boundary, ...] = ()
    """Virtual nodes that wait for the end of windows."""
    unbounded: str = ""
    """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
    windows_end_in: float | None = None
    """Seconds until all windows that hold records now have ended, at the present speed of event time; None: not known."""
    bandwidth: int | None = None
    """Bytes a second that copies were told to use; 0: no bound, -1: as instances were started; None: it cannot be told."""


@dataclass(slots=True)
class Status:
    """What the driver says of itself. Plain values only: it travels as JSON, each group as a map of its own.

    A new field needs a line here, in its group, and a line in `coordinator.status`, which fills it.
    """

    job: str
    generation: int
    phase: str
    epoch: int
    """Last finished epoch, -1 before the first."""
    version: tuple[int, int]
    """Of the routing table."""
    groups: list[tuple[list[str], list[str]]]
    """Per virtual node: (in-sync members with the leader first, learners)."""
    settled: bool
    """The groups are as the plan wants them, among living instances."""
    desired: int
    """Number of the plan in force, 0 for none."""
    alive: list[str]
    """Instances that obey this driver."""
    journal_up: bool
    finished: bool
    problems: tuple[ReportedProblem, ...] = ()
    """Why the job does not go on at present, the oldest first; the driver tries again."""
    notices: tuple[ReportedProblem, ...] = ()
    """Failures that the coordinator works around, or that a user should mend: the job goes on. InstanceFailed,
    InstancesApart, MovesGivenUp, JournalNotSafe, BeganAgain, StateDamaged."""
    progress: ProgressStatus = ProgressStatus()
    load: LoadStatus = field(default_factory=LoadStatus)
    moves: MovesStatus = MovesStatus()
    transport: Links = Links()
    checkpoint: CheckpointStatus | None = None
    """None: the job has no location for durable checkpoints. One that is late is among the notices: CHECKPOINT_DELAYED."""

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps."""
        # The long lists are plain already and not copied: with 4,096 virtual nodes a copy took the driver 20 ms a look.
        wire = asdict(replace(self, groups=[], load=replace(self.load, vnodes=[])))
        wire["groups"], wire["load"]["vnodes"] = self.groups, self.load.vnodes
        return wire

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Status:
        """Inverse of to_wire; fields of another release are left out. Raises TypeError or ValueError."""
        return read(Status, doc)


def read(kind: type[T], doc: Mapping[str, Any]) -> T:
    """A dataclass from plain maps and lists, by the types of its fields. Fields that it does not have are left out.

    Raises TypeError or ValueError for a document of another form.
    """
    if not isinstance(doc, Mapping):
        raise TypeError(f"{kind.__name__} is a map")
    readers = _readers(typing.cast(Hashable, kind))
    return kind(**{name: read(doc[name]) if read else doc[name] for name, read in readers.items() if name in doc})


@cache
def _readers(kind: Hashable) -> dict[str, Reader | None]:
    assert isinstance(kind, type) and is_dataclass(kind)
    hints = typing.get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _reader(hint: Any) -> Reader | None:
    """From a plain value to one of this type; None: they are the same."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(read, hint)
    if origin is UnionType:
        (inner,) = (_reader(one) for one in args if one is not type(None))
        return None if inner is None else lambda value: None if value is None else inner(value)
    if origin is list and (item := _reader(args[0])) is not None:
        return lambda values: [item(value) for value in values]
    if origin is tuple and args[1:] == (...,):
        each = _reader(args[0])
        return lambda values: tuple(values if each is None else map(each, values))
    return partial(_tuple, [_reader(one) for one in args]) if origin is tuple else None


def _tuple(readers: list[Reader | None], values: Any) -> tuple[Any, ...]:
    if len(values) != len(readers):
        raise ValueError(f"{len(readers)} values are expected, and there are {len(values)}")
    return (
        tuple(read(value) if read else value for read, value in zip(readers, values)) if any(readers) else tuple(values)
    )


def _known(kind: type[Any], doc: dict[str, Any]) -> dict[str, Any]:
    """What a class has a field for. The operator and the images of its jobs are released, and updated, apart."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in doc.items() if key in names}
