"""The Flight server for tasks and readers, over a unix socket, or over TCP with TLS (or without).

`do_put` stages a fragment, `do_get` streams fired rows. Every call carries a ticket. It must never change state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as fl

from ferry.contract.certificates import Identity
from ferry.contract.errors import Refusal, RowsGone
from ferry.contract.names import Fragment
from ferry.contract.tickets import Judge, ReadTicket

log = logging.getLogger("ferry.sidecar")


class Door(fl.FlightServerBase):
    """Flight server of one instance.

    `claim(fragment)` raises Refusal for a fragment that was begun before or whose epoch is over; `stage(fragment,
    batches)` keeps it; `read(ticket)` returns the schema and an iterator of batches that raises RowsGone as soon as the
    rows are not (or no longer) the committed ones.
    """

    def __init__(
        self,
        location: str,
        identity: Identity | None,
        judge: Judge,
        claim: Callable[[Fragment], None],
        stage: Callable[[Fragment, list[pa.RecordBatch]], None],
        read: Callable[[ReadTicket], tuple[pa.Schema, Iterator[pa.RecordBatch]]],
    ) -> None:
        certificates = [(identity.certificate, identity.key)] if identity is not None else None
        super().__init__(location, tls_certificates=certificates)
        self._judge = judge
        self._claim = claim
        self._stage = stage
        self._read = read

    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        """Stage one fragment; it is staged when this returns."""
        try:
            fragment = self._judge.fragment(descriptor.command or b"", time.time())  # type: ignore[attr-defined]
            # Before the data is read: a second use of the ticket, by a copy, changes nothing.
            self._claim(fragment)
        except Refusal as refused:
            raise fl.FlightUnauthorizedError(str(refused)) from refused
        self._stage(fragment, [chunk.data for chunk in reader if chunk.data is not None])  # type: ignore[attr-defined]

    def do_get(self, context: object, ticket: object) -> object:
        """Stream fired rows."""
        try:
            asked = self._judge.read(ticket.ticket, time.time())  # type: ignore[attr-defined]
            schema, batches = self._read(asked)
        except Refusal as refused:
            raise fl.FlightUnauthorizedError(str(refused)) from refused
        except RowsGone as gone:
            raise fl.FlightServerError(f"rows gone: {gone}") from gone
        return fl.GeneratorStream(schema, batches)


def serve(door: Door) -> threading.Thread:
    """Run the server on its own thread."""
    thread = threading.Thread(target=door.serve, name="flight", daemon=True)
    thread.start()
    return thread
