"""Events, effects, phases and settings of the coordinator's state machine."""

from __future__ import annotations

from typing import Final

from ferry.contract import messages as m
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.plans import Plan
from ferry.contract.records import record
from ferry.contract.results import Results
from ferry.contract.routing import Table, Version
from ferry.protocol.coordinator import groups as g
from ferry.protocol.io import Send, Tick


class Phase:
    """What a driver is at. Plain words: the members of an enum are looked up six times as slowly, several times an event."""

    JOURNAL: Final = "journal"
    ASK: Final = "ask"
    FINISH: Final = "finish"
    IDLE: Final = "idle"
    HOLD: Final = "hold"
    """An epoch is begun, and waits for copies."""
    INGEST: Final = "ingest"
    PREPARE: Final = "prepare"
    COMMIT: Final = "commit"
    READ: Final = "read"
    STOPPED: Final = "stopped"
    COMMITS: Final = (COMMIT, FINISH, HOLD)
    """A Commit is under way."""


@record
class CoordinatorSettings:
    """Bounds of the coordinator's patience, in milliseconds of its clock."""

    operators: int = 1
    attempt_ms: int = 10_000
    """An attempt that is not logged everywhere by then is begun again, the second time without whoever keeps it waiting;
    twice as long each time, and counted from the last sign that somebody works on it."""
    silence_ms: int = 10_000
    """An instance that said nothing for this long stands still, and is lost."""
    retry_ms: int = 60_000
    """What could not be done is left alone for this long (two instances that cannot reach each other, a move); doubled
    each time."""
    retry_max_ms: int = 600_000
    """No longer than this."""
    apart_ms: int = 300_000
    """How long an epoch may be tried when two instances cannot reach each other and nothing helps."""
    commit_ms: int = 2_000
    """Commit is sent again to members that have not answered."""
    grace_ms: int = 0
    """A member whose connection closed may be back by then with all that it had: nothing is copied anew for a moment's
    interruption."""
    return_ms: int = 60_000
    """How long a job waits for the only holder of a virtual node."""
    backoff_ms: int = 1_000
    """How long an instance that failed is left out, so that a full disk does not end every other attempt; doubled each
    time that it fails again."""
    backoff_max_ms: int = 60_000
    """No longer than this; one that has not failed for as long begins anew."""
    code_waits_ms: tuple[int, ...] = (1_000, 4_000, 10_000)
    """Between the attempts of a step in which the user's code fails: it may be the network. The job stops after the last."""
    start_ms: int = 15_000
    """How long a new driver waits for members of the journaled groups before it removes them."""
    acquaint_ms: int = 1_300
    """Others find an instance that has just come within this time; a leader would wait that long for its fragments."""
    warm_ms: int = 600_000
    """A learner to which nothing came for this long is dropped, its move given up for a while."""
    plan_ms: int = 1_800_000
    """A plan that did not come forward for this long is rolled back."""
    ended: int = -1
    """The last epoch in Spark's commit log when this driver began: state as of an older one is of an older day."""


# ---- events besides messages ---------------------------------------------------------------------------------------
@record
class Connected:
    """An instance (a new life of it, too) can be talked to."""

    instance: InstanceId


@record
class Lost:
    """An instance is gone: its connection closed, or it was silent for too long."""

    instance: InstanceId
    reason: str


@record
class ProcessEnded:
    """Nobody listens any more where an instance did: if it was lost, it does not come back in a moment."""

    instance: InstanceId


@record
class Journaled:
    version: Version


@record
class JournalRefused:
    """The journal has another version than was expected: another driver's, or the last that the predecessor wrote."""

    reason: str
    journal: Table | None = None
    """What it holds."""


@record
class JournalReachable:
    up: bool


@record
class EpochBegun:
    """Spark has begun this epoch: all earlier ones are in its commit log."""

    epoch: int


@record
class Ingested:
    """Spark's ingest job of this run ended: what won, and the operator's watermark after it."""

    step: Step
    run: int
    winners: tuple[tuple[InstanceId, tuple[m.Fragment, ...]], ...]
    high: int
    meta: bytes


@record
class IngestFailed:
    """The ingest job could not read its rows or reach helpers: run it again with what is alive now."""

    step: Step
    run: int


@record
class ReadFailed:
    """Rows could not be read from the readers given: ask for the present ones."""

    step: Step


@record
class EpochEnded:
    """The sink has the epoch."""

    epoch: int


@record
class TakeCheckpoint:
    """Write a durable checkpoint as of the end of the epoch under way, or of the last one."""

    number: int
    hold: bool = False
    """Begin no further epoch: the job is to be suspended."""
    anew: bool = False
    """Of all state, and not of what changed: the store has lost a file."""


@record
class Published:
    """The manifest of a checkpoint is in the store; `reason`: why not."""

    number: int
    reason: str = ""


Event = (
    m.Message
    | Tick
    | Connected
    | Lost
    | ProcessEnded
    | Journaled
    | JournalRefused
    | JournalReachable
    | EpochBegun
    | Ingested
    | IngestFailed
    | ReadFailed
    | EpochEnded
    | Plan
    | TakeCheckpoint
    | Published
)


# ---- effects -------------------------------------------------------------------------------------------------------
@record
class Journal:
    """Make this table the journaled one if the journal still has version `expected`; answer Journaled or JournalRefused."""

    table: Table
    expected: Version | None


@record
class Close:
    """Close the connection to an instance: it is lost, whatever it still does."""

    instance: InstanceId
    reason: str


@record
class FiredRows:
    """Fired rows of a committed step, and who serves them."""

    commit_id: CommitId
    generation: int
    low: int
    high: int
    readers: tuple[tuple[InstanceId, tuple[int, ...]], ...]
    fired: int
    late: int


@record
class StartIngest:
    """Run the ingest job of this step; it may read what the operators before it have fired in this epoch."""

    step: Step
    run: int
    helpers: tuple[InstanceId, ...]
    rows: tuple[FiredRows, ...]
    """By operator."""
    meta: bytes
    """The notes of the last committed step (per-input maxima and the like)."""


@record
class Emit:
    """Give the sinks the rows of this epoch, then tell EpochEnded."""

    step: Step
    """The last one of the epoch."""
    rows: tuple[FiredRows, ...]
    """By operator."""
    meta: bytes


@record
class Publish:
    """All leaders have written their part of a checkpoint: write its manifest; answer with Published."""

    number: int
    commit_id: CommitId
    results: Results
    meta: bytes
    chains: tuple[bytes, ...]


@record
class Ready:
    """Recovery is over: the query may start."""

    committed: CommitId | None
    meta: bytes
    final: bool
    """A member has given up the rows of the committed epoch: it must not be emitted again, Spark had seen its end."""


@record
class Halt:
    """The job cannot go on."""

    kind: str
    """superseded | unavailable | unrestorable | lost-epoch | refused | user-code | away | failed | bug; another start may
    mend the last three"""
    reason: str

    @property
    def text(self) -> str:
        """For people. A reason that is of the user's code begins with that."""
        return self.reason if self.kind == "user-code" else f"{self.kind}: {self.reason}"


@record
class Note:
    """A fact for the timeline, metrics and logs."""

    kind: str
    step: Step | None
    changes: tuple[g.GroupChange, ...] = ()
    text: str = ""


Effect = Send | Close | Journal | StartIngest | Emit | Publish | Ready | Halt | Note
