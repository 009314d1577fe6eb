"""The size of a job, in workers and instances: as a user writes it, as a plan has it, as the autoscaler chooses it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ferry.contract.names import InstanceId

WORKERS_MAX, INSTANCES_MAX = 256, 64
"""Of a job, and of a worker."""


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """The number of workers, and of instances on each worker. As a field of a document it has bounds."""

    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)]
    instances: Annotated[int, Field(ge=1, le=INSTANCES_MAX, alias="instancesPerWorker")]

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    def __str__(self) -> str:
        return f"{self.workers} x {self.instances}"

    def words(self) -> str:
        """For people."""
        return f"{self.workers} workers with {self.instances} instances each"

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Size:
        """The size in the spec of a StreamJob object; fields that are left out have their defaults."""
        return cls(int(spec.get("workers", 2)), int(spec.get("instancesPerWorker", 1)))

    def to_wire(self) -> dict[str, int]:
        """The fields of the spec."""
        return {"workers": self.workers, "instancesPerWorker": self.instances}

    def members(self, gaps: Collection[int] = ()) -> list[int]:
        """The workers: the lowest numbers without the gaps."""
        return list(islice((k for k in count() if k not in gaps), self.workers))

    def numbers(self, gaps: Collection[int] = ()) -> str:
        """The workers, for people."""
        return ", ".join(map(str, self.members(gaps))) if gaps else f"0 to {self.workers - 1}"

    def has(self, worker: int, index: int, gaps: Collection[int] = ()) -> bool:
        """Whether a job of this size has this instance."""
        return worker not in gaps and worker - sum(k < worker for k in gaps) < self.workers and index < self.instances

    def holding(self, drains: Collection[int] = (), gaps: Collection[int] = ()) -> list[int]:
        """Workers that hold state: all but the drained ones."""
        return [k for k in self.members(gaps) if k not in drains]

    def instance_ids(self, drains: Collection[int] = (), gaps: Collection[int] = ()) -> list[InstanceId]:
        """Instances that hold state, by worker and index."""
        return [InstanceId(f"{k}.{i}") for k in self.holding(drains, gaps) for i in range(self.instances)]
