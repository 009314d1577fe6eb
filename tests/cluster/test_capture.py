"""What somebody sees who reads along at every port of a job: no secret, and no ticket that still opens anything."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from ferry.contract.certificates import authority
from ferry.contract.errors import Refusal
from ferry.contract.executors import ExecutorStart, spark_secret
from ferry.contract.tickets import Right, derived, stage_ticket
from ferry.spark.tasks.flight import connect
from tests.cluster.hosts import PASSWORD, SECRET, Hosts
from tests.cluster.test_hosts import settings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.turns,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="reading along needs root"),
]

LOOPBACK = "127.0.0.1"
"""What stays inside of a pod. Every host of the job has another address; Redis alone is here as well."""

RIGHT = re.compile(rb'\{"may":"(?:stage|read)",[ -|]*\}')
SEALED = re.compile(RIGHT.pattern + rb"\n(?:\{[ -|]*\}\n)?[0-9a-f]{64}")

Ends = tuple[str, int, str, int]


class Capture:
    """All TCP of the loopback device, from when it is made until `streams`."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)  # SO_RCVBUFFORCE
        self._socket.bind(("lo", 0x0800))
        self._socket.settimeout(0.2)
        self._packets: list[bytes] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                data, (_, _, kind, *_) = self._socket.recvfrom(1 << 17)
            except TimeoutError:
                continue
            if kind != 4:  # PACKET_OUTGOING: each one is seen when it leaves, and when it arrives
                self._packets.append(data)

    def streams(self) -> dict[Ends, bytes]:
        """What was sent, by who sent it to whom."""
        self._end.set()
        self._thread.join()
        packets, dropped = struct.unpack("II", self._socket.getsockopt(263, 6, 8))  # PACKET_STATISTICS
        self._socket.close()
        assert not dropped, f"{dropped} of {packets} packets were not seen"
        pieces: dict[Ends, dict[int, bytes]] = defaultdict(dict)
        for packet in self._packets:
            head = (packet[0] & 15) * 4
            if packet[9] != socket.IPPROTO_TCP:
                continue
            source, target = (socket.inet_ntoa(packet[i : i + 4]) for i in (12, 16))
            ports = struct.unpack_from("!HH", packet, head)
            number, offset = struct.unpack_from("!I", packet, head + 4)[0], packet[head + 12] >> 4
            payload = packet[head + offset * 4 : struct.unpack_from("!H", packet, 2)[0] or None]
            if payload:
                pieces[source, ports[0], target, ports[1]][number] = payload
        return {ends: b"".join(found[n] for n in sorted(found)) for ends, found in pieces.items()}


def spellings(secret: bytes) -> Iterator[bytes]:
    """How a secret may stand in a stream."""
    yield secret
    yield secret.hex().encode()
    for shift in range(3):
        yield base64.b64encode(b"\0" * shift + secret)[4 if shift else 0 :][: len(secret) // 3 * 4 - 4]


def seen(streams: dict[Ends, bytes], secret: bytes) -> list[Ends]:
    return [ends for ends, data in streams.items() if any(text in data for text in spellings(secret))]


def sealed(data: bytes) -> set[bytes]:
    """Tickets of this run; other jobs and tests of the machine have theirs."""
    found = set()
    for one in SEALED.finditer(data):
        with suppress(Refusal):
            Right.root(SECRET).opened(one.group())
            found.add(one.group())
    return found


def replay(hosts: Hosts, ticket: bytes, trusted: str | None) -> str:
    """Show a ticket to the instance that it names; returns why it is refused."""
    lines = [json.loads(line) for line in ticket.split(b"\n")[:-1]]
    (one,) = [r for r in hosts.registrations() if r.instance == lines[-1]["instance"]]
    with pytest.raises(fl.FlightError) as refused, connect(one.flight, trusted) as client:
        if lines[0]["may"] == "read":
            client.do_get(fl.Ticket(ticket)).read_all()
        else:
            batch = pa.record_batch({"x": [1]})
            writer, _ = client.do_put(fl.FlightDescriptor.for_command(ticket), batch.schema)
            writer.write_batch(batch)
            writer.close()
    return str(refused.value)


@pytest.mark.parametrize("tls", ["run", "off"])
def test_who_reads_along_has_nothing_in_hand(tls: str, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, replace(settings(tmp_path), tls=tls))
    capture = Capture()
    try:
        hosts.start_redis()
        for index in range(2):
            hosts.start_worker(index)
        hosts.start_driver(tmp_path / "checkpoint")
        hosts.await_epochs(6)
        hosts.ask("status")
        streams = capture.streams()
        hosts.await_epochs(2)
        check(hosts, streams, tls == "run")
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()


def check(hosts: Hosts, streams: dict[Ends, bytes], encrypted: bool) -> None:
    everything = b"\n\n".join(streams.values())
    assert PASSWORD.encode() in everything, "Redis is talked to in clear: this would be a capture of nothing"
    keys = [SECRET.encode(), *(form(derived(SECRET, "tickets")) for form in (str.encode, bytes.fromhex))]
    for key in keys:
        assert not seen(streams, key)
    between = {ends: data for ends, data in streams.items() if {ends[0], ends[2]} != {LOOPBACK}}
    place = hosts.registry.driver()
    assert place is not None
    proof = spark_secret(SECRET, place.life)
    for form in (proof.encode(), base64.b64decode(proof)):
        assert not seen(streams, form), "executors get it from nobody: they derive it"
    assert place.executor.encode() in everything, "what workers are told passes through Redis"
    assert "-XX:+ExitOnOutOfMemoryError" in ExecutorStart.opened(SECRET, place.life, place.executor).java
    assert bool(seen(between, derived(SECRET, "control").encode())) != encrypted
    assert bool(sealed(b"\n\n".join(between.values()))) != encrypted

    # Inside of a pod, Spark hands tasks their closures in clear. What is in them is over with its epoch, too.
    tickets, rights = sealed(everything), {found.group() for found in RIGHT.finditer(everything)}
    trusted = authority(SECRET).decode() if encrypted else None
    (one, *_) = hosts.registrations()
    for line in rights:
        right = Right.root(SECRET).narrowed(json.loads(line))
        assert right.lines == (line.decode(),)
        if json.loads(line)["may"] == "stage" and right.seal in everything:
            tickets.add(stage_ticket(right, 1 << 40, one.instance, one.incarnation))
    # Closures of tasks pass through Unix sockets now: in clear there is only what is said between pods without TLS.
    assert len(tickets) >= 3 or encrypted
    began = time.monotonic()
    for ticket in tickets:
        why = replay(hosts, ticket, trusted)
        assert "is over" in why or "rows gone" in why, why
        assert time.monotonic() - began < 60
