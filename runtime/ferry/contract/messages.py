"""Every message between the driver and the instances, and between instances, with its wire form.

| message | from -> to | meaning |
|---|---|---|
| Install | driver -> instance | the routing table from now on |
| Amend | driver -> instance | the changes of the routing table; becomes an Install when it is received |
| Ask / Answer | driver <-> instance | what did you commit? From the answer on lower generations are refused |
| Prepare | driver -> instance | one attempt of one step: helpers send partials, leaders compute and replicate deltas |
| BriefPrepare | driver -> instance | the same for one instance, bits for names; becomes a Prepare when it is received |
| Partials | helper -> leader | the rows of the helper's winning fragments for that leader's virtual nodes |
| Delta | leader -> replica -> ... | after-images of all virtual nodes of one chain; learners get theirs beside the chain |
| Prepared | tail of chains -> driver | these whole chains have logged their delta |
| FragmentsGone | helper -> driver | a winning fragment is not here: the ingest has to run again |
| Commit / Committed | driver <-> instance | apply the deltas of that attempt; it is final |
| Fetch / Chunk | learner <-> leader | snapshot of virtual nodes, begun at `base` |
| Warm | learner -> driver | I hold these virtual nodes whole, as of `commit_id` |
| Learned | learner -> driver | how much of a leader's snapshots has arrived |
| Refused | instance -> driver | you are superseded |
| Waiting | instance -> driver | an attempt takes long: its progress here, and the instances that are missing |
| Unsendable | instance -> driver | a message is too large to be sent, by any instance |
| Failed | instance -> driver | this instance cannot go on, with the reason |
| CodeFailed | instance -> driver | the user's code failed in an attempt, with the reason; the instance goes on |
| Pulse | instance -> driver | it is alive, and how long it has worked without a break |
| Begins | driver -> instance | an epoch begins: copying waits for it |
| Leaving | instance -> driver | it is about to end: the next epochs must not count on its help |
| Freeze | driver -> leader | write what changed until this epoch's end for the checkpoint of that number |
| Checkpointed | leader -> driver | the changes are in the store: the chains of files of the virtual nodes that it led |
| Unrestorable | instance -> driver | the checkpoint that a restore began from cannot be loaded |
| LoadProgram / ProgramLoaded | driver <-> instance | have the operators of a program ready; they are, or cannot be |
| Report | instance -> driver | how much state it holds and the transports of its links, once a second |

A message is a frozen value; its body (record batches) travels beside it and is named by it.
"""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields
from typing import Any

import msgpack

from ferry.contract.names import Attempt, CommitId, Fragment, InstanceId, Step
from ferry.contract.plain import built, plain
from ferry.contract.records import record
from ferry.contract.results import Results
from ferry.contract.routing import GroupChange, Table, Version
from ferry.contract.signs import Begins as Begins
from ferry.contract.signs import Leaving as Leaving
from ferry.contract.signs import Pulse as Pulse
from ferry.contract.signs import Report as Report


@record
class Install:
    table: Table


@record
class Amend:
    """The table whose version is `base` was sent before over the same connection."""

    base: Version
    version: Version
    initial: bool
    groups: tuple[GroupChange, ...]


@record
class Ask:
    generation: int


@record
class Answer:
    instance: InstanceId
    generation: int
    committed: CommitId | None
    results: Results
    meta: bytes
    """The driver's notes that were committed with the step."""
    holds: tuple[int, ...]
    """Virtual nodes held completely as of `committed`."""
    prepared: tuple[CommitId, ...]
    """Commit ids whose deltas are logged but not committed here."""
    released: int = -1
    """The last epoch whose fired rows were released here: a later epoch was prepared, so Spark has seen the end of that
    one."""
    origin: str = ""
    """The restore that all this goes back to; it counts for nothing in another life of the job."""


@record
class Prepare:
    step: Step
    attempt: Attempt
    version: Version
    winners: tuple[tuple[InstanceId, tuple[Fragment, ...]], ...]
    """Per helper the fragments of the task attempts that Spark accepted."""
    low: int
    """Watermark of the operator before the step: records of windows that ended before it are late."""
    high: int
    """Watermark after the step: windows with low < end <= high fire."""

    @property
    def is_void(self) -> bool:
        """Whether the step changes nothing and runs no code, because code of its program has failed: low > high."""
        return self.low > self.high


@record
class BriefPrepare:
    """A Prepare with the fragments of one instance. Helpers are bits of the names in the table of that version, which
    was sent before over the same connection: with names an epoch's bytes would grow with the square of the workers."""

    step: Step
    attempt: Attempt
    version: Version
    low: int
    high: int
    helpers: bytes
    """A bit for each name in the table, in order of the names; the lowest bit of a byte is the first."""
    others: tuple[InstanceId, ...]
    """Helpers that are not in the table."""
    to: InstanceId
    own: tuple[Fragment, ...]


@record
class Partials:
    step: Step
    attempt: Attempt
    helper: InstanceId


@record
class Delta:
    step: Step
    attempt: Attempt
    version: Version
    leader: InstanceId
    chain: tuple[InstanceId, ...]
    """The in-sync members that this delta is for, leader first; empty for a copy sent to a learner."""
    vnodes: tuple[int, ...]
    late: int
    fired: int
    """Approximate number of rows that fire in these virtual nodes."""


@record
class Prepared:
    step: Step
    attempt: Attempt
    chains: tuple[int, ...]
    """Numbers of chains (`TableView.order`) under the table of the attempt: one message for all chains that end at an
    instance."""
    late: tuple[int, ...]
    fired: tuple[int, ...]
    """Fired rows of each chain, from its deltas."""


@record
class FragmentsGone:
    step: Step
    attempt: Attempt
    helper: InstanceId


@record
class Commit:
    commit_id: CommitId
    generation: int
    results: Results
    """Of all operators, including this step; kept with the step, so that a new driver goes on from them."""
    meta: bytes = b""
    origin: str = ""
    """Not empty: no delta leads to this step; the instance loads its state as this restore says (`Table.origin`)."""


@record
class Committed:
    instance: InstanceId
    commit_id: CommitId


@record
class Fetch:
    learner: InstanceId
    version: Version
    session: int
    vnodes: tuple[int, ...]


@record
class Chunk:
    leader: InstanceId
    session: int
    number: int
    base: CommitId | None
    """The commit id of the leader when the scan began."""
    last: bool
    operator: int
    floor: int
    """The snapshot leaves out slices whose windows are all final at this watermark."""


@record
class Warm:
    instance: InstanceId
    commit_id: CommitId | None
    vnodes: tuple[int, ...]
    version: Version = Version(0, 0)
    """The table under which the snapshot was begun: a snapshot from a leader that was replaced since does not count."""


@record
class Learned:
    """Progress of a leader's snapshots; sent only when there are more chunks than ever before."""

    instance: InstanceId
    leader: InstanceId
    chunks: int


@record
class Refused:
    instance: InstanceId
    generation: int


@record
class Failed:
    instance: InstanceId
    reason: str


@record
class CodeFailed:
    """The user's code raised while this attempt was computed: nothing is logged, no state has changed."""

    instance: InstanceId
    step: Step
    attempt: Attempt
    reason: str
    """One line (`contract.user_code`)."""
    final: bool = False
    """A retry is of no use, says the code."""


@record
class Waiting:
    """An attempt takes long; every participant sends it again and again, so that the driver finds the cause."""

    instance: InstanceId
    step: Step
    attempt: Attempt
    unheard: tuple[InstanceId, ...]
    """Helpers whose partials this leader lacks."""
    logged: tuple[tuple[InstanceId, ...], ...]
    """Chains whose delta is logged here and was sent on."""


@record
class Unsendable:
    """A message exceeds the size limit: a retry would be as large."""

    instance: InstanceId
    peer: str
    reason: str


@record
class Freeze:
    """The epoch is final and the next one has not begun. `version`: of the table that names the leaders."""

    number: int
    version: Version
    epoch: int
    anew: bool = False
    """A file that was written before is lost: write the whole state."""


@record
class Checkpointed:
    instance: InstanceId
    number: int
    version: Version
    epoch: int
    """Number, version and epoch of the Freeze: an answer to an abandoned Freeze counts for no other one."""
    chains: bytes
    """In the form of `contract.manifest`; empty when this instance could not take part."""


@record
class Unrestorable:
    instance: InstanceId
    origin: str
    reason: str


@record
class LoadProgram:
    """A program will be deployed: open its operators' state, load its code and compile its kernels. Idempotent."""

    number: int
    program: bytes
    """In the form of `contract.program_load`."""
    given_up: bool = False
    """It will not be deployed: derive no state for it any more."""


@record
class ProgramLoaded:
    instance: InstanceId
    number: int
    error: str = ""
    """Why this instance cannot run the program."""


Message = (
    Install
    | Ask
    | Answer
    | Prepare
    | Partials
    | Delta
    | Prepared
    | FragmentsGone
    | Commit
    | Committed
    | Fetch
    | Chunk
    | Warm
    | Refused
    | Failed
    | Report
    | Begins
    | Leaving
    | Waiting
    | Unsendable
    | Pulse
    | Amend
    | Learned
    | Freeze
    | Checkpointed
    | Unrestorable
    | BriefPrepare
    | CodeFailed
    | LoadProgram
    | ProgramLoaded
)

KINDS: dict[int, type[Any]] = dict(enumerate(typing.get_args(Message), start=1))
"""Wire number of each message; append only."""

CODES: dict[type[Any], int] = {cls: code for code, cls in KINDS.items()}


def encode(message: Message) -> bytes:
    """Msgpack of the field values in order; nested values become lists, a table its own wire form.

    Trailing values that equal their defaults are left out, so that an older peer can read them.
    """
    defaults = _DEFAULTS[type(message)]
    values = [getattr(message, name) for name in defaults]
    for default in reversed(defaults.values()):
        if default is MISSING or values[-1] != default:
            break
        values.pop()
    return bytes(msgpack.packb(values, default=plain))


def decode(code: int, head: bytes) -> Message:
    """Inverse of encode. Raises ValueError for an unknown code or a wrong number of fields, Refusal for an impossible table.

    Fields are only ever added at the end, with a default, which replaces a field that an older peer leaves out. Unknown
    fields of a newer peer are dropped if correctness does not depend on the message; otherwise the message is refused.
    """
    cls = KINDS.get(code)
    if cls is None:
        raise ValueError(f"unknown message kind {code}")
    values = msgpack.unpackb(head)
    hints = _HINTS[cls]
    if cls in _FOR_INFORMATION:
        del values[len(hints) :]
    if not _REQUIRED[cls] <= len(values) <= len(hints):
        raise ValueError(f"{cls.__name__} has {len(hints)} fields, the peer sent {len(values)}")
    message: Message = cls(*(built(hint, value) for hint, value in zip(hints, values, strict=False)))
    return message


_HINTS = {cls: list(typing.get_type_hints(cls).values()) for cls in CODES}
_REQUIRED = {cls: sum(f.default is MISSING for f in fields(cls)) for cls in CODES}
_DEFAULTS = {cls: {f.name: f.default for f in fields(cls)} for cls in CODES}
_FOR_INFORMATION = (Report, Begins, Pulse)
