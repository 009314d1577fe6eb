"""The workers of a job by number, from the operator's memory, and from the state of the workers after a scale-in. Pure.

Without a scale-in the workers are 0 to n - 1. The first look after a scale-in chooses the workers that leave. The choice is
recorded in `status.memory` before a step follows it: half empty workers, or another operator, do not change it.
After a loss of the memory the workers are 0 to n - 1 again, at the cost of a move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ferry.contract.status import Status
from ferry_operator.control import members
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.models import StreamJob
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.annotations import requested_drains, requested_pins
from ferry_operator.kube.observe.rolling import closed_nodes
from ferry_operator.kube.observe.seen import Seen


@dataclass(frozen=True, slots=True)
class WorkerNumbers:
    """The workers of a job."""

    numbers: tuple[int, ...] = ()
    record: bool = False
    """whether they are to be recorded"""
    chosen: bool = True
    """False: a scale-in waits until the driver says where the state is"""

    @property
    def gaps(self) -> tuple[int, ...]:
        """The numbers that no worker has."""
        return members.gaps_of(self.numbers)


def members_of(
    seen: Seen, job: StreamJob, last: StreamJob | None, status: Status | None, file: PlanFile | None
) -> WorkerNumbers:
    """The workers under the spec in force. `last`: the last good spec; `file`: the submitted plan."""
    wanted, known = job.spec.workers, seen.memory.members
    before = known if known is not None else range(last.spec.workers if last is not None else wanted)
    if file is not None and file.size == job.spec.size:
        after = tuple(range(wanted))  # A plan names its workers.
    elif wanted >= len(before):
        after = members.grown(before, wanted)
    elif status is None or not status.groups:
        return WorkerNumbers(members.grown(before, wanted), chosen=False)
    else:
        pins = requested_pins(seen.annotations.get(names.PINS), job.spec.state.virtual_nodes)
        after = members.shrunk(before, wanted, status, _first(seen, before), [instance for _, instance in pins])
    recorded = tuple(known) if known is not None else tuple(range(len(before)))
    return WorkerNumbers(after, record=after != recorded and (known is not None or wanted < len(before)))


def _first(seen: Seen, before: Sequence[int]) -> Collection[int]:
    """Workers that are drained, to be evicted, or on nodes that take no new pods."""
    closed = closed_nodes(seen.nodes)
    sent = [pod.worker for pod in seen.workers if pod.evicted or pod.node in closed]
    return {k for k in (*requested_drains(seen.annotations.get(names.DRAIN)), *sent) if k is not None and k in before}
