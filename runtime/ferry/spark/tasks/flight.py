"""Connections of tasks and of the driver to instances, and the rows that these have fired.

Everything ends in time, whatever becomes of the other end. Must never decide which instance is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ferry.contract.places import TLS_NAME

REACH_SECONDS = 5.0
"""An instance that does not answer within this time is passed over: the next helper is tried, or other readers."""

CALL_SECONDS = 3600.0
"""No stream of rows lasts longer, whatever has become of its other end."""

SILENCE = [("grpc.keepalive_time_ms", 310_000), ("grpc.keepalive_timeout_ms", 20_000)]
"""A connection whose bytes nobody acknowledges for 20 s is gone: TCP alone would wait for a quarter of an hour. The pings
come seldom, for a server of gRPC refuses more than one in 300 s."""


def connect(uri: str, authority: str | None) -> fl.FlightClient:
    """A client of an instance that belongs to the run.

    With TLS, whoever else has put its own address where that of an instance should be gets no ticket and no record.
    Raises a Flight error for an address that is none; that of an instance which was lost is empty.
    """
    if not uri:
        raise fl.FlightUnavailableError(
            "the instance that has the rows is away: it was lost, and has not come back yet"
        )
    if authority is None or uri.startswith("grpc+unix:"):
        return fl.connect(uri, generic_options=SILENCE)
    if not uri.startswith("grpc+tls:"):
        raise fl.FlightUnavailableError(f"{uri} is no address of an instance of this run: TLS is on")
    return fl.connect(uri, tls_root_certs=authority, override_hostname=TLS_NAME, generic_options=SILENCE)


def read_rows(split: dict[str, Any], connections: Connections | None = None) -> Iterator[pa.RecordBatch]:
    """Rows that an operator fired, from the instance that leads them. Raises a Flight error when they are not there.

    `connections`: those that are kept.
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
    """A connection to an instance that answers. Raises a Flight error when it does not within REACH_SECONDS."""
    client = connect(uri, authority)
    try:
        # It serves no list and says so; but it says it at once, unlike a call with data, which would only wait.
        list(client.list_flights(options=fl.FlightCallOptions(timeout=REACH_SECONDS)))
    except NotImplementedError:
        return client
    except BaseException:
        client.close()
        raise
    return client


class Connections:
    """Connections that are kept from one run to the next; `forget` one that has failed."""

    def __init__(self, authority: str | None) -> None:
        self._authority = authority
        self._kept: dict[str, fl.FlightClient] = {}

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *failed: object) -> None:
        for uri in list(self._kept):
            self.forget(uri)

    def to(self, uri: str) -> fl.FlightClient:
        """One that answered when it was made. Raises a Flight error when it does not."""
        if uri not in self._kept:
            self._kept[uri] = reached(uri, self._authority)
        return self._kept[uri]

    def forget(self, uri: str) -> None:
        """Make another one the next time."""
        if (client := self._kept.pop(uri, None)) is not None:
            client.close()
