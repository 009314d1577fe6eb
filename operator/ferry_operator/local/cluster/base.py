"""The port through which a supervisor sees and changes a cluster.

Every adapter observes without side effects and acts idempotently: starting what runs and stopping what is gone is no
error. It decides nothing and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ferry_operator.control.decide import Worker


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """The driver's process."""

    running: bool
    code: int | None = None
    """exit code of the last one that ended (negative: the signal); None when none has ended yet"""
    starts: int = 0
    """how many have been started"""


class ClusterPort(Protocol):
    """Workers and a driver of one job."""

    def workers(self) -> tuple[Worker, ...]:
        """Workers that run, and ones that do not and still have state; by index."""

    def driver(self) -> DriverSeen:
        """The driver's process."""

    def start_worker(self, index: int, instances: int) -> None:
        """Start a worker, with its old state if there is any."""

    def set_instances(self, index: int, instances: int) -> None:
        """Tell a worker how many instances it should have."""

    def stop_worker(self, index: int) -> None:
        """End a worker for good, and remove its state."""

    def start_driver(self) -> None:
        """Start the driver."""

    def kill_worker(self, index: int) -> None:
        """End all processes of a worker at once, without warning; raises Refusal when it is not running."""

    def kill_instance(self, index: int, instance: int) -> None:
        """End one instance without warning; raises Refusal when it is not running."""

    def kill_driver(self) -> None:
        """End the driver and all that it started, without warning; raises Refusal when it is not running."""

    def close(self) -> None:
        """End everything; return when nothing is left."""
