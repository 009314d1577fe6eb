"""Follows a handover until the job is at rest or cannot come to rest: conditions, moves and events.

`judge` is pure: it gives the meaning of one look at the job. `follow` polls the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ferry_operator.cli.remote import intents, tables
from ferry_operator.cli.remote.remote import RemoteJob, mine
from ferry_operator.job.status import JobStatus
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import FORBIDDEN, ApiError

LOOK_SECONDS = 0.5

CALM_SECONDS = 2.5
"""Time for which a job must look at rest, because annotations have no generation that shows that the operator saw them."""

SILENT_SECONDS = 30.0
"""Time without a look at the newest spec after which no operator runs; also the longest outage of the API server."""

FINAL = "SpecRefused", "DriverRefused", "DriverHalted"
"""Reasons of a change that the operator will never follow."""


class FollowState(StrEnum):
    """The state of a job at one look."""

    UNSEEN = "unseen"
    """the operator has not looked at the newest spec"""
    GOING = "going"
    REST = "rest"
    PAUSED = "paused"
    REFUSED = "refused"
    FAILED = "failed"
    FINISHED = "finished"


WAITING = FollowState.UNSEEN, FollowState.GOING


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a job."""

    state: FollowState
    text: str
    """the progress, or the reason of the end"""
    workers: int = 0
    moving: int = 0
    last_handover: str | None = None


def judge(job: Doc) -> Look:
    """The state of a StreamJob, by its status."""
    status, wanted = JobStatus.read(job.get("status")), intents.size_of(job).workers
    conditions = {condition.type: condition for condition in status.conditions}

    def look(state: FollowState, text: str) -> Look:
        return Look(state, text, status.workers, status.moving, status.last_handover)

    if job["metadata"].get("deletionTimestamp"):
        return look(FollowState.FAILED, "the job is being deleted")
    if status.observed_generation < int(job["metadata"].get("generation") or 0) or not conditions:
        return look(FollowState.UNSEEN, "waiting for the operator to look at the job")
    degraded, progressing = conditions.get("Degraded"), conditions.get("Progressing")
    if status.phase == "Finished":
        return look(FollowState.FINISHED, "finished")
    if status.phase == "Suspended":
        return look(FollowState.REST, "suspended: it has no pods")
    if degraded is not None and degraded.status == "True" and degraded.reason in FINAL:
        return look(FollowState.REFUSED if degraded.reason == "SpecRefused" else FollowState.FAILED, degraded.message)
    if status.phase == "Failed":
        return look(FollowState.FAILED, degraded.message if degraded is not None else "failed")
    if intents.paused(job):
        return look(FollowState.PAUSED, "the job is paused: nothing changes until `resume`")
    truth = {kind: condition.status for kind, condition in conditions.items()}
    if (truth.get("Ready"), truth.get("Progressing"), truth.get("Handover")) == ("True", "False", "False"):
        return look(FollowState.REST, f"at rest with {status.workers} workers")
    parts = [f"{status.workers} of {wanted} workers own state"]
    parts += [f"virtual nodes on their way: {status.moving}"] if status.moving else []
    if status.intended:
        parts.append(status.intended)
    elif not status.moving and progressing is not None and progressing.status == "True" and progressing.message:
        parts.append(progressing.message)
    if degraded is not None and degraded.status == "True":
        parts.append(degraded.message)
    return look(FollowState.GOING, ", ".join(parts))


@dataclass(frozen=True, slots=True)
class Line:
    """A line of news: an event, progress, or the end."""

    kind: str
    """'event', 'progress' or 'end'"""
    text: str
    look: Look
    event: dict[str, Any] | None = None


def follow(
    job: RemoteJob,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Line]:
    """Lines of news until the job is at rest or has failed; the last look has the state. `timeout`: 0: none."""
    began, news, printed, moved = clock(), _News(job), "", False
    state, since, heard = FollowState.GOING, began, began
    look = Look(state, "")
    while True:
        now = clock()
        try:
            document = job.object()
            look = judge(document)
            lines = list(news.lines(document, look))
        except ApiError as error:
            if not error.is_transient or now - heard >= SILENT_SECONDS or (timeout and now - began >= timeout):
                raise
            if str(error) != printed:
                printed = str(error)
                yield Line("progress", printed, look)
            sleep(LOOK_SECONDS)
            continue
        heard = now
        moved = moved or look.moving > 0
        if look.state is not state:
            state, since = look.state, now
        yield from lines
        if state in WAITING and look.text != printed:
            printed = look.text
            yield Line("progress", printed, look)
        if state is FollowState.REST and now - since >= CALM_SECONDS:
            took = f"; the handover took {look.last_handover}" if moved and look.last_handover else ""
            yield Line("end", look.text + took, look)
            return
        if state not in (*WAITING, FollowState.REST):
            yield Line("end", look.text, look)
            return
        if state is FollowState.UNSEEN and now - since >= SILENT_SECONDS:
            yield _failed(look, f"no operator looked at the job for {SILENT_SECONDS:g} s")
            return
        if timeout and now - began >= timeout:
            yield _failed(look, f"not at rest after {timeout:g} s: {look.text}")
            return
        sleep(LOOK_SECONDS)


def _failed(look: Look, text: str) -> Line:
    return Line("end", text, replace(look, state=FollowState.FAILED))


class _News:
    """Events of a job that are new, or have a higher count, since the previous look."""

    def __init__(self, job: RemoteJob) -> None:
        self._job = job
        self._readable = True
        self._known: dict[str, int] | None = None

    def lines(self, document: Doc, look: Look) -> Iterator[Line]:
        """New lines since the last call; the first call returns none."""
        if not self._readable:
            return
        try:
            events = mine(self._job.api.events(self._job.name), document)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            self._readable = False
            yield Line("progress", f"events may not be read: {error}", look)
            return
        known, self._known = self._known, {event["metadata"]["name"]: int(event.get("count") or 1) for event in events}
        for event in events if known is not None else []:
            if known is not None and known.get(event["metadata"]["name"]) != int(event.get("count") or 1):
                record = tables.event_record(event)
                yield Line("event", f"{record['reason']}: {record['message']}", look, record)
