"""How busy a job is, as its driver reports it."""

from __future__ import annotations

from dataclasses import dataclass

WORK_SECONDS = 10.0
"""Seconds over which work is measured."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """How many records come, and how busy they keep the job, over the last seconds."""

    seconds: float
    """length of the measurement; less than WORK_SECONDS after a change of groups"""
    records_per_second: float
    """records read"""
    arriving_per_second: float
    """records offered: read, plus the growth of the backlog; as many as read if no source knows its backlog"""
    backlog: int | None
    """records that wait to be read; None: no source knows"""
    tasks: float
    """seconds a second for which all tasks together were busy with records; then the same, of instances"""
    instances: float
    epochs: float = 0.0
    """the part of both that passes before the first record of an epoch, if known; then the instances' part of it"""
    instance_epochs: float = 0.0
