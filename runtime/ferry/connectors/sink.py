"""Where fired rows go (docs/design.md, section 8). An epoch's output appears in one atomic step, or not at all.

`place(base)` and `open(committed)` are called once by every driver before its first epoch; `write` once for every epoch that
fired rows, and again with the same rows when an epoch is run again. A job that is restored begins at an earlier epoch, and
numbers those behind it anew: before it opens its sinks it calls `truncate_after`, or `keep_after`, of each, again until
they have returned. Must never delete what an epoch published otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from ferry.connectors.users import is_ferrys, refused
from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import at, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Part = tuple[str, int, int]
"""What a task has written: its name, rows, bytes."""


class RowParts(ABC):
    """Rows that are where they fired: tasks read them, and pass them to nobody. For a sink with `takes_parts`."""

    @abstractmethod
    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Part]]) -> list[Part]:
        """What `write` says of the rows of each task."""


class Sink(ABC):
    """One end of a pipeline; one of yours needs `write` only, and `truncate_after` if its job is to be restored.

    Example:
        >>> class Counting(ferry.Sink):
        ...     def __init__(self):
        ...         self.rows = {}
        ...
        ...     def write(self, epoch, generation, rows):
        ...         self.rows[epoch] = rows.num_rows
        ...
        ...     def truncate_after(self, epoch):
        ...         self.rows = {one: n for one, n in self.rows.items() if one <= epoch}
        >>> output = counts.sink(Counting())
    """

    takes_parts: ClassVar[bool] = False
    """Whether `write` may get `RowParts`, in place of a DataFrame of very many rows that nothing is to be done with."""

    def expect(self, schema: pa.Schema) -> None:  # noqa: B027  most sinks take whatever comes
        """The columns that rows will have, when the pipeline is built. Raises SpecRefused for what this sink cannot take."""

    def place(self, base: str | None) -> Path | None:
        """The directory that is written to, if there is one; `base` takes the place of its parent."""
        return None

    def identify(self, job: str, run: str = "", before: str | None = None) -> str | None:
        """A name that what this sink writes is known by elsewhere, in this and every later run of the job; None: none.

        `before`: the job whose checkpoint this run begins with.
        """
        return None

    def open(self, committed: int) -> None:  # noqa: B027  most sinks have nothing to open
        """`committed` is the last committed epoch, -1 for a new job."""

    @abstractmethod
    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish the rows of an epoch. Must be idempotent."""

    def truncate_after(self, epoch: int) -> None:
        """Remove what later epochs published: their numbers come again. Must be idempotent, and never leave half of one.

        Raises SpecRefused when this sink cannot.
        """
        raise SpecRefused(
            f"sink: {self!r} cannot remove what it got after epoch {epoch}. Remove that yourself, or give it a "
            "truncate_after (foreach_epoch: truncate=); then restore with --sink keep (spec.restoreSink: keep), which "
            "leaves what a sink has"
        )

    def keep_after(self, epoch: int) -> None:  # noqa: B027  most sinks have nothing to do for that
        """Leave what later epochs published, and be ready to get epochs of these numbers again. Must be idempotent."""


def place(sinks: Iterable[Sink], base: str | None) -> None:
    """Have every sink know its directory. Two in one would each skip the epochs that the other has published."""
    placed: dict[Path, Sink] = {}
    for sink in sinks:
        directory = sink.place(base)
        if directory is None:
            continue
        where = directory.resolve()
        if where in placed:
            raise SpecRefused(f"{shown(placed[where])} and {shown(sink)} both write to {where}; use two directories")
        placed[where] = sink


def identify(sinks: Iterable[Sink], job: str, run: str = "", before: str | None = None) -> None:
    """Have every sink know whose it is. Two of one name would each keep the other from writing."""
    named: dict[str, Sink] = {}
    for sink in sinks:
        name = name_of_sink(sink, job, run, before)
        if name is not None and name in named:
            raise SpecRefused(f"{shown(named[name])} and {shown(sink)} are both known as {name}; use two name=")
        if name is not None:
            named[name] = sink


def name_of_sink(sink: Sink, job: str, run: str, before: str | None) -> str | None:
    """By which elsewhere knows what a sink writes. Raises SpecRefused when a user's own fails."""
    if is_ferrys(sink):
        return sink.identify(job, run, before)
    with refused(f"identify() of sink {shown(sink)}{at(type(sink))}"):
        name = sink.identify(job, run, before)
        if not isinstance(name, str | None):
            raise TypeError(f"it returned {type(name).__name__}; a text or None is needed")
        return name


def expecting(sink: Sink, schema: pa.Schema, where: str) -> None:
    """Tell a sink the columns of its rows. Raises SpecRefused, saying where, for what it cannot take."""
    try:
        with nullcontext() if is_ferrys(sink) else refused(f"expect() of sink {shown(sink)}{at(type(sink))}"):
            sink.expect(schema)
    except SpecRefused as error:
        raise SpecRefused(f"{where}: {error}") from error
