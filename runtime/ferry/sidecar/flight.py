"""The door for tasks and readers: Arrow Flight over a unix socket (or TCP).

`do_put` stages a fragment, `do_get` streams fired rows. Every call carries the run's secret. It must never change state.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as fl

from ferry.contract.errors import RowsGone
from ferry.contract.messages import Fragment
from ferry.contract.names import Attempt, Label, Step
from ferry.contract.places import ReadTicket, StageTicket

log = logging.getLogger("ferry.sidecar")


class Door(fl.FlightServerBase):
    """Flight server of one instance.

    `stage(fragment, batches)` keeps a fragment; `read(ticket, label)` gives the schema and an iterator of batches that
    raises RowsGone as soon as the rows are not (or no longer) the committed ones.
    """

    def __init__(
        self,
        location: str,
        secret: str,
        stage: Callable[[Fragment, list[pa.RecordBatch]], None],
        read: Callable[[ReadTicket, Label], tuple[pa.Schema, Iterator[pa.RecordBatch]]],
    ) -> None:
        super().__init__(location)
        self._secret = secret
        self._stage = stage
        self._read = read

    def _authenticate(self, secret: str) -> None:
        if not hmac.compare_digest(secret, self._secret):
            raise fl.FlightUnauthenticatedError("wrong secret")

    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        """Stage one fragment; returning means that it is staged."""
        ticket = StageTicket.load(descriptor.command)  # type: ignore[attr-defined]
        self._authenticate(ticket.secret)
        batches = [chunk.data for chunk in reader if chunk.data is not None]  # type: ignore[attr-defined]
        step = Step(ticket.epoch, ticket.operator)
        self._stage(Fragment(step, ticket.generation, ticket.run, ticket.task), batches)

    def do_get(self, context: object, ticket: object) -> object:
        """Stream fired rows."""
        asked = ReadTicket.load(ticket.ticket)  # type: ignore[attr-defined]
        self._authenticate(asked.secret)
        label = Label(Step(asked.epoch, asked.operator), Attempt(*asked.attempt))
        try:
            schema, batches = self._read(asked, label)
        except RowsGone as gone:
            raise fl.FlightServerError(f"rows gone: {gone}") from gone
        return fl.GeneratorStream(schema, batches)


def serve(door: Door) -> threading.Thread:
    """Run the server on its own thread."""
    thread = threading.Thread(target=door.serve, name="flight", daemon=True)
    thread.start()
    return thread
