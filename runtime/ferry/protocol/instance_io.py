"""Events and effects of an instance's state machine, and the mark it leaves for its next life.

Names and positions only: whoever executes an effect has the bytes that belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt, InstanceId, Label, Step

DRIVER = InstanceId("driver")
"""The peer name of the driver on every channel."""


# ---- events besides messages -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Staged:
    """A task finished streaming this fragment."""

    fragment: m.Fragment


@dataclass(frozen=True, slots=True)
class Computed:
    """The deltas of an attempt were computed: per chain (vnodes, late records, upper bound of fired rows)."""

    step: Step
    attempt: Attempt
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...], int, int], ...]


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to another instance is gone."""

    peer: InstanceId


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A message to a peer is larger than any may be."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Now, in milliseconds of a clock that never goes back."""

    now: int


Event = m.Message | Staged | Computed | PeerLost | TooLarge | Tick


# ---- effects -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    to: InstanceId
    message: m.Message


@dataclass(frozen=True, slots=True)
class Contribute:
    """Combine these fragments and send each leader its Partials."""

    prepare: m.Prepare
    fragments: tuple[m.Fragment, ...]
    leaders: tuple[tuple[InstanceId, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Merge the partials of all helpers with the state, without touching it; answer with `Computed`."""

    prepare: m.Prepare
    helpers: tuple[InstanceId, ...]
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SendDelta:
    """Send the body that belongs to `delta` (computed here, or just received) with it."""

    to: InstanceId
    delta: m.Delta


@dataclass(frozen=True, slots=True)
class LogDelta:
    delta: m.Delta


@dataclass(frozen=True, slots=True)
class Put:
    """Put every logged delta of the label: the only way state changes."""

    label: Label


@dataclass(frozen=True, slots=True)
class Save:
    """Replace the mark: what this instance is, should it crash now."""

    saved: Saved


@dataclass(frozen=True, slots=True)
class ForgetLog:
    """Log entries of steps up to this one are no longer needed."""

    step: Step


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Log entries of this attempt are no longer needed (only without the rule `logs_kept`)."""

    label: Label


@dataclass(frozen=True, slots=True)
class Release:
    """Fragments of epochs up to this one may go, and slices that are final at the watermark."""

    epoch: int
    watermark: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove all state of these virtual nodes."""

    vnodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Put the rows of this chunk that are absent."""

    chunk: m.Chunk


@dataclass(frozen=True, slots=True)
class Scan:
    """Begin to send the learner a snapshot of these virtual nodes."""

    learner: InstanceId
    session: int
    vnodes: tuple[int, ...]
    base: Label | None


@dataclass(frozen=True, slots=True)
class StopScan:
    """The learner does not want this snapshot any more."""

    learner: InstanceId
    session: int


Effect = (
    Send | Contribute | Compute | SendDelta | LogDelta | Put | Save | ForgetLog | ForgetAttempt | Release | Drop | Load
    | Scan | StopScan
)  # fmt: skip


class Saved(NamedTuple):
    """The mark of an instance: its identity after a crash. Written after what it describes, or before (committing)."""

    generation: int = 0
    committed: Label | None = None
    low: int = WATERMARK_NONE
    high: int = WATERMARK_NONE
    meta: bytes = b""
    holds: tuple[int, ...] = ()
    released: int = -1
    """Fired rows of epochs up to this one may be gone."""
    committing: m.Commit | None = None
    """A put was begun: it has to be done again."""
    late: int = 0
    fired: int = 0
    """Late records and (upper bound of) fired rows of the committed step, over all chains."""
    learned: tuple[int, ...] = ()
    """Learned whole as of `committed`: the journal may have this instance in step for them before it is told."""
