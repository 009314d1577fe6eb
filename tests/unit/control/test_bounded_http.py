"""A peer that drips, floods, hangs or talks nonsense: the question ends, and what is said of it is true."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.status import MovesStatus
from ferry.contract.work import WorkReport
from ferry_operator.control import driver_client
from ferry_operator.control.driver_client import BOUNDS, BadAnswer, DriverClient, read_status
from tests.unit.control.test_driver_client import SUBMIT
from tests.unit.kube.test_decisions import status
from tests.unit.statuses import with_fields

GOOD = json.dumps(status(0, 1).to_wire()).encode()
SECONDS = 0.5

Talk = Callable[[socket.socket], None]


@contextmanager
def peer(talk: Talk) -> Iterator[str]:
    """Answers every request so; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def one(line: socket.socket) -> None:
        with line, suppress(OSError):
            line.recv(65536)
            talk(line)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def whole(body: bytes, more: str = "Connection: close\r\n") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


def says(data: bytes) -> Talk:
    return lambda line: line.sendall(data)


def drips(data: bytes) -> Talk:
    def talk(line: socket.socket) -> None:
        for at in range(len(data)):
            line.sendall(data[at : at + 1])
            threading.Event().wait(0.05)

    return talk


def floods(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        line.sendall(b"10000\r\n" + b"[" * 65536 + b"\r\n")


def hangs(line: socket.socket) -> None:
    line.recv(65536)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverClient]:
    monkeypatch.setattr(driver_client, "BOUNDS", replace(BOUNDS, seconds=SECONDS))
    found = DriverClient()
    yield found
    found.close()


@pytest.mark.parametrize(
    ("talk", "late", "why"),
    [
        pytest.param(drips(whole(GOOD)), True, "its answer was not complete after 0.5 s", id="headers that drip"),
        pytest.param(
            lambda line: (line.sendall(whole(GOOD)[:60]), drips(GOOD)(line)),
            True,
            "its answer was not complete after 0.5 s",
            id="a body that drips",
        ),
        pytest.param(hangs, True, "its answer had not begun after 0.5 s", id="nothing"),
        pytest.param(floods, True, f"its answer is longer than {BOUNDS.bytes_max} bytes", id="no end"),
        pytest.param(says(whole(b"[]")), False, "has a wrong form", id="a list"),
        pytest.param(says(whole(b"7")), False, "has a wrong form", id="a number"),
        pytest.param(says(whole(b"{}")), False, "job: Field required", id="an empty object"),
        pytest.param(says(whole(b"\xff\xfe")), False, "has a wrong form", id="no text"),
        pytest.param(says(whole(b"[" * 100_000)), False, "has a wrong form", id="deep"),
        pytest.param(
            says(whole(gzip.compress(GOOD), "Connection: close\r\nContent-Encoding: gzip\r\n")),
            False,
            "has a wrong form",
            id="compressed",
        ),
    ],
)
def test_a_bad_answer_ends_and_is_told(link: DriverClient, talk: Talk, late: bool, why: str) -> None:
    with peer(talk) as url:
        began = time.monotonic()
        with pytest.raises(BadAnswer) as error:
            link.status(url, "s")
        assert time.monotonic() - began < 10 * SECONDS and why in str(error.value) and error.value.late is late
        with pytest.raises(BadAnswer):
            link.submitted(url, "s", 1)


@pytest.mark.parametrize("talk", [drips(whole(GOOD)), hangs, floods])
def test_what_a_driver_is_told_ends_too(link: DriverClient, talk: Talk) -> None:
    with peer(talk) as url:
        for ask in (
            lambda: link.submit(url, "s", SUBMIT, 1),
            lambda: link.limit_copies(url, "s", 1),
            lambda: link.checkpoint(url, "s", None),
            lambda: link.suspend(url, "s"),
        ):
            with pytest.raises(driver_client.Unreachable):
                ask()
        assert not link.stop(url, "s")


def test_a_connection_is_kept(link: DriverClient) -> None:
    lines = set[int]()

    def talk(line: socket.socket) -> None:
        lines.add(id(line))
        line.sendall(whole(GOOD, ""))
        while line.recv(65536):
            line.sendall(whole(GOOD, ""))

    with peer(talk) as url:
        assert all(link.status(url, "s") == status(0, 1) for _ in range(5)) and len(lines) == 1
    assert BOUNDS.keep_seconds > 30


def test_what_is_closed_asks_nobody(link: DriverClient) -> None:
    """A pass of an operator that leads no more may come to itself."""
    with peer(says(whole(GOOD))) as url:
        assert link.status(url, "s") is not None
        link.close()
        assert link.status(url, "s") is None and not link.stop(url, "s")


WORK = {
    "seconds": 9.0,
    "records_per_second": 1.0,
    "arriving_per_second": 1.0,
    "backlog": 0,
    "tasks": 1.0,
    "instances": 1.0,
}


def with_field(**fields: object) -> bytes:
    return json.dumps({**json.loads(GOOD), **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(with_field(epoch="soon"), id="a word"),
        pytest.param(with_field(epoch=10**30), id="a number that no API server takes"),
        pytest.param(with_field(moves={"given_up": 10**400}), id="a number that no metric takes"),
        pytest.param(with_field(load={"epoch_seconds": float("inf")}), id="a time without end"),
        pytest.param(with_field(checkpoint={"number": 1, "at": 1e13}), id="a time that is no date"),
        pytest.param(with_field(alive=[0.0]), id="names that are numbers"),
        pytest.param(with_field(alive=["../../etc"]), id="names that are none"),
        pytest.param(with_field(groups=[["0.0"]]), id="groups of another form"),
        pytest.param(with_field(groups={"0": 1}), id="no groups"),
        pytest.param(with_field(load={"vnodes": [[float("nan"), 1.0]]}), id="a load that is no number"),
        pytest.param(with_field(load={"vnodes": [[0.0, 1e308]] * 2}), id="a state of more bytes than there are"),
        pytest.param(with_field(problems=[{"reason": "no word!", "text": "", "since": 0}]), id="a reason"),
        pytest.param(with_field(problems=[{"reason": "A" * 200, "text": "", "since": 0}]), id="a long reason"),
        pytest.param(with_field(checkpoint=[]), id="no checkpoint"),
        *(
            pytest.param(with_field(**fields), id=f"less than nothing {n}")
            for n, fields in enumerate(
                (
                    {"epoch": -2},
                    {"generation": -1},
                    {"progress": {"rows": -1}},
                    {"moves": {"replica_lag": -1}},
                    {"load": {"vnodes": [[1.0, 9.0], [1.0, -1.0]]}},
                    {"load": {"vnodes": [[1.0, 1.0], [-2.0, 1.0]]}},
                    {"load": {"work": {**WORK, "tasks": -1.0}}},
                    {"checkpoint": {"number": -1}},
                    {"checkpoint": {"number": 1, "epoch": -2}},
                    {"checkpoint": {"number": 1, "bytes": -1}},
                    {"checkpoint": {"number": 1, "total_bytes": -1}},
                    {"programs": [{"number": 0, "state": "in force"}]},
                    {"programs": [{"number": 1, "state": "in force", "since": -1}]},
                    {"programs": [{"number": 1, "state": "in force", "again": 0}]},
                )
            )
        ),
        pytest.param(with_field(load={"work": "hard"}), id="no work"),
    ],
)
def test_a_status_is_read_as_what_anybody_may_have_written(body: bytes) -> None:
    with pytest.raises(driver_client.MISREAD):
        read_status(body)


def test_a_status_of_other_versions_is_read() -> None:
    assert read_status(with_field(new=[1])) == status(0, 1)
    assert read_status(with_field(moves={**json.loads(GOOD)["moves"], "new": [1]})) == status(0, 1)
    for fields in (
        {"epoch": -1},
        {"checkpoint": {"number": 0}},
        {"load": {"vnodes": [[2.0, 1.0], [-1.0, 1.0]]}},
        {"programs": [{"number": 1, "state": "in force"}]},
    ):
        read_status(with_field(**fields))
    assert read_status(with_field(load={"work": WORK})).load.work == WorkReport(**WORK)
    least = {key: value for key, value in json.loads(GOOD).items() if key not in ("notices", "moves", "transport")}
    assert read_status(json.dumps(least).encode()) == replace(status(0, 1), moves=MovesStatus())


LONG = {
    "lists": json.dumps({"load": {"vnodes": [[]] * 1_000_000}}, separators=(",", ":")),
    "objects": json.dumps({"problems": [{}] * 1_000_000}, separators=(",", ":")),
    "numbers": json.dumps({"alive": [1] * 1_300_000}),
    "members": json.dumps({**json.loads(GOOD), "groups": [[[1] * 1_300_000, []]]}),
    "texts": json.dumps({**json.loads(GOOD), "alive": ["x"] * 600_000, "later": ["x"] * 200_000}),
}


@pytest.mark.parametrize("body", LONG.values(), ids=LONG)
def test_nonsense_of_many_words_takes_little_memory(body: str) -> None:
    """A driver answers what its user's code likes, as much of it as is read; the operator of all jobs reads on."""
    assert len(body) < BOUNDS.bytes_max
    client = DriverClient()
    with peer(says(whole(body.encode()))) as url:
        tracemalloc.start()
        try:
            with pytest.raises(BadAnswer) as said:
                client.status(url, "secret")
            assert tracemalloc.get_traced_memory()[1] < 120_000_000
        finally:
            tracemalloc.stop()
            client.close()
    assert said.value.late and len(str(said.value)) < 1000


def test_the_largest_job_is_heard() -> None:
    names = [(["255.63", "254.63", "253.63", "252.63", "251.63"], [])] * VIRTUAL_NODES_MAX
    loads = [(1234567.891, 1234567.891)] * VIRTUAL_NODES_MAX
    largest = with_fields(status(0, 1), groups=names, vnodes=loads, alive=["255.63"] * 16384)
    body = json.dumps(largest.to_wire()).encode()
    client = DriverClient()
    with peer(says(whole(body))) as url:
        found = client.status(url, "secret")
    client.close()
    assert found is not None and len(found.groups) == VIRTUAL_NODES_MAX
