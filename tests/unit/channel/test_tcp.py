"""What only a network has: dead processes, strangers on the port, two connections at one time, full socket buffers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from channel_rig import SECRET, WAIT, Rig, together

from ferry.channel import handshake
from ferry.channel.base import Lane
from ferry.channel.frames import CREDIT, FIRST, HEADER_BYTES, LAST, encode, job_hash
from ferry.channel.handshake import Caller, greet
from ferry.channel.tcp import endpoint
from ferry.channel.tcp.endpoint import preferred
from ferry.contract import limits
from ferry.contract.errors import Refusal, Superseded, Unreachable

JOB = job_hash("job")

CHILD = """
import sys, threading
from ferry.channel.base import DeferredCredit, Lane
from ferry.channel.tcp.endpoint import TcpEndpoint
keep = lambda message: DeferredCredit() if message.lane == Lane.BULK else None
endpoint = TcpEndpoint("child", "job", sys.stdin.readline().strip().encode(), keep, lambda p, c: None, lambda p, r: None)
print(endpoint.listen()[1], flush=True)
threading.Event().wait()
"""


@pytest.fixture
def net():
    rig = Rig("tcp")
    yield rig
    rig.end()


@pytest.fixture
def child():
    path = os.pathsep.join([str(Path(endpoint.__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    process.stdin.write(SECRET.decode() + "\n")
    process.stdin.flush()
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()


def test_a_killed_process_is_noticed_at_once_also_by_a_sender_without_credit(net, child):
    process, port = child
    a = net.party("a")
    channel = a.endpoint.connect("child", ("127.0.0.1", port), WAIT)
    for _ in range(limits.SLOTS):
        channel.send(Lane.BULK, 0, 0, b"", timeout=WAIT)
    ends = []

    def blocked():
        try:
            channel.send(Lane.BULK, 0, 0, b"")
        except Unreachable:
            ends.append(time.monotonic())

    thread = threading.Thread(target=blocked, daemon=True)
    thread.start()
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    assert a.reason().startswith(("closed by the peer", "connection lost"))
    noticed = time.monotonic()
    thread.join(WAIT)
    assert noticed - killed < 0.5 and ends and ends[0] - killed < 0.5


def raw_peer(party, address, receive_bytes=None):
    """An authenticated connection of 'raw' to the party, as a bare socket."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.connect(address)
    assert greet(sock, Caller("raw", bytes(16), 1), party.name, "job", SECRET, WAIT)[0]
    sock.settimeout(WAIT)
    return sock, party.opened.get(timeout=WAIT)[1]


def frame(**fields):
    return b"".join(bytes(p) for p in encode((fields.pop("payload", b""),), job=JOB, **fields))


def test_receiving_and_credit_go_on_while_sending_is_stuck(net):
    """The peer does not read: our writer sits in a full socket; its messages are delivered all the same."""
    a = net.party("a")
    sock, channel = raw_peer(a, a.endpoint.listen(), receive_bytes=4096)
    body = bytes(limits.SLOT_BYTES * limits.SLOTS)
    for lane in Lane:
        channel.post(lane, 0, 0, b"", (body,))
    assert not channel.flush(0.1)
    for number in range(1, limits.SLOTS + 1):
        sock.sendall(frame(lane=Lane.FRAGMENT, flags=FIRST | LAST, kind=number, sequence=number))
    assert [m.kind for m in a.take(limits.SLOTS)] == list(range(1, limits.SLOTS + 1))
    channel.post(Lane.DELTA, 1, 0, b"still not blocking")
    channel.close()
    assert a.reason() == "closed by this side"
    sock.close()


def drain(sock, count):
    while count:
        piece = sock.recv(min(count, 1 << 20))
        assert piece
        count -= len(piece)


def test_post_does_not_wait_for_a_full_socket_and_what_it_left_is_sent_later(net):
    """All messages are small enough to be sent by the caller itself, until the socket is full."""
    a = net.party("a")
    sock, channel = raw_peer(a, a.endpoint.listen(), receive_bytes=4096)
    size = 60_000
    posts = [(number, lane) for number in range(limits.SLOTS) for lane in Lane]
    posted = 0
    # Nothing but the rest of one message is left to be sent: nothing else would wake the writer for it.
    while not channel.transport._rest:
        number, lane = posts[posted]
        channel.post(lane, number, 0, b"", (bytes(size),))
        posted += 1
    drain(sock, posted * (HEADER_BYTES + size))
    for number, lane in posts[posted:]:
        channel.post(lane, number, 0, b"", (bytes(size),))
    drain(sock, (len(posts) - posted) * (HEADER_BYTES + size))
    assert channel.flush(WAIT)
    sock.close()


def test_a_torn_frame_waits_and_a_torn_connection_delivers_nothing_of_it(net):
    a = net.party("a")
    sock, _ = raw_peer(a, a.endpoint.listen())
    raw = frame(lane=Lane.DELTA, flags=FIRST | LAST, sequence=1, total=4, payload=b"body")
    for byte in raw[:-1]:
        sock.sendall(bytes([byte]))
    sock.shutdown(socket.SHUT_WR)
    assert a.reason() == "closed by the peer" and a.messages.empty()
    sock.close()


def test_a_refused_peer_reads_why(net):
    a = net.party("a")
    sock, _ = raw_peer(a, a.endpoint.listen())
    sock.sendall(frame(lane=Lane.DELTA, flags=CREDIT, credit=9))
    data = b""
    while piece := sock.recv(4096):
        data += piece
    assert b"impossible credit on lane DELTA" in data
    sock.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100), bytes(1000)])
def test_a_stranger_learns_nothing_and_cannot_stay(net, monkeypatch, said):
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECONDS", 0.05)
    a = net.party("a")
    with socket.create_connection(a.endpoint.listen(), WAIT) as sock:
        sock.sendall(said)
        answer = b""
        try:
            while piece := sock.recv(4096):
                answer += piece
        except ConnectionResetError:
            pass
    assert answer == b"" and a.opened.empty()
    assert "handshake" in a.endpoint.refusals[0] or "protocol" in a.endpoint.refusals[0]


def test_a_wrong_proof_is_told_no_more_than_no(net):
    a = net.party("a")
    sock = socket.create_connection(a.endpoint.listen(), WAIT)
    seen = []
    receive = sock.recv

    class Spy:
        settimeout, sendall = sock.settimeout, sock.sendall

        def recv(self, size):
            seen.append(receive(size))
            return seen[-1]

    with pytest.raises(Refusal, match="refused the handshake"):
        greet(Spy(), Caller("b", bytes(16), 1), "a", "job", b"guessed", WAIT)
    sock.close()
    assert not any(seen[-1]), "a refusal is all zeros"
    # The party notes its reason after it has answered.
    net.party("c").endpoint.connect("a", a.endpoint.listen(), WAIT)
    assert "the secret, the job or the names" in a.endpoint.refusals[0]


def test_what_answers_has_to_prove_itself_too(net):
    """An impostor on the peer's address admits everybody, without the secret."""
    a = net.party("a")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor():
            sock, _ = server.accept()
            with sock:
                sock.recv(40, socket.MSG_WAITALL)
                sock.sendall(handshake._HELLO.pack(handshake.MAGIC, bytes(32)))
                proof = sock.recv(handshake._PROOF.size + 32, socket.MSG_WAITALL)
                sock.sendall(handshake._VERDICT.pack(1, bytes(16), 0) + proof[-32:])

        thread = threading.Thread(target=impostor, daemon=True)
        thread.start()
        with pytest.raises(Refusal, match="could not prove it"):
            a.endpoint.connect("b", server.getsockname(), WAIT)
        thread.join(WAIT)
    assert a.opened.empty()


def test_too_many_handshakes_are_turned_away(net, monkeypatch):
    monkeypatch.setattr(endpoint, "HANDSHAKES_MAX", 1)
    a = net.party("a")
    address = a.endpoint.listen()
    with socket.create_connection(address, WAIT) as idle, socket.create_connection(address, WAIT) as turned_away:
        assert turned_away.recv(1) == b""
        idle.close()
    assert "handshakes at one time" in a.endpoint.refusals[0]


def test_two_that_connect_to_each_other_at_one_time_agree_on_one_connection(net):
    a, b = net.party("a"), net.party("b")
    here, there = a.endpoint.listen(), b.endpoint.listen()
    for turn in range(25):
        together(lambda: a.endpoint.connect("b", there, WAIT), lambda: b.endpoint.connect("a", here, WAIT))
        a.endpoint.channel("b").send(Lane.DELTA, turn, 1, b"", timeout=WAIT)
        assert b.next().kind == turn
        # b has got a message on it, so it is b's connection as well now.
        b.endpoint.channel("a").send(Lane.DELTA, turn, 2, b"", timeout=WAIT)
        assert a.next().kind == turn
        assert (
            a.endpoint.channel("b").transport.connection.opening.initiator
            == b.endpoint.channel("a").transport.connection.opening.initiator
        )
    for party in (a, b):
        assert party.events[0::2] == ["open"] * len(party.events[0::2]), "open and close alternate"
        assert "open" not in party.events[1::2]


def test_the_rule_for_two_connections_is_the_same_on_both_ends():
    class Made:
        def __init__(self, initiator, life, number):
            self.initiator, self.life, self.number = initiator, life, number

    assert preferred(Made("a", b"1", 1), Made("b", b"1", 9)) and not preferred(Made("b", b"1", 9), Made("a", b"1", 1))
    assert preferred(Made("a", b"1", 2), Made("a", b"1", 1)) and not preferred(Made("a", b"1", 1), Made("a", b"1", 2))
    assert not preferred(Made("a", b"1", 5), Made("b", b"2", 1)) and preferred(Made("b", b"2", 1), Made("a", b"1", 5))


def test_a_former_life_gets_no_connection_once_its_successor_was_here(net):
    a = net.party("a")
    here = a.endpoint.listen()
    former, successor = net.party("b"), net.party("b")
    successor.endpoint.connect("a", here, WAIT)
    for _ in range(2):
        with pytest.raises(Superseded, match="a knows a later life of b"):
            former.endpoint.connect("a", here, WAIT)
        successor.endpoint.close()
    assert a.events[:1] == ["open"] and "replaced" not in a.events
