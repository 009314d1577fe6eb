"""Fired rows of one operator, read on Flight's threads while the loop goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import RowsGone
from ferry.contract.names import InstanceId
from ferry.contract.tickets import ReadTicket
from ferry.kernels.schemas import fired_schema
from ferry.store.state import State

PAUSE_SECONDS = 0.0001
"""Between two pieces of a read if the first one had no rows."""


def fired_rows(
    me: InstanceId,
    descriptor: OperatorDescriptor,
    state: State,
    lock: AbstractContextManager[object],
    ticket: ReadTicket,
    allowed: Callable[[], bool],
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Fired rows of a committed step; every batch is made under the lock, after a check that it is still allowed."""
    times = EpochTimes(ticket.low, ticket.high, ticket.epoch)

    def check() -> None:
        if not allowed():
            raise RowsGone(f"instance {me} has no rows of epoch {ticket.epoch}, attempt {ticket.attempt}")

    def batches() -> Iterator[pa.RecordBatch]:
        with lock:
            check()
            made = iter(state.fired(times, np.array(ticket.vnodes, dtype=np.int64)))
        while True:
            with lock:
                check()
                batch = next(made, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch
            else:
                # A lock is not fair: without a pause the waiting loop would rarely get it.
                time.sleep(PAUSE_SECONDS)

    with lock:
        check()
    return fired_schema(descriptor), batches()
