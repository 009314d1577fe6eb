"""Instances that a task cannot reach: another helper is taken in time, or all are named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.ingest_runs import IngestRun
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Step
from ferry.contract.places import Registration
from ferry.contract.tickets import Right, stage_right
from ferry.kernels.schemas import state_schema
from ferry.spark.tasks import flight
from ferry.spark.tasks.flight import Connections, read_rows
from ferry.spark.tasks.sender import Sender

DESCRIPTOR = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
ROW = pa.RecordBatch.from_pydict({"slice": [0], "hash": [1], "key": [1], "n": [1]}, schema=state_schema(DESCRIPTOR))


class Helper(fl.FlightServerBase):
    """Takes what comes; what it is asked for, it never gives."""

    def __init__(self) -> None:
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.rows = 0
        self.uri = f"grpc+tcp://127.0.0.1:{self.port}"
        threading.Thread(target=self.serve, daemon=True).start()

    def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        self.rows += sum(chunk.data.num_rows for chunk in reader)  # type: ignore[attr-defined]

    def do_get(self, context: object, ticket: object) -> object:
        def never() -> Iterator[pa.RecordBatch]:
            time.sleep(0.4)
            yield ROW

        return fl.GeneratorStream(ROW.schema, never())


@pytest.fixture(scope="module")
def helper() -> Iterator[Helper]:
    made = Helper()
    yield made
    made.shutdown()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that takes connections and says nothing, as a path that loses one direction does."""
    monkeypatch.setattr(flight, "REACH_SECONDS", 0.1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"grpc+tcp://127.0.0.1:{listener.getsockname()[1]}"


def sender(*helpers: tuple[str, str]) -> Sender:
    right = stage_right(Right.root("a-secret-of-the-run"), Step(0, 0), 2, 3, time.time())
    some = tuple(Registration(instance, "life", instance, 1, uri, 1) for instance, uri in helpers)
    run = IngestRun(Step(0, 0), 2, 3, some, right, WATERMARK_NONE)
    return Sender(DESCRIPTOR, run, 7, 0, Connections(None))


def test_a_helper_that_says_nothing_is_passed_over(
    silent: str, helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sender(("0.0", silent), ("1.0", helper.uri))
    monkeypatch.setattr(flight, "REACH_SECONDS", 0.5)
    made.send([ROW])
    made.finish()
    assert (made.helper, helper.rows) == ("1.0", 1)


def test_when_none_can_be_reached_all_are_named(silent: str) -> None:
    made = sender(("0.0", silent), ("1.0", "grpc+tcp://127.0.0.1:1"))
    with pytest.raises(fl.FlightUnavailableError) as failed:
        made.send([ROW])
    assert f"0.0 at {silent} (FlightTimedOutError" in str(failed.value) and "1.0 at grpc+tcp://127.0.0.1:1" in str(
        failed.value
    )


def test_reading_from_who_says_nothing_ends(silent: str) -> None:
    with pytest.raises(fl.FlightError):
        list(read_rows({"flight": silent, "ticket": "x", "authority": None}))


def test_the_address_of_an_instance_that_was_lost_is_told_in_words() -> None:
    for authority in (None, "a certificate"):
        with pytest.raises(fl.FlightUnavailableError, match="was lost, and has not come back yet"):
            list(read_rows({"flight": "", "ticket": "x", "authority": authority}))


def test_rows_that_do_not_come_are_not_waited_for_for_ever(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "CALL_SECONDS", 0.1)
    with pytest.raises(fl.FlightTimedOutError):
        list(read_rows({"flight": helper.uri, "ticket": "x", "authority": None}))


def test_rows_that_are_not_taken_are_not_pushed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Helper):
        def do_put(self, context: object, descriptor: object, reader: object, writer: object) -> None:
            time.sleep(0.4)

    stuck = Stuck()
    monkeypatch.setattr(flight, "CALL_SECONDS", 0.1)
    made = sender(("0.0", stuck.uri))
    with pytest.raises(fl.FlightTimedOutError):
        made.send([ROW])
        made.finish()
    stuck.shutdown()


@pytest.mark.parametrize("authority", [None, "a certificate"])
def test_an_end_that_is_gone_is_found_out_long_before_tcp_does(
    authority: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, int]] = []
    monkeypatch.setattr(fl, "connect", lambda uri, generic_options, **others: asked.append(dict(generic_options)))
    flight.connect("grpc+tls://host:1" if authority else "grpc+tcp://host:1", authority)
    (options,) = asked
    assert options["grpc.keepalive_timeout_ms"] <= 60_000
    assert 300_000 < options["grpc.keepalive_time_ms"] <= 400_000, "a server refuses more than one ping in 300 s"
