"""Flight connections from tasks and the driver to instances, and reads of fired rows.

Every call has a timeout. Must never choose the instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ferry.contract.places import TLS_NAME

REACH_SECONDS = 5.0
"""An instance that does not answer within this time is skipped: the next helper is tried, or other readers."""

CALL_SECONDS = 3600.0
"""Timeout of a stream of rows."""

SILENCE = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
"""A connection without an acknowledgement for 20 s is lost: TCP alone would wait for a quarter of an hour. Pings are rare,
because a gRPC server refuses more than one in 300 s."""


def connect(uri: str, authority: str | None) -> fl.FlightClient:
    """A client of an instance of the run.

    With TLS, a server with a forged address gets neither tickets nor records. Raises a Flight error for an invalid address;
    the address of a lost instance is empty.
    """
    if not uri:
        raise fl.FlightUnavailableError("the instance that has the rows was lost, and has not come back yet")
    if authority is None or uri.startswith("grpc+unix:"):
        return fl.connect(uri, generic_options=SILENCE)
    if not uri.startswith("grpc+tls:"):
        raise fl.FlightUnavailableError(f"{uri} is not an address of an instance of this run: TLS is on")
    return fl.connect(uri, tls_root_certs=authority, override_hostname=TLS_NAME, generic_options=SILENCE)


def read_rows(split: dict[str, Any], connections: Connections | None = None) -> Iterator[pa.RecordBatch]:
    """Rows that an operator fired, from their leader. Raises a Flight error when the instance does not have them.

    `connections`: reused connections; None: a connection of its own.
    """
    uri = split["flight"]
    with Connections(split["authority"]) if connections is None else nullcontext(connections) as kept:
        try:
            for chunk in kept.to(uri).do_get(fl.Ticket(split["ticket"]), fl.FlightCallOptions(timeout=CALL_SECONDS)):
                yield chunk.data
        except (fl.FlightError, pa.ArrowException):
            kept.forget(uri)
            raise


def reached(uri: str, authority: str | None) -> fl.FlightClient:
    """A connection to an instance that answers. Raises a Flight error without an answer within REACH_SECONDS."""
    client = connect(uri, authority)
    try:
        # The server refuses this call at once, while a call with data would wait.
        list(client.list_flights(options=fl.FlightCallOptions(timeout=REACH_SECONDS)))
    except NotImplementedError:
        return client
    except BaseException:
        client.close()
        raise
    return client


class Connections:
    """Connections that are reused between runs; `forget` a failed connection."""

    def __init__(self, authority: str | None) -> None:
        self._authority = authority
        self._kept: dict[str, fl.FlightClient] = {}

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *failed: object) -> None:
        for uri in list(self._kept):
            self.forget(uri)

    def to(self, uri: str) -> fl.FlightClient:
        """A connection that answered when it was opened. Raises a Flight error without an answer."""
        if uri not in self._kept:
            self._kept[uri] = reached(uri, self._authority)
        return self._kept[uri]

    def forget(self, uri: str) -> None:
        """Close a connection; the next call of `to` opens a new one."""
        if (client := self._kept.pop(uri, None)) is not None:
            client.close()
