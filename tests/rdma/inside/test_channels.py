"""What only channels over real verbs can show: dead and frozen processes, doorbells, threads, memory, privileges."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from channel_rig import SECRET, WAIT, Rig, defer_all, together

from ferry.channel.base import Lane
from ferry.channel.rdma.endpoint import Notify, RdmaSettings
from ferry.channel.rdma.memory import RingShape
from ferry.contract import limits
from ferry.contract.errors import Bug, Exhausted, Unreachable

CHILD = """
import sys, threading
from ferry.channel.base import DeferredCredit, Lane
from ferry.channel.rdma.endpoint import Notify, RdmaEndpoint, RdmaSettings
from ferry.channel.rdma.device import choose_device
notify, port, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
settings = RdmaSettings(notify=Notify(notify))
keep = lambda message: DeferredCredit() if message.lane == Lane.BULK else None
endpoint = RdmaEndpoint("child", "job", sys.stdin.readline().strip().encode(), keep, lambda p, c: None,
                        lambda p, r: None, device=choose_device(settings.shape), settings=settings)
if port:
    channel = endpoint.connect("a", ("127.0.0.1", port))
    print("connected", flush=True)
    while mode == "write":
        channel.send(Lane.DELTA, 1, 0, b"", (bytes(20_000),))
else:
    print(endpoint.listen()[1], flush=True)
threading.Event().wait()
"""


@pytest.fixture
def child():
    started = []

    def start(notify, port=0, mode="wait"):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, notify, str(port), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.stdin.write(SECRET.decode() + "\n")
        process.stdin.flush()
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()


def established(channel):
    """The link of a channel, once its bytes go over it; the first ones go over TCP."""
    deadline = time.monotonic() + WAIT
    while channel.transport._control.established is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return channel.transport._control.established


def notify_of(rig):
    return str(rig._settings.notify)


def test_a_killed_process_is_noticed_also_by_a_sender_without_credit(rig, child):
    process, port = child(notify_of(rig))
    a = rig.party("a")
    channel = a.endpoint.connect("child", ("127.0.0.1", int(port)), WAIT)
    for _ in range(limits.SLOTS):
        channel.send(Lane.BULK, 0, 0, b"", timeout=WAIT)
    assert channel.flush(WAIT)
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
    thread.join(WAIT)
    print("noticed after", round(ends[0] - killed, 3), "s")
    assert ends[0] - killed < 1.0


def test_a_peer_that_only_verbs_can_see_dead_is_noticed_in_under_a_second(rig):
    """Its TCP connection stays open and silent, as when its machine lost power; nothing is outstanding."""
    a, b, to_b, to_a = rig.pair()
    link = established(to_a).queue_pair
    assert established(to_b)
    to_b.send(Lane.DELTA, 1, 0, b"")
    b.next()
    assert to_b.flush(WAIT)
    broken = link._lib.QPAttr()
    broken.qp_state = link._lib.enums.IBV_QPS_ERR
    to_a.transport._step = lambda: time.sleep(0.01) is None  # the peer's thread does nothing any more
    time.sleep(0.1)
    gone = time.monotonic()
    link._qp.modify(broken, link._lib.enums.IBV_QP_STATE)
    reason = a.reason()
    noticed = time.monotonic() - gone
    print("noticed after", round(noticed, 3), "s:", reason)
    assert noticed < 1.0 and "RETRY_EXC_ERR" in reason


def test_a_frozen_writer_that_wakes_after_the_end_writes_nothing(rig, child):
    """The fence of a failover: the end is reported only after the memory is revoked; what the zombie writes is lost."""
    a = rig.party("a")
    port = a.endpoint.listen()[1]
    process, _ = child(notify_of(rig), port, "write")
    a.opened.get(timeout=WAIT)
    a.take(50)
    channel = a.endpoint.channel("child")
    ring = established(channel).inbound.ring
    watched = memoryview(ring._map)  # keeps the memory when the channel is gone
    process.send_signal(signal.SIGSTOP)
    channel.close("fenced")
    assert a.reason() == "fenced"
    watched[:] = b"\xa5" * len(watched)
    process.send_signal(signal.SIGCONT)
    process.wait(WAIT)  # its next send raises, and ends it
    assert bytes(watched) == b"\xa5" * len(watched)
    assert process.returncode != 0


def test_two_that_connect_to_each_other_at_one_time_agree_on_one_connection(rig):
    a, b = rig.party("a"), rig.party("b")
    here, there = a.endpoint.listen(), b.endpoint.listen()
    for turn in range(8):
        together(lambda: a.endpoint.connect("b", there, WAIT), lambda: b.endpoint.connect("a", here, WAIT))
        a.endpoint.channel("b").send(Lane.DELTA, turn, 1, b"", timeout=WAIT)
        assert b.next().kind == turn
        b.endpoint.channel("a").send(Lane.DELTA, turn, 2, b"", timeout=WAIT)
        assert a.next().kind == turn


def test_the_doorbell_wakes_a_sleeper(rig):
    a, b, to_b, to_a = rig.pair()
    for turn in range(10):
        time.sleep(0.05)  # long enough for both sides to fall asleep
        sent = time.monotonic()
        (to_b if turn % 2 else to_a).send(Lane.DELTA, turn, 0, b"")
        assert (b if turn % 2 else a).next().kind == turn
        assert time.monotonic() - sent < 0.2, "it must not wait for the next probe"


def test_a_fork_is_refused_while_a_device_is_open_and_a_program_may_start(device):
    with pytest.raises(Bug, match="fork while an RDMA device is open"):
        os.fork()
    assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout == b"1\n"


def test_bodies_in_lent_memory_are_sent_from_where_they_are(rig):
    import mmap

    a, b = rig.party("a"), rig.party("b")
    log = mmap.mmap(-1, 1 << 20)
    log[:] = os.urandom(1 << 20)
    a.endpoint.lend(log)
    channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
    assert established(channel)
    view = memoryview(log)
    channel.send(Lane.BULK, 1, 0, b"head", (view[1000:300_000], b"between", view[500_000:]), timeout=WAIT)
    got = b.next()
    assert bytes(got.body) == log[1000:300_000] + b"between" + log[500_000:]
    assert channel.flush(WAIT)
    # What was copied into the stage is little: the rest of every slot is still the zeros of a fresh mapping.
    copied = len(bytes(established(channel).outbound._staging.view).replace(b"\0", b""))
    assert copied < 4096 and a.endpoint.lent_bytes > 800_000
    view.release()


UNPRIVILEGED = """
import resource
from ferry.channel.rdma.device import choose_device
from ferry.channel.rdma.memory import PINNED_BYTES_MAX, Limits, RingShape, ring_error
limits = Limits.here()
assert limits.locked_bytes == 8 << 20 and not limits.may_lock, limits
links = PINNED_BYTES_MAX // RingShape().pinned_bytes
assert ring_error(links, RingShape(), limits) is None
device = choose_device(RingShape())
opened = [device.queue_pair(RingShape().send_depth, RingShape().receives) for _ in range(links)]
for link in opened:
    link.region(RingShape().ring_bytes, remote=True)
    link.region(RingShape().ring_bytes, remote=False)
print(links, "links")
try:
    opened[0].region(8 << 20, remote=False)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_no_privilege_is_needed_for_what_is_pinned_by_default():
    os.chmod("/dev/infiniband/uverbs0", 0o666)
    limited = "ulimit -l 8192; exec setpriv --reuid 1000 --regid 1000 --clear-groups --bounding-set -all "
    command = ["bash", "-c", f'{limited} "$@"', "-", sys.executable, "-c", UNPRIVILEGED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "5 links" in done.stdout and "Exhausted" in done.stdout


@pytest.mark.parametrize("shape", [RingShape(1, 256), RingShape(3, 1024), RingShape(16, 4096), RingShape(2, 1 << 20)])
@pytest.mark.parametrize("notify", [Notify.FOOTER, Notify.IMM])
def test_rings_of_many_shapes(notify, shape):
    rig = Rig(f"rdma-{notify}", RdmaSettings(shape, notify))
    try:
        _, b, to_b, _ = rig.pair()
        for size in (0, 1, 100, shape.payload_bytes, 30_000):
            to_b.send(Lane.DELTA, size, 0, b"h", (os.urandom(size),), timeout=WAIT)
            assert b.next().kind == size
        kept, b.handler = defer_all(Lane.BULK)
        for _ in range(limits.SLOTS):
            to_b.send(Lane.BULK, 1, 0, b"", timeout=WAIT)
        with pytest.raises(Exhausted):
            to_b.send(Lane.BULK, 1, 0, b"", timeout=0.01)
        assert len(b.take(limits.SLOTS)) == limits.SLOTS == len(kept)
    finally:
        rig.end()
