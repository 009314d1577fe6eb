"""The interface of sinks (docs/design.md, section 8). The output of an epoch appears in one atomic step, or not at all.

Every driver calls `place(base)` and `open(committed)` once before its first epoch. It calls `write` once for every epoch
with fired rows, and again with the same rows if it repeats the epoch. A restored job begins at an earlier epoch and uses
the later epoch numbers again: before it opens its sinks it calls `truncate_after` or `keep_after` of each sink, until the
call returns. Must never delete published rows in any other case.
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
"""A part that a task has written: (name, rows, bytes)."""


class RowParts(ABC):
    """Fired rows that stay with their instances: each task reads and writes its own part. For sinks with `takes_parts`."""

    @abstractmethod
    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Part]]) -> list[Part]:
        """Run `write` on the rows of each task. Returns the parts of all tasks."""


class Sink(ABC):
    """The end of a pipeline. Your own subclass needs `write`, and `truncate_after` if its job is to be restored.

    Example:
        >>> class Counting(ferry.Sink):
        ...     def __init__(self):
        ...         self.rows = {}
        ...
        ...     def write(self, epoch, generation, rows):
        ...         self.rows[epoch] = rows.num_rows
        ...
        ...     def truncate_after(self, epoch):
        ...         self.rows = {number: n for number, n in self.rows.items() if number <= epoch}
        >>> output = counts.sink(Counting())
    """

    takes_parts: ClassVar[bool] = False
    """Whether `write` accepts `RowParts` in place of a large DataFrame that the driver does not process."""

    def expect(self, schema: pa.Schema) -> None:  # noqa: B027  most sinks accept all columns
        """Take the columns of the rows at declaration. Raises SpecRefused for columns that this sink does not support."""

    def place(self, base: str | None) -> Path | None:
        """The sink's directory, if it has one. `base` replaces the parent of the declared directory."""
        return None

    def identify(self, job: str, run: str = "", before: str | None = None) -> str | None:
        """The name of the sink in its external system, the same in every run of the job. None: no name.

        `before`: the job of the checkpoint with which this run begins.
        """
        return None

    def open(self, committed: int) -> None:  # noqa: B027  most sinks have nothing to open
        """Prepare to write. `committed`: the last committed epoch, -1 for a new job."""

    @abstractmethod
    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish the rows of an epoch. Must be idempotent by epoch."""

    @property
    def takes_back(self) -> bool:
        """Whether `truncate_after` removes rows of any sink of this kind: then a job may go back without a stop."""
        return type(self).truncate_after is not Sink.truncate_after

    def truncate_after(self, epoch: int) -> None:
        """Remove the rows of all later epochs, whose numbers are used again.

        Must be idempotent, and must remove each epoch completely. Raises SpecRefused if this sink cannot remove rows.
        """
        raise SpecRefused(
            f"sink: {self!r} cannot remove the rows after epoch {epoch}. Remove them yourself, or give it a "
            "truncate_after (foreach_epoch: truncate=); then restore with --sink keep (spec.restoreSink: keep), which "
            "keeps the sink's rows"
        )

    def keep_after(self, epoch: int) -> None:  # noqa: B027  most sinks have nothing to do
        """Keep the rows of later epochs, and accept new epochs of these numbers. Must be idempotent."""


def distinct(sinks: Iterable[Sink]) -> list[Sink]:
    """Each sink once: rows of several operators may go to one sink after a deploy."""
    return list({id(sink): sink for sink in sinks}.values())


def place(sinks: Iterable[Sink], base: str | None) -> None:
    """Give every sink its directory. Raises SpecRefused for a shared directory: each sink would skip the other's epochs."""
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
    """Give every sink its job and run. Raises SpecRefused for two sinks of one name: each would block the other."""
    named: dict[str, Sink] = {}
    for sink in sinks:
        name = name_of_sink(sink, job, run, before)
        if name is not None and name in named:
            raise SpecRefused(f"{shown(named[name])} and {shown(sink)} are both known as {name}; use two name=")
        if name is not None:
            named[name] = sink


def name_of_sink(sink: Sink, job: str, run: str, before: str | None) -> str | None:
    """The name of a sink in its external system. Raises SpecRefused if a user's `identify` fails."""
    if is_ferrys(sink):
        return sink.identify(job, run, before)
    with refused(f"identify() of sink {shown(sink)}{at(type(sink))}"):
        name = sink.identify(job, run, before)
        if not isinstance(name, str | None):
            raise TypeError(f"it returned {type(name).__name__}, neither a text nor None")
        return name


def expecting(sink: Sink, schema: pa.Schema, where: str) -> None:
    """Give a sink the columns of its rows. Raises SpecRefused, with the place, for unsupported columns."""
    try:
        with nullcontext() if is_ferrys(sink) else refused(f"expect() of sink {shown(sink)}{at(type(sink))}"):
            sink.expect(schema)
    except SpecRefused as error:
        raise SpecRefused(f"{where}: {error}") from error
