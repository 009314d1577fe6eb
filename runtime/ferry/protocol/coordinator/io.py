"""Events, effects, phases and settings of the coordinator's state machine."""

from __future__ import annotations

from typing import Final

from ferry.contract import messages as m
from ferry.contract.names import CommitId, Fragment, InstanceId, Step
from ferry.contract.plans import Plan
from ferry.contract.programs import WITHDRAWN, ProgramVersion
from ferry.contract.records import record
from ferry.contract.results import Results
from ferry.contract.routing import Table, Version
from ferry.protocol.coordinator import groups as g
from ferry.protocol.io import Send, Tick


class Phase:
    """Phases of a driver. Plain strings: members of an enum take six times as long to look up, several times an
    event."""

    JOURNAL: Final = "journal"
    ASK: Final = "ask"
    FINISH: Final = "finish"
    IDLE: Final = "idle"
    HOLD: Final = "hold"
    """An epoch has begun, and waits for copies, or for the journal to have its program."""
    INGEST: Final = "ingest"
    PREPARE: Final = "prepare"
    COMMIT: Final = "commit"
    READ: Final = "read"
    STOPPED: Final = "stopped"
    COMMITS: Final = (COMMIT, FINISH, HOLD)
    """A Commit is under way."""


@record
class CoordinatorSettings:
    """Deadlines and pauses of the coordinator, in milliseconds of its clock."""

    attempt_ms: int = 10_000
    """An attempt that is not logged everywhere by then is repeated, the second time without the instances that keep it
    waiting; twice as long each time, counted from the last sign of work on it."""
    silence_ms: int = 10_000
    """An instance without a message for this long is at a standstill, and lost."""
    retry_ms: int = 60_000
    """Pause after a failure (of two instances to reach each other, of a move); doubled each time."""
    retry_max_ms: int = 600_000
    """The longest of these pauses."""
    apart_ms: int = 300_000
    """Longest time to retry an epoch when two instances cannot reach each other and no workaround helps."""
    commit_ms: int = 2_000
    """Interval at which Commit is repeated to members that have not answered."""
    grace_ms: int = 0
    """A member whose connection closed may return within this time with all its state: a short interruption copies
    nothing."""
    return_ms: int = 60_000
    """How long a job waits for the only holder of a virtual node."""
    backoff_ms: int = 1_000
    """Time for which a failed instance is left out, so that a full disk does not end every other attempt; doubled with
    each further failure."""
    backoff_max_ms: int = 60_000
    """The longest of these times; an instance that has not failed for as long starts from the first again."""
    code_waits_ms: tuple[int, ...] = (1_000, 4_000, 10_000)
    """Pauses between the attempts of a step with failing user code: the cause may be the network. The job stops after
    the last."""
    start_ms: int = 15_000
    """How long a new driver waits for members of the journaled groups before it removes them."""
    acquaint_ms: int = 1_300
    """Time in which the other instances find a new one; a leader would wait this long for its fragments."""
    warm_ms: int = 600_000
    """A learner that received nothing for this long is dropped, and its move abandoned for a while."""
    plan_ms: int = 1_800_000
    """A plan without progress for this long is rolled back."""
    load_ms: int = 30_000
    """How long the instances may take to load a deployed program."""
    load_again_ms: int = 2_000
    """Interval at which LoadProgram is repeated to instances that have not answered."""
    ended: int = -1
    """The last epoch in Spark's commit log when this driver began: state as of an earlier epoch is outdated."""


# ---- events besides messages ---------------------------------------------------------------------------------------
@record
class Connected:
    """An instance (perhaps a new life of it) is connected."""

    instance: InstanceId


@record
class Lost:
    """An instance is lost: its connection closed, or it was silent for too long."""

    instance: InstanceId
    reason: str


@record
class ProcessEnded:
    """The address of an instance refuses connections: if the instance was lost, it does not return in a moment."""

    instance: InstanceId


@record
class Journaled:
    version: Version


@record
class JournalRefused:
    """The journal has another version than expected: another driver's, or the predecessor's last one."""

    reason: str
    journal: Table | None = None
    """The journaled table."""


@record
class JournalReachable:
    up: bool


@record
class EpochBegun:
    """Spark has begun this epoch: all earlier ones are in its commit log."""

    epoch: int


@record
class Ingested:
    """Spark's ingest job of this run ended: the winning fragments, and the operator's watermark after it."""

    step: Step
    run: int
    winners: tuple[tuple[InstanceId, tuple[Fragment, ...]], ...]
    high: int
    meta: bytes
    is_void: bool = False
    """The step changes nothing: code of a program whose rows are not written has failed."""


@record
class IngestFailed:
    """The ingest job could not read its rows or reach helpers: repeat it with the instances alive now."""

    step: Step
    run: int


@record
class ReadFailed:
    """Rows could not be read from these readers: ask for the present ones."""

    step: Step


@record
class EpochEnded:
    """The sinks have the epoch."""

    epoch: int


@record
class TakeCheckpoint:
    """Write a durable checkpoint as of the end of the epoch under way, or of the last one."""

    number: int
    hold: bool = False
    """Begin no further epoch: the job is to be suspended."""
    anew: bool = False
    """Write all state instead of the changes: the store has lost a file."""


@record
class Published:
    """The manifest of a checkpoint is in the store; `reason`: why it is not."""

    number: int
    reason: str = ""


@record
class Deploy:
    """Run this program from the next epoch on, or from epoch `at`, once all instances have loaded it; answered with
    Deployed. A new driver has to get it again until the journal has the program."""

    number: int
    operators: tuple[int, ...]
    """Ids, by position."""
    program: bytes
    """For the instances: see `contract.messages.LoadProgram`."""
    at: int = 0
    altered: tuple[tuple[int, int], ...] = ()
    """See `contract.programs.ProgramVersion`."""
    base: int = 0
    """The program in force with which it was compared; 0: any."""
    silent: tuple[int, ...] = ()
    """See `contract.programs.ProgramVersion`."""
    at_time: int | None = None
    """Not before all watermarks have reached this event time, in milliseconds since 1970."""

    def version(self, since: int) -> ProgramVersion:
        """The row of the table."""
        return ProgramVersion(self.number, since, self.operators, self.altered, self.silent)


@record
class Withdraw:
    """Give up this deploy. A program in force is taken back as long as no step of it is decided; answered with Deployed."""

    number: int
    reason: str = WITHDRAWN


@record
class Rewind:
    """Halt, because the next driver is to begin with an earlier checkpoint."""

    reason: str


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
    | Deploy
    | Withdraw
    | Rewind
)


# ---- effects -------------------------------------------------------------------------------------------------------
@record
class Journal:
    """Make this table the journaled one if the journal still has version `expected`; answer Journaled or JournalRefused."""

    table: Table
    expected: Version | None


@record
class Close:
    """Close the connection to an instance: it is lost, whatever it does."""

    instance: InstanceId
    reason: str


@record
class FiredRows:
    """Fired rows of a committed step, and the instances that serve them."""

    commit_id: CommitId
    generation: int
    low: int
    high: int
    readers: tuple[tuple[InstanceId, tuple[int, ...]], ...]
    fired: int
    late: int


@record
class StartIngest:
    """Run the ingest job of this step; it may read the rows that earlier operators have fired in this epoch."""

    step: Step
    run: int
    helpers: tuple[InstanceId, ...]
    rows: tuple[FiredRows, ...]
    """By operator."""
    meta: bytes
    """The notes of the last committed step (per-input maxima and the like)."""
    failed: str = ""
    """Why code of the step, whose rows are not written, failed in an instance: the step is to be void."""


@record
class Emit:
    """Give the sinks the rows of this epoch, then post EpochEnded."""

    step: Step
    """The last step of the epoch."""
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
    program: ProgramVersion
    """Of the epoch; others may be in force by now."""


@record
class Deployed:
    """The program is in force, or it is not and will not be, because it was `refused`."""

    number: int
    refused: str = ""


@record
class CodeFails:
    """The user's code has failed again in the first step of an epoch: another program may take over, by a deploy."""

    reason: str


@record
class Ready:
    """Recovery is over: the query may start."""

    committed: CommitId | None
    meta: bytes
    final: bool
    """A member has released the rows of the committed epoch: Spark has seen its end, so it must not be emitted
    again."""


@record
class Halt:
    """The job cannot go on."""

    kind: str
    """rewind | superseded | unavailable | unrestorable | lost-epoch | refused | user-code | away | failed | bug; a restart
    may resolve the last three"""
    reason: str

    @property
    def text(self) -> str:
        """For people. A failure of the user's code begins with its line."""
        return self.reason if self.kind == "user-code" else f"{self.kind}: {self.reason}"


@record
class Note:
    """A fact for the timeline, metrics and logs."""

    kind: str
    step: Step | None
    changes: tuple[g.GroupChange, ...] = ()
    text: str = ""


Effect = Send | Close | Journal | StartIngest | Emit | Publish | Deployed | CodeFails | Ready | Halt | Note
