"""Loops: long-running Spark tasks. Each loop requests shares of every ingest run from the driver, until the driver ends it.

A Spark job per epoch costs tens of milliseconds; an assignment costs one message and its answer. A loop processes a share
like a task of an ingest job (`ingest`). Must never decide whether a share counts: without an answer, the driver reassigns
the share under another number.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow.flight as fl

from ferry import environment
from ferry.contract.ingest_runs import Assignment
from ferry.contract.tickets import Right
from ferry.spark.tasks import flight
from ferry.spark.tasks.ingest import IngestTask, IngestWork
from ferry.spark.tasks.warmup import load
from ferry.system.memory import keep_freed

TEXT_MAX = 20_000
"""Maximum characters of the traceback of a failed share; its end is kept."""


@dataclass(frozen=True, slots=True)
class LoopsPlace:
    """The address at which loops get their shares."""

    uri: str
    authority: str | None
    """certificate of the run; None: TLS is off"""
    right: Right = field(repr=False)


@dataclass(frozen=True, slots=True)
class AssignmentResult:
    """The answer of a loop to an assignment."""

    receipt: str = ""
    failed: str = ""
    """The traceback of an error that these records cause, e.g. in a user's function; empty: no error."""

    def dump(self) -> bytes:
        """JSON, for the driver."""
        return json.dumps([self.receipt, self.failed]).encode()

    @staticmethod
    def load(data: bytes) -> AssignmentResult:
        """Inverse of dump."""
        return AssignmentResult(*json.loads(data))


FREED_BYTES = 64 * 1024 * 1024
"""Freed memory that the process of a loop keeps."""


def loops(place: LoopsPlace, job: int, works: Mapping[int, IngestWork]) -> Callable[[Iterable[int]], Iterator[int]]:
    """The function for mapPartitions: one loop per partition of job `job`; `works` by operator."""

    def task(partition: Iterable[int]) -> Iterator[int]:
        for number in partition:
            attend(place, job, works)
            yield number

    return task


def attend(place: LoopsPlace, job: int, works: Mapping[int, IngestWork]) -> None:
    """Run a loop until the driver ends it. Raises a Flight error when the driver is gone."""
    keep_freed(FREED_BYTES)
    load([(work.descriptor, work.condense) for work in works.values()])  # Before the first assignment.
    ticket = place.right.narrowed({"job": job, "worker": environment.read().worker}).dump()
    with flight.connect(place.uri, place.authority) as client, flight.Connections(place.authority) as connections:
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(ticket))
        try:
            while True:
                try:
                    assigned = reader.read_chunk().app_metadata
                except StopIteration:
                    writer.close()
                    return
                assignment = Assignment.load(assigned.to_pybytes())
                writer.write_metadata(_answer(works[assignment.run.step.operator], assignment, connections).dump())
        except BaseException:
            reader.cancel()  # So that the driver does not wait for an answer: this process may live on.
            raise


def _answer(work: IngestWork, assignment: Assignment, connections: flight.Connections) -> AssignmentResult:
    try:
        return AssignmentResult(
            receipt=IngestTask(work, assignment.run, assignment.task, assignment.turn, connections).run(
                [assignment.shares]
            )
        )
    except Exception:
        return AssignmentResult(failed=traceback.format_exc()[-TEXT_MAX:])
