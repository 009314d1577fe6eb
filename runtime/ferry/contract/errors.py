"""Three kinds of failure, and the process or person that has to act on each.

FerryError
  Refusal            a peer or a user asked for something that is not allowed; nothing changed
    SpecRefused        the job file or the pipeline is wrong: the user has to correct it
      DataRefused      the pipeline cannot process the data: a sum overflows, records are gone
      InputAway        a folder or a system is unavailable: a running job waits for it
    Superseded         a newer generation or routing table exists: the sender is a zombie and stops
    Final              a sink, or a user's function in it, cannot succeed at a retry: the job stops
  UserCodeFailed       a function of the user's raised: tried again a few times, then the job stops with its text
  Fault              the world broke: retry, or fail over
    Unreachable        a peer is gone or silent
    RowsGone           a read names rows that do not exist (any more): never an empty result
    Exhausted          a bound with a name was reached (disk, memory, a queue, a deadline)
    StateUnavailable   no copy of a virtual node is left: the job stops instead of going on empty
  Bug                an invariant is broken: crash with the story
"""

import re

UNDECIDED = "restoreFrom is not set"
"""Beginning of the refusal of a job that has checkpoints and does not say whether to restore one."""


class FerryError(Exception):
    """Base of every error that Ferry raises on purpose.

    Example:
        >>> issubclass(ferry.SpecRefused, ferry.FerryError)
        True
    """


class Refusal(FerryError):
    """A request that is not allowed; nothing changed."""


class SpecRefused(Refusal):
    """A job file or pipeline that cannot run; the message names the thing and what to do. For your own checks, too.

    Example:
        >>> try:
        ...     bids.key_by("actuion")
        ... except ferry.SpecRefused as refused:
        ...     print(refused)
        key_by on source 'bids': no column 'actuion'; there are seq, ts, auction, bidder, price
    """


class DataRefused(SpecRefused):
    """The pipeline cannot go on with its data, although no record is malformed; the message says what to change."""


class InputAway(SpecRefused):
    """A folder of input or an external system is unavailable, or does not report its columns.

    A job that has begun waits for it.
    """


class Superseded(Refusal):
    """The sender is of a lower generation or routing table than the receiver."""


class Final(Refusal):
    """A sink can never take these rows: the job stops instead of retrying. Users' functions may raise it, too.

    Example:
        >>> def store(epoch, generation, rows):
        ...     if "num" not in rows.columns:
        ...         raise ferry.Final("the table of the database has a column num")
        >>> output = counts.sink(ferry.foreach_epoch(store))
    """


class UserCodeFailed(FerryError):
    """A function of the user's raised an error or returned a forbidden value; `contract.user_code` makes the text, one
    line."""


class Fault(FerryError):
    """The world broke; retrying or failing over may help."""


class Unreachable(Fault):
    """A peer cannot be reached, or went away."""


class NobodyListens(Unreachable):
    """The peer's machine answers but no process listens there: the peer has ended."""


class RowsGone(Fault):
    """A read names rows that do not exist; an empty answer would lose them silently."""


class Exhausted(Fault):
    """A bound with a name was reached: disk, memory, a queue or a deadline."""


class StateUnavailable(Fault):
    """No copy of a virtual node is left."""


class Bug(FerryError):
    """An invariant of the protocol is broken."""


NO_TRANSPORT = "no transport: "
"""Beginning of the last words of a sidecar that may not use TCP and has no other transport."""

OVERFLOW = "too large: "
"""Prefix of the SpecRefused for a read of too many fired rows; retrying cannot help."""

FAULT = re.compile(r"ferry\.contract\.errors\.(\w+: [^\n]*)")
"""The error that a task raised, in the text of a failed Spark job."""


def fault_in(text: str) -> str:
    """The error that a task of Spark raised, from the text of its job's failure; the whole text if the error is not
    Ferry's.

    >>> fault_in("An error occurred\\n  ferry.contract.errors.Fault: in/a.json cannot be read\\n at org.apache...")
    'Fault: in/a.json cannot be read'
    """
    found = FAULT.search(text)
    return found[1] if found else text


DOES_NOT_FIT = "does not fit: "
"""Prefix of the SpecRefused for a value that does not fit the declared type of its column."""

RECORDS_LOST = "records lost: "
"""Prefix of the SpecRefused that a task raises when its source no longer has the records; retrying cannot help."""
