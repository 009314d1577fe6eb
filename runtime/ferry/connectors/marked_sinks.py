"""Sinks with transactions: one transaction writes the rows of an epoch and the sink's mark. The mark names run and epoch.

    open       claims the mark for this run, unless another run has published; compares the rows with the system's columns
    write      skips an epoch that the mark includes; writes rows and mark together, if the mark is unchanged since its read
    restore    sets the mark back and gives it a new life; a driver of the earlier life cannot write any more

Only the driver writes, as for Kafka: one process writes an epoch in one transaction. Must never write rows without a mark.
"""

from __future__ import annotations

import logging
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ferry.connectors.sink import Sink
from ferry.contract.errors import Fault, Final, SpecRefused, Unreachable
from ferry.kernels.frame_types import for_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("ferry.driver")

TRIES = 6
"""Greatest number of attempts of a transaction while other writers change the same table."""

TRY_SECONDS = 0.05
"""The wait before attempt n is this times 2**n."""


@dataclass(frozen=True, slots=True)
class SinkMark:
    """A sink's mark in the external system."""

    epoch: int
    """The last published epoch; -1 before the first."""
    generation: int
    """The generation of the driver that wrote this epoch; -1 before the first."""
    run: str
    life: str
    """Identifier of the last restore; empty without a restore."""


class Overtaken(Fault):
    """Another writer has committed first: the mark must be read again."""


class MarkedSink(Sink):
    """The common part of sinks with a mark. A subclass implements the abstract methods for its system."""

    def __init__(self, name: str) -> None:
        self._own = name
        self._name = f"ferry.{name}"
        self._name_before = ""
        self._run = ""
        self._life: str | None = None
        self.notice = ""

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """The mark's name: job and sink, the same in every run of the job."""
        self._name, self._run = f"ferry.{job}.{self._own}", run
        self._name_before = f"ferry.{before}.{self._own}" if before not in (None, job) else ""
        return f"{self._name} in {self!r}"

    def open(self, committed: int) -> None:
        """Claim the mark for this run. Raises SpecRefused if another run has published."""
        with allowed_before(committed >= 0):
            self._prepare()
            for _ in self._tries():
                there = self._marked(self._name)
                if there is not None and self._is_this_runs(there, committed):
                    self._life = there.life
                    return
                if there is None and committed >= 0:
                    self.notice = (
                        f"{self!r} has no rows of this run, which has committed epoch {committed}: "
                        "is it the same table?"
                    )
                mark = SinkMark(
                    -1, -1, self._marked_as(self._run), self._marked_as("") if there is None else there.life
                )
                with self._again():
                    self._put(None, mark, there)
                    self._life = mark.life
                    return

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish an epoch, unless it is published. Raises Final if another driver has taken over."""
        table: pa.Table | None = None
        for _ in self._tries():
            there = self._marked(self._name)
            self._judge(there, generation)
            assert there is not None
            if epoch <= there.epoch:
                return
            table = table if table is not None else for_frame(rows if isinstance(rows, pa.Table) else rows.toArrow())
            if not table.num_rows:  # An idle source gives empty epochs, which need no commit.
                return
            with self._again():
                return self._put(table, replace(there, epoch=epoch, generation=generation), there)

    @property
    def takes_back(self) -> bool:
        """Only the table knows: another writer may have changed it meanwhile."""
        return False

    def truncate_after(self, epoch: int) -> None:
        """Remove the rows of later epochs, if the system can. Raises SpecRefused."""
        if self._name_before and (other := self._marked_if_there(self._name_before)) and other.epoch > epoch:
            raise SpecRefused(
                f"sink: {self!r} has epochs up to {other.epoch} of the checkpoint's job, as {self._name_before!r}, but the "
                f"checkpoint is of epoch {epoch}; give this job a table of its own, or restore with --sink keep "
                "(spec.restoreSink: keep), which keeps these rows"
            )
        self._begin_life(epoch, take_back=True)

    def keep_after(self, epoch: int) -> None:
        """Keep the rows of later epochs. New epochs get the same numbers, and are added."""
        self._begin_life(epoch, take_back=False)

    def _begin_life(self, epoch: int, take_back: bool) -> None:
        self._prepare()
        for _ in self._tries():
            there = self._marked(self._name)
            published = -1 if there is None else there.epoch
            mark = SinkMark(min(published, epoch), -1, *map(self._marked_as, (self._run, uuid.uuid4().hex)))
            with self._again():
                if take_back and there is not None and published > epoch:
                    self._take_back(epoch, mark, there)
                else:
                    self._put(None, mark, there)
                self._life = mark.life
                return

    def _is_this_runs(self, there: SinkMark, committed: int) -> bool:
        """Whether the mark already belongs to this run. Raises SpecRefused if another run has published."""
        if there.run != self._marked_as(self._run):
            if there.epoch < 0:
                return False
            raise SpecRefused(
                f"sink: {self!r} has rows of another run{self._words_of(there)}, up to its epoch {there.epoch}, written "
                f"as {self._name!r}; give it another name= to write beside them, or another table"
            )
        if there.epoch > committed:
            raise SpecRefused(
                f"sink: {self!r} has epoch {there.epoch} of another run (this run has committed up to {committed}); "
                "give it another name=, or another table"
            )
        return True

    def _judge(self, there: SinkMark | None, generation: int) -> None:
        """Check that this driver may write. Raises Final if it may not, Unreachable for a table that lost its mark."""
        if there is None:
            raise Unreachable(
                f"{self!r}: the mark of this run, {self._name!r}, is missing: is it the same table? Put it back; to go on "
                "without its rows, stop the job and start it again"
            )
        if self._life is not None and there.life != self._life:
            raise Final(f"sink: {self!r}: another driver has restored the job; this driver stops writing")
        if there.run != self._marked_as(self._run):
            raise Final(f"sink: {self!r} is written by another run{self._words_of(there)}; use another table, or name=")
        if there.generation > generation:
            raise Final(f"{self!r}: the driver of generation {there.generation} writes; this driver is of {generation}")

    def _marked_as(self, name: str) -> str:
        """The system's form of the name of a run or a life."""
        return name

    def _words_of(self, there: SinkMark) -> str:
        return f" ({there.run})" if there.run else ""

    def _marked_if_there(self, name: str) -> SinkMark | None:
        self._prepare()
        return self._marked(name)

    def _tries(self) -> Iterator[int]:
        """Numbers of attempts, with a wait between them. Raises Unreachable after the last attempt."""
        for number in range(TRIES):
            if number:
                time.sleep(TRY_SECONDS * 2**number)
            yield number
        raise Unreachable(f"{self!r}: other writers of the table committed first, {TRIES} times")

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Suppress Overtaken, so the caller makes the next attempt."""
        try:
            yield
        except Overtaken as error:
            log.info("%r: %s; the mark is read again", self, error)

    @abstractmethod
    def _prepare(self) -> None:
        """Create the tables for rows and mark. Raises SpecRefused if the rows do not fit the table."""

    @abstractmethod
    def _marked(self, name: str) -> SinkMark | None:
        """The mark of this name, or None."""

    @abstractmethod
    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        """Write rows and mark in one transaction. Raises Overtaken if the mark is no longer `there`."""

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Remove the rows of later epochs and write the mark in one transaction. Raises SpecRefused if it cannot."""
        raise SpecRefused(self._no_way_back(epoch, there))

    def _no_way_back(self, epoch: int, there: SinkMark, why: str = "") -> str:
        later = f"epoch {there.epoch}" if there.epoch == epoch + 1 else f"epochs {epoch + 1} to {there.epoch}"
        return (
            f"sink: {self!r} cannot take back {later}{why}. Restore with --sink keep (spec.restoreSink: keep), which keeps "
            "the sink's rows and writes these epochs once more"
        )


@contextmanager
def allowed_before(before: bool) -> Iterator[None]:
    """Turn Disallowed into SpecRefused, unless this job has written `before`: such a job waits for the permission."""
    try:
        yield
    except Disallowed as error:
        if before:
            raise
        raise SpecRefused(str(error)) from error


class Disallowed(Unreachable):
    """The system denies a permission, or a required object is missing. An administrator may restore it during the job."""
