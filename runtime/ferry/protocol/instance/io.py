"""Events and effects of an instance's state machine, and the commit record for its next life.

Names and positions only: the executor of an effect has the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, Fragment, InstanceId, Step
from ferry.contract.programs import ONE_OPERATOR, Programs, operator_id, program_at
from ferry.contract.records import record
from ferry.contract.results import Results, result_of
from ferry.contract.routing import Version
from ferry.protocol.io import Send, Tick

DRIVER = InstanceId("driver")
"""The driver's peer name on every channel."""


# ---- events besides messages -------------------------------------------------------------------------------------
@record
class Staged:
    """A task finished streaming this fragment."""

    fragment: Fragment


@record
class Computed:
    """The deltas of an attempt were computed: per chain (vnodes, late records, approximate number of fired rows)."""

    step: Step
    attempt: Attempt
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...], int, int], ...]


@record
class ComputeFailed:
    """The user's code raised while an attempt was computed; `final`: a retry is of no use."""

    step: Step
    attempt: Attempt
    reason: str
    final: bool = False


@record
class PeerLost:
    """The connection to another instance closed."""

    peer: InstanceId


@record
class TooLarge:
    """A message to a peer exceeds the size limit."""

    peer: str
    reason: str


@record
class Restored:
    """The state was loaded; `reason`: why not."""

    commit: m.Commit
    reason: str = ""


Event = m.Message | Staged | Computed | ComputeFailed | PeerLost | TooLarge | Restored | Tick


# ---- effects -----------------------------------------------------------------------------------------------------
@record
class Contribute:
    """Combine these fragments and send each leader its Partials."""

    prepare: m.Prepare
    fragments: tuple[Fragment, ...]
    leaders: tuple[tuple[InstanceId, tuple[int, ...]], ...]


@record
class Compute:
    """Merge the partials of all helpers with the state, without touching it; answer with `Computed` or `ComputeFailed`."""

    prepare: m.Prepare
    helpers: tuple[InstanceId, ...]
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...]], ...]


@record
class SendDelta:
    """Send `delta` with its body (computed here, or just received)."""

    to: InstanceId
    delta: m.Delta


@record
class LogDelta:
    delta: m.Delta


@record
class Apply:
    """Apply every logged delta of this commit id: the only way state changes."""

    commit_id: CommitId


@record
class Save:
    """Replace the commit record: the state of this instance after a crash."""

    saved: InstanceRecord


@record
class ForgetLog:
    """Log entries of steps up to this one are no longer needed."""

    step: Step


@record
class ForgetAttempt:
    """Log entries of this attempt are no longer needed (only without the rule `logs_kept`)."""

    commit_id: CommitId


@record
class Forget:
    """Fragments and rows of epochs up to this one may be deleted, and slices that are final at their operator's
    watermark."""

    epoch: int
    watermarks: tuple[int, ...]
    """By id of the operator; empty before the first commit."""


@record
class Drop:
    """Remove all state of these virtual nodes."""

    vnodes: tuple[int, ...]


@record
class Erase:
    """Remove all state, logged deltas and knowledge of final slices: they are of an earlier life of the job.

    Loads, scans and archives under way are dropped. Bodies of messages that wait for their table stay.
    """


@record
class LoadChunk:
    """Load the rows of this chunk that are absent."""

    chunk: m.Chunk


@record
class BeginSnapshot:
    """Begin to send the learner a snapshot of these virtual nodes."""

    learner: InstanceId
    session: int
    vnodes: tuple[int, ...]
    base: CommitId | None
    at_window: bool = False
    """Send no rows; report the copy as complete once all present state has expired, or was written again and so sent as
    a delta."""


@record
class StopScan:
    """The learner does not need this snapshot any more."""

    learner: InstanceId
    session: int


@record
class Archive:
    """From now on write the changes of these virtual nodes, and of no others, for checkpoints."""

    vnodes: tuple[int, ...]


@record
class WriteCheckpoint:
    """Write all changes until now, and report to the driver, with this number, version and epoch, once they are in the
    store."""

    number: int
    version: Version
    epoch: int
    watermarks: tuple[int, ...]
    """By id of the operator; slices that end before the watermark are final and left out."""
    anew: bool = False
    """A file that was written before is lost: begin with a scan."""


@record
class LoadAhead:
    """A Restore for this origin and these virtual nodes will come: its state may be loaded now."""

    origin: str
    vnodes: tuple[int, ...]


@record
class Restore:
    """Load these virtual nodes as of the Commit's step; answer with `Restored`."""

    commit: m.Commit
    vnodes: tuple[int, ...]


Effect = (
    Send
    | Contribute
    | Compute
    | SendDelta
    | LogDelta
    | Apply
    | Save
    | ForgetLog
    | ForgetAttempt
    | Forget
    | Drop
    | Erase
    | LoadChunk
    | BeginSnapshot
    | StopScan
    | Archive
    | WriteCheckpoint
    | LoadAhead
    | Restore
)


@dataclass(unsafe_hash=True)
class InstanceRecord:
    """The commit record of an instance: its state after a crash. Written after the changes that it describes, or before
    (committing)."""

    generation: int = 0
    committed: CommitId | None = None
    results: Results = ()
    """As of `committed`."""
    meta: bytes = b""
    holds: tuple[int, ...] = ()
    released: int = -1
    """Fired rows of epochs up to this one may have been deleted."""
    committing: m.Commit | None = None
    """An Apply was begun: it has to be repeated."""
    learned: tuple[int, ...] = ()
    """Complete copies as of `committed`: the journal may have this instance in sync for them before it gets the
    table."""
    origin: str = ""
    """The restore that all state goes back to; empty: none."""
    programs: Programs = ONE_OPERATOR
    """Of the last installed table: without them a step that is finished after a crash could not be told from its
    neighbours."""

    def has_rows_of(self, commit_id: CommitId) -> bool:
        """Whether the rows fired in this step still exist: it is of the committed epoch, which was not released."""
        step = commit_id.step
        if self.committed is None or step.epoch <= self.released or step.epoch != self.committed.step.epoch:
            return False
        operator = operator_id(self.programs, step)
        return step <= self.committed.step and result_of(self.results, operator).attempt == commit_id.attempt

    def floors(self) -> tuple[int, ...]:
        """By id, the watermark up to which an operator's slices are final and must not be read any more."""
        if self.committed is None:
            return ()
        epoch, last = self.committed.step
        before = self.released >= epoch - 1
        stepped = program_at(self.programs, epoch).operators[: last + 1]
        return tuple(
            result.high if self.released >= epoch or (before and operator not in stepped) else result.low
            for operator, result in enumerate(self.results)
        )

    def changed(self, **changes: Any) -> InstanceRecord:
        """A copy with some fields changed; written several times a step."""
        new = object.__new__(InstanceRecord)
        new.__dict__.update(self.__dict__, **changes)
        return new
