"""The door for tasks: what comes with a ticket is staged once, and read as long as it is there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ferry.contract.certificates import Identity, authority, issue
from ferry.contract.names import Fragment, Step
from ferry.contract.tickets import Judge, ReadTicket, Right, read_right, stage_right, stage_ticket
from ferry.sidecar.flight import Door
from ferry.sidecar.staging import Staging
from ferry.spark.tasks.flight import read_rows

ROOT = Right.root("secret")
MINE, COPIED = (pa.record_batch({"x": [n]}) for n in (1, 2))


class Rig:
    """One door with staging behind it; what is read is one batch."""

    def __init__(self, directory: Path) -> None:
        self.staging = Staging(directory / "staged")
        self.uri = f"grpc+unix://{directory}/flight.sock"
        self.asked: list[ReadTicket] = []
        self.claimed = threading.Event()
        self.door = Door(
            self.uri, None, Judge(ROOT, "0.0", "life"), self.claim, self.staging.add, self.read
        )  # fmt: skip

    def claim(self, fragment: Fragment) -> None:
        self.staging.claim(fragment)
        self.claimed.set()

    def read(self, ticket: ReadTicket) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        self.asked.append(ticket)
        return MINE.schema, iter([MINE])

    def begin(self, ticket: bytes) -> tuple[fl.FlightClient, fl.FlightStreamWriter]:
        client = fl.connect(self.uri)
        writer, _ = client.do_put(fl.FlightDescriptor.for_command(ticket), MINE.schema)
        return client, writer

    def put(self, ticket: bytes, batch: pa.RecordBatch) -> None:
        client, writer = self.begin(ticket)
        with client:
            writer.write_batch(batch)
            writer.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.door.shutdown()


def ticket(epoch: int = 5, task: int = 9) -> bytes:
    return stage_ticket(stage_right(ROOT, Step(epoch, 0), 1, 1, 1e12), task, "0.0", "life")


def fragment(epoch: int = 5, task: int = 9) -> Fragment:
    return Fragment(Step(epoch, 0), 1, 1, task)


def test_a_copy_of_a_ticket_stages_nothing_over_what_is_there(rig: Rig) -> None:
    rig.put(ticket(), MINE)
    with pytest.raises(fl.FlightUnauthorizedError, match="good for one use"):
        rig.put(ticket(), COPIED)
    assert rig.staging.take(fragment()) == [MINE]


def test_a_copy_of_a_ticket_stages_nothing_in_place_of_what_is_under_way(rig: Rig) -> None:
    client, writer = rig.begin(ticket())
    with client:
        try:
            writer.write_batch(MINE)
            assert rig.claimed.wait(10)
            with pytest.raises(fl.FlightUnauthorizedError, match="good for one use"):
                rig.put(ticket(), COPIED)
        finally:
            writer.close()
    assert rig.staging.take(fragment()) == [MINE]


def test_a_ticket_ends_with_its_epoch(rig: Rig) -> None:
    rig.put(ticket(epoch=5), MINE)
    rig.staging.release(6)
    for late in (ticket(epoch=5), ticket(epoch=6)):
        with pytest.raises(fl.FlightUnauthorizedError, match="is over"):
            rig.put(late, COPIED)
    rig.put(ticket(epoch=7), MINE)
    assert rig.staging.take(fragment(epoch=7)) == [MINE]


def test_without_a_ticket_nothing_is_staged_or_read(rig: Rig) -> None:
    elsewhere = stage_ticket(stage_right(ROOT, Step(5, 0), 1, 1, 1e12), 9, "1.0", "life")
    for wrong in (b"", b"{}", b"secret", elsewhere):
        with pytest.raises(fl.FlightUnauthorizedError):
            rig.put(wrong, COPIED)
        with fl.connect(rig.uri) as client, pytest.raises(fl.FlightUnauthorizedError):
            client.do_get(fl.Ticket(wrong)).read_all()
    assert not rig.asked and not rig.claimed.is_set()


def test_rows_are_read_with_what_the_driver_sealed(rig: Rig) -> None:
    ask = ReadTicket(1, 5, 0, (1, 1), 0, 10, (0, 1))
    split = {"flight": rig.uri, "ticket": read_right(ROOT, ask, "0.0", "life", 1e12).dump().decode(), "authority": None}
    assert list(read_rows(split)) == [MINE]
    assert rig.asked == [ask]


def test_over_tls_tasks_talk_to_processes_of_the_run_only(tmp_path: Path) -> None:
    ask = ReadTicket(1, 5, 0, (1, 1), 0, 10, (0, 1))
    ticket = read_right(ROOT, ask, "0.0", "life", 1e12).dump().decode()

    def door(identity: Identity | None) -> tuple[Door, str]:
        scheme = "grpc+tls" if identity is not None else "grpc+tcp"
        asked = lambda ticket: (MINE.schema, iter([MINE]))  # noqa: E731
        made = Door(f"{scheme}://127.0.0.1:0", identity, Judge(ROOT, "0.0", "life"), lambda f: None, print, asked)
        return made, f"{scheme}://127.0.0.1:{made.port}"

    doors = {name: door(one) for name, one in (("run", issue("secret")), ("other", issue("guess")), ("none", None))}
    trusted = authority("secret").decode()
    split = {"ticket": ticket, "authority": trusted}
    assert list(read_rows({**split, "flight": doors["run"][1]})) == [MINE]
    for stranger in ("other", "none"):
        with pytest.raises(fl.FlightUnavailableError):
            list(read_rows({**split, "flight": doors[stranger][1]}))
    for one, _ in doors.values():
        one.shutdown()
