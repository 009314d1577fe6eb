"""Three kinds of failure, and who has to act on each.

FerryError
  Refusal            a peer or a user asked for something that is not allowed; nothing changed
    SpecRefused        the job file or the pipeline is wrong: the user mends it
      DataRefused        the pipeline cannot go on with the data that came: a sum is too great, records are gone
      InputAway          a folder or a system is not there: a job that has begun waits for it
    Superseded         a newer generation or routing table exists: the sender is a zombie and stops
    Final              a sink, or a user's function in it, says that another try is of no use: the job stops
  UserCodeFailed       a function of the user's raised: tried again a few times, then the job stops with its text
  Fault              the world broke: retry, or fail over
    Unreachable        a peer is gone or silent
    RowsGone           a read names rows that are not there (any more): never an empty result
    Exhausted          a bound with a name was reached (disk, memory, a queue, a deadline)
    StateUnavailable   no copy of a virtual node is left: the job stops, it never goes on empty
  Bug                an invariant is broken: crash with the story
"""

import re

UNDECIDED = "restoreFrom is not set"
"""What the refusal of a job begins with that may go on from checkpoints, or from nothing, and is not told."""


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
    """Data has come that the pipeline cannot go on with, though nothing in it was wrong; the message says what to change."""


class InputAway(SpecRefused):
    """A folder of input, or a system that the program asks, is not there, or does not say what its columns are.

    A job that has begun waits for it.
    """


class Superseded(Refusal):
    """The sender is of a lower generation or routing table than the receiver."""


class Final(Refusal):
    """A sink cannot take these rows, and never will: the job stops instead of trying again. For users' functions, too.

    Example:
        >>> def store(epoch, generation, rows):
        ...     if "num" not in rows.columns:
        ...         raise ferry.Final("the table of the database has a column num")
        >>> output = counts.sink(ferry.foreach_epoch(store))
    """


class UserCodeFailed(FerryError):
    """A function of the user's raised, or returned what it may not; `contract.user_code` makes the text, one line."""


class Fault(FerryError):
    """The world broke; retrying or failing over may help."""


class Unreachable(Fault):
    """A peer cannot be reached, or went away."""


class NobodyListens(Unreachable):
    """The machine of a peer answers, and nothing listens there: the process that did has ended."""


class RowsGone(Fault):
    """A read names rows that are not there; an empty answer would lose them silently."""


class Exhausted(Fault):
    """A bound with a name was reached: disk, memory, a queue or a deadline."""


class StateUnavailable(Fault):
    """No copy of a virtual node is left."""


class Bug(FerryError):
    """An invariant of the protocol is broken."""


NO_TRANSPORT = "no transport: "
"""What the last words of a sidecar begin with that may not use TCP, and cannot use anything else."""

OVERFLOW = "too large: "
"""What the text of a SpecRefused begins with that a reader of fired rows gets: reading them again would not help."""

FAULT = re.compile(r"ferry\.contract\.errors\.(\w+: [^\n]*)")
"""In the text of a failed Spark job: what a task has raised."""


def fault_in(text: str) -> str:
    """What a task of Spark's has raised, in the text of its job's failure; the text, when it was nothing of Ferry's.

    >>> fault_in("An error occurred\\n  ferry.contract.errors.Fault: in/a.json cannot be read\\n at org.apache...")
    'Fault: in/a.json cannot be read'
    """
    found = FAULT.search(text)
    return found[1] if found else text


DOES_NOT_FIT = "does not fit: "
"""What the text of a SpecRefused has that a task gets for a value that the declared type of its column cannot hold."""

RECORDS_LOST = "records lost: "
"""What the text of a SpecRefused begins with that a task gets whose records the source has no more: nor would that."""
