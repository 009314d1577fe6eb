"""Orders of the coordinator to the driver, one at a time. Must never interpret an order."""

from __future__ import annotations

from ferry.coordinator.loop import Loop
from ferry.driver.errors import Stopped, end_of
from ferry.protocol import coordinator as core


def next_order(loop: Loop) -> core.StartIngest | core.Emit | core.Ready:
    """Wait for the next order; raises Halted or Stopped when the job must end."""
    order = loop.orders.get()
    if order is None:
        raise Stopped("the job was stopped")
    if isinstance(order, core.Halt):
        raise end_of(order)
    return order


def sleep(loop: Loop, seconds: float) -> None:
    """Wait within an epoch; raises Halted or Stopped at once when the job must end."""
    if loop.ending.wait(seconds):
        raise end_of(loop.halt) if loop.halt is not None else Stopped("the job was stopped")
