"""The status of a driver, which it answers at its control endpoint.

Control endpoint of the driver (header `Authorization: Bearer` and the key derived for `control`): `GET /status` -> Status,
without the long lists that the header KNOWN names,
`GET, PUT /desired` <-> {"number", "placements": [[leader, replica...], ...]}, `PUT /bandwidth` {"bytes": a second},
`POST /stop` (after the epoch under way),
`POST /checkpoint` {"name": text or null} -> 202 {"number"}, `POST /suspend` (after one last checkpoint), `GET /metrics`.
`GET /healthz` needs no token: it answers 503 when the coordinator's loop has not completed a pass for
`limits.HANG_SECONDS`; a hung driver has to be replaced from outside.

A reader may be of another release than the driver: a new field has a default, a released field is never taken away, and
unknown fields are dropped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ferry.contract.latency import LatencyQuantiles
from ferry.contract.lenient import read
from ferry.contract.plans import Boundary
from ferry.contract.work import WorkReport

KNOWN = "Ferry-Known"
"""Header of a request for the status: the versions of the long lists that the reader has, as in `Status.lists`."""


@dataclass(frozen=True, slots=True)
class Links:
    """The transports of the links between the instances of a run; each link is counted at both ends."""

    rdma: int = 0
    tcp: int = 0
    reason: str = ""
    """why some links are not RDMA although a device was asked for"""
    small_pages: str = ""
    """why rings are in small pages although huge ones were asked for"""

    @property
    def kind(self) -> str:
        """rdma, tcp or mixed; empty when there are none."""
        return "mixed" if self.rdma and self.tcp else "rdma" if self.rdma else "tcp" if self.tcp else ""


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
    program: tuple[int, int] = (1, 0)
    """Number of the newest program, and its first epoch."""


@dataclass(frozen=True, slots=True)
class ProgramStatus:
    """A program of the job."""

    number: int
    state: str
    """in force, first epoch, shadow, kept, refused, over; or a phase of its deploy. A shadow that was dropped is refused, a
    deploy that was withdrawn is over."""
    since: int | None = None
    """its first epoch; None: it is not in force, and never was"""
    identity: str = ""
    """equal for equal programs (`program_text.identity`)"""
    hash: str = ""
    """of its text; empty: the text is in the image"""
    refused: str = ""
    """why it was not deployed"""
    attempt: str = ""
    """word of the request; with another word a refused program is tried again"""
    again: int | None = None
    """number of an equal program that was in force before"""
    compared: str = ""
    """of a shadow, how far it is compared, and of a program that was one, how its rows differed, in words; else empty"""


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """How much comes, and how long it takes."""

    vnodes: list[tuple[float, float]] = field(default_factory=list)
    """Per virtual node: (records per second that arrive for it, over all operators; bytes)."""
    rows_per_second: float = 0.0
    epoch_seconds: float = 0.0
    """Median of the last epochs."""
    latency: LatencyQuantiles | None = None
    """Of records of the last seconds, from their creation to the sink; None: no source knows when records were
    created."""
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
    """Number of epochs since the oldest copy that is not yet in sync was begun."""
    quiet_seconds: float = 0.0
    """Since the last change of a group, or since the driver began."""
    costs: tuple[float | None, float | None] = (None, None)
    """Of the last plans: seconds per copied byte, and seconds of pause per new leader; None: not measured yet."""
    boundaries: tuple[Boundary, ...] = ()
    """Virtual nodes that wait for the end of windows."""
    unbounded: str = ""
    """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
    windows_end_in: float | None = None
    """Seconds until all windows that hold records now have ended, at the present speed of event time; None: not known."""
    bandwidth: int | None = None
    """Bytes a second that copies may use; 0: unlimited, -1: as set at the start of the instances; None: unknown."""


@dataclass(frozen=True, slots=True)
class SparkStatus:
    """The executors of a driver; nothing if its tasks run in the driver."""

    application: str = ""
    """id of Spark's application"""
    executors: tuple[tuple[int, str], ...] = ()
    """(worker, id of its executor)"""


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
    """None: the job has no location for durable checkpoints. A late one is among the notices: CHECKPOINT_DELAYED."""

    spark: SparkStatus = SparkStatus()
    programs: tuple[ProgramStatus, ...] = ()
    """The program in force, whose rows are written; then the program beside it, and the newest one or the last answer.
    Empty: the driver cannot deploy, or not yet."""
    lists: tuple[str, str] = ("", "")
    """Versions of `groups` and of `load.vnodes`, each one word; the loads have a new one each second. A list that the
    reader has is empty here. Empty: the driver always sends both."""

    def completed(self, known: Status | None) -> Status:
        """With the lists of an earlier status that are still valid."""
        if known is None:
            return self
        same = [bool(now) and now == before for now, before in zip(self.lists, known.lists, strict=True)]
        load = replace(self.load, vnodes=known.load.vnodes) if same[1] else self.load
        return replace(self, groups=known.groups if same[0] else self.groups, load=load)

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
