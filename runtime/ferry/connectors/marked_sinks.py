"""Sinks whose system changes rows and a mark in one step: the mark says which epoch of which run is there.

    open       the mark becomes this run's, unless another run has published; rows are compared with the system's columns
    write      what the mark has is not written again; rows and mark are written together, if nobody was there meanwhile
    restore    the mark goes back, and gets another life: a driver of the time before it writes no more

The driver writes, as for Kafka: an epoch is one step of one process. Must never write rows without their mark.
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
TRY_SECONDS = 0.05
"""How often a step is tried anew, and the first wait, when somebody else has changed the same table meanwhile."""


@dataclass(frozen=True, slots=True)
class SinkMark:
    """What a system knows of a sink."""

    epoch: int
    """The last one that is there; -1: none."""
    generation: int
    """Of the driver that wrote it; -1: none has."""
    run: str
    life: str
    """Of the last restore; empty: there was none."""


class Overtaken(Fault):
    """Somebody else was there first: the mark has to be looked at again."""


class MarkedSink(Sink):
    """What is the same for all of them; one kind implements the methods that begin with `_`."""

    def __init__(self, name: str) -> None:
        self._own = name
        self._name = f"ferry.{name}"
        self._name_before = ""
        self._run = ""
        self._life: str | None = None
        self.notice = ""

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """Marks are of a job and a sink, in every run of it."""
        self._name, self._run = f"ferry.{job}.{self._own}", run
        self._name_before = f"ferry.{before}.{self._own}" if before not in (None, job) else ""
        return f"{self._name} in {self!r}"

    def open(self, committed: int) -> None:
        """Have the mark be this run's. Raises SpecRefused when another run has published."""
        with allowed_before(committed >= 0):
            self._prepare()
            for _ in self._tries():
                there = self._marked(self._name)
                if there is not None and self._is_this_runs(there, committed):
                    self._life = there.life
                    return
                if there is None and committed >= 0:
                    self.notice = (
                        f"{self!r} has nothing of this run, which has committed epoch {committed}: is it the same?"
                    )
                mark = SinkMark(
                    -1, -1, self._marked_as(self._run), self._marked_as("") if there is None else there.life
                )
                with self._again():
                    self._put(None, mark, there)
                    self._life = mark.life
                    return

    def write(self, epoch: int, generation: int, rows: pa.Table | DataFrame) -> None:
        """Publish an epoch, unless it is there. Raises Final when another driver has taken over."""
        table: pa.Table | None = None
        for _ in self._tries():
            there = self._marked(self._name)
            self._judge(there, generation)
            assert there is not None
            if epoch <= there.epoch:
                return
            table = table if table is not None else for_frame(rows if isinstance(rows, pa.Table) else rows.toArrow())
            if not table.num_rows:  # as of a source that is at rest: no commit for that
                return
            with self._again():
                return self._put(table, replace(there, epoch=epoch, generation=generation), there)

    def truncate_after(self, epoch: int) -> None:
        """Take back what later epochs wrote, where that can be. Raises SpecRefused."""
        if self._name_before and (other := self._marked_if_there(self._name_before)) and other.epoch > epoch:
            raise SpecRefused(
                f"sink: {self!r} has epochs up to {other.epoch} of the job whose checkpoint this is, as "
                f"{self._name_before!r}, and that checkpoint is of epoch {epoch}; give this job a table of its own, or "
                "restore with --sink keep (spec.restoreSink: keep), which leaves these rows"
            )
        self._begin_life(epoch, take_back=True)

    def keep_after(self, epoch: int) -> None:
        """Leave what later epochs wrote; epochs of these numbers are written beside it."""
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
        """Whether there is nothing to claim. Raises SpecRefused for another run's."""
        if there.run != self._marked_as(self._run):
            if there.epoch < 0:
                return False
            raise SpecRefused(
                f"sink: {self!r} has rows of another run{self._words_of(there)}, up to epoch {there.epoch} of it, written "
                f"as {self._name!r}; give it another name= to write beside them, or another table"
            )
        if there.epoch > committed:
            raise SpecRefused(
                f"sink: {self!r} has got epoch {there.epoch} of another run (this one has committed up to {committed}); "
                "give it another name=, or another table"
            )
        return True

    def _judge(self, there: SinkMark | None, generation: int) -> None:
        """Whether this driver still writes. Raises Final, or Unreachable for a table that lost its mark."""
        if there is None:
            raise Unreachable(
                f"{self!r}: the mark of this run, {self._name!r}, is not there: is it the same table? Put it back; to go on "
                "without what was there, stop the job and start it again"
            )
        if self._life is not None and there.life != self._life:
            raise Final(f"sink: {self!r}: the job was restored by another driver, and this one writes no more")
        if there.run != self._marked_as(self._run):
            raise Final(f"sink: {self!r} is written by another run{self._words_of(there)}; use another table, or name=")
        if there.generation > generation:
            raise Final(f"{self!r}: the driver of generation {there.generation} writes, this one is of {generation}")

    def _marked_as(self, name: str) -> str:
        """How the system keeps the name of a run, or a life."""
        return name

    def _words_of(self, there: SinkMark) -> str:
        return f" ({there.run})" if there.run else ""

    def _marked_if_there(self, name: str) -> SinkMark | None:
        self._prepare()
        return self._marked(name)

    def _tries(self) -> Iterator[int]:
        """As often as it is worth while. Raises Unreachable behind the last one."""
        for number in range(TRIES):
            if number:
                time.sleep(TRY_SECONDS * 2**number)
            yield number
        raise Unreachable(f"{self!r}: others write to the table, and were faster {TRIES} times")

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Around a step: who was overtaken goes on behind it."""
        try:
            yield
        except Overtaken as error:
            log.info("%r: %s; it is looked at again", self, error)

    @abstractmethod
    def _prepare(self) -> None:
        """Have what rows and mark are written to. Raises SpecRefused when rows do not fit it."""

    @abstractmethod
    def _marked(self, name: str) -> SinkMark | None:
        """The mark of this name; None: there is none."""

    @abstractmethod
    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        """Add rows and have the mark, in one step. Raises Overtaken when the mark is not `there` any more."""

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Remove the rows of later epochs and have the mark, in one step. Raises SpecRefused where that cannot be."""
        raise SpecRefused(self._no_way_back(epoch, there))

    def _no_way_back(self, epoch: int, there: SinkMark, why: str = "") -> str:
        later = f"epoch {there.epoch}" if there.epoch == epoch + 1 else f"epochs {epoch + 1} to {there.epoch}"
        return (
            f"sink: {self!r} cannot take back {later}{why}. Restore with --sink keep (spec.restoreSink: keep), which leaves "
            "what a sink has, and has these epochs written once more"
        )


@contextmanager
def allowed_before(before: bool) -> Iterator[None]:
    """What a system does not allow is waited for by a job that has written `before`; else it was never allowed."""
    try:
        yield
    except Disallowed as error:
        if before:
            raise
        raise SpecRefused(str(error)) from error


class Disallowed(Unreachable):
    """The system says that it may not be, or lacks what it takes: somebody may give it back while the job runs."""
