"""The status of a driver, which it answers at its control endpoint.

Control endpoint of the driver (header `Authorization: Bearer` and what is derived for `control`): `GET /status` -> Status,
`GET, PUT /desired` <-> {"number", "placements": [[leader, replica...], ...]}, `PUT /bandwidth` {"bytes": a second},
`POST /stop` (after the epoch under way),
`POST /checkpoint` {"name": text or null} -> 202 {"number"}, `POST /suspend` (after one last checkpoint), `GET /metrics`.
`GET /healthz` asks for no secret: 503 when the coordinator's loop has not come round for `limits.HANG_SECONDS`; a driver
that hangs has to be replaced from outside.

A reader may be of another release than the driver: a new field has a default, a released field is never taken away, and
unknown fields are dropped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ferry.contract.latency import LatencyQuantiles
from ferry.contract.lenient import known
from ferry.contract.plans import Boundary
from ferry.contract.work import WorkReport


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
class ReportedProblem:
    """Something that the driver tries again and again, and that may pass by itself."""

    reason: str
    """In CamelCase, such as SinkFailing; one of each at a time."""
    text: str
    since: float
    """Seconds since 1970."""


BEGAN_AGAIN = "BeganAgain"
"""The notice that a job went on from a durable checkpoint by itself, until it has another one."""

CHECKPOINT_DELAYED = "CheckpointDelayed"
"""The notice that a durable checkpoint is late, or that the store refuses it."""


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
    """Per virtual node: (in-sync members with the leader first, learners)."""
    settled: bool
    """The groups are what is desired, among living instances."""
    desired: int
    """Number of the plan in force, 0 for none."""
    alive: list[str]
    """Instances that obey this driver."""
    loads: list[tuple[float, float]]
    """Per virtual node: (records per second that come for it, of all operators; bytes)."""
    rows: int
    late: int
    malformed: int
    rows_per_second: float
    epoch_seconds: float
    """Median of the last epochs."""
    journal_up: bool
    finished: bool
    problems: tuple[ReportedProblem, ...] = ()
    """What keeps the job from going on at present, the oldest first; it goes on trying."""
    replica_lag: int = 0
    """Epochs since the oldest copy that is not in sync yet was begun."""
    transport: Links = Links()
    began: int | None = None
    """The last epoch that was committed before this driver, -1 for none; None: not known yet."""
    notices: tuple[ReportedProblem, ...] = ()
    """What the coordinator works around, or should be mended: the job goes on. InstanceFailed, InstancesApart, MovesGivenUp,
    JournalNotSafe, BeganAgain, StateDamaged."""
    moves_given_up: int = 0
    """Copies that were wanted, and are left alone for a while; MovesGivenUp among the notices says why."""
    checkpoint: CheckpointStatus | None = None
    """None: the job has no location for durable checkpoints. One that is late is among the notices: CHECKPOINT_DELAYED."""
    epoch_mode: str = ""
    """How epochs are run: continuous, or micro-batch and why; empty: not known yet."""
    plan_steps: tuple[int, int] = (0, 0)
    """Of the plan in force: how many have begun, and how many it has; 0 where it is not cut."""
    members_gone: int = 0
    """Members that groups should have now, and that are not there: the plan in force cannot mend it."""
    prepared: str = ""
    """What plan is to come, and when; empty: none."""
    rolled_back: str = ""
    """Why the plan in force was rolled back; empty: it was not."""
    quiet_seconds: float = 0.0
    """Since a group changed last, or since the driver began."""
    move_costs: tuple[float | None, float | None] = (None, None)
    """Seconds per byte that is copied, and seconds of pause per new leader, of the last plans; None: not measured yet."""
    boundaries: tuple[Boundary, ...] = ()
    """Virtual nodes that wait for the end of windows."""
    unbounded: str = ""
    """Why no virtual node can be handed over at the boundary of a window; empty: all can."""
    bandwidth: int | None = None
    """Bytes a second that copies were told to use; 0: no bound, -1: as instances were started; None: it cannot be told."""
    windows_end_in: float | None = None
    """Seconds until the windows have ended that hold records by now, if event time goes on as of late; None: not known."""
    latency: LatencyQuantiles | None = None
    """Of the records of the last seconds, from when they were created to the sink; None: no source says when that was."""
    work: WorkReport | None = None
    """None: nothing was measured yet."""

    def to_wire(self) -> dict[str, Any]:
        """Plain lists and maps. `degraded` is what version 0.1.0 reads of the problems."""
        # What is long and plain already is not copied: with 4,096 virtual nodes that took the driver 20 ms a look.
        long = {"groups": self.groups, "loads": self.loads}
        degraded = "; ".join(one.text for one in self.problems) or None
        return {**asdict(replace(self, groups=[], loads=[])), **long, "degraded": degraded}

    @staticmethod
    def from_wire(doc: dict[str, Any]) -> Status:
        """Inverse of to_wire; what another version says besides is left out."""
        found, took, work = doc.get("checkpoint"), doc.get("latency"), doc.get("work")
        older = [{"reason": "DriverDegraded", "text": doc["degraded"], "since": 0.0}] if doc.get("degraded") else []
        return Status(
            **{
                **known(Status, doc),
                "version": tuple(doc["version"]),
                "groups": [(a, b) for a, b in doc["groups"]],
                "problems": tuple(ReportedProblem(**known(ReportedProblem, one)) for one in doc.get("problems", older)),
                "notices": tuple(ReportedProblem(**known(ReportedProblem, one)) for one in doc.get("notices", ())),
                "transport": Links(**known(Links, doc.get("transport", {}))),
                "checkpoint": None if found is None else CheckpointStatus(**known(CheckpointStatus, found)),
                "plan_steps": tuple(doc.get("plan_steps", (0, 0))),
                "move_costs": tuple(doc.get("move_costs", (None, None))),
                "boundaries": tuple(Boundary(**known(Boundary, one)) for one in doc.get("boundaries", ())),
                "latency": None if took is None else LatencyQuantiles(**known(LatencyQuantiles, took)),
                "work": None if work is None else WorkReport(**known(WorkReport, work)),
            }
        )
