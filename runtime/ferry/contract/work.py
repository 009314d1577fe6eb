"""What a driver says of how busy its job is."""

from __future__ import annotations

from dataclasses import dataclass

WORK_SECONDS = 10.0
"""What is measured of the work is measured for so long."""


@dataclass(frozen=True, slots=True)
class WorkReport:
    """How many records come, and how long they keep the job busy, over the last seconds."""

    seconds: float
    """it was measured for; less than WORK_SECONDS after a change of groups"""
    records_per_second: float
    """read"""
    arriving_per_second: float
    """offered: read, and by how much the backlog grew; as many as were read where no source knows what waits"""
    backlog: int | None
    """records that wait to be read; None: no source knows"""
    tasks: float
    """seconds a second for which tasks were busy with records, all together; then the same, of instances"""
    instances: float
    epochs: float = 0.0
    """the same, of both, before the first record of an epoch, as far as it is known; then what of it was of instances"""
    instance_epochs: float = 0.0
