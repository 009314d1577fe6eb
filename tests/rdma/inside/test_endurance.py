"""What shows only with time: processor time of an idle pair, other threads, memory over many messages."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from itertools import pairwise
from statistics import median

import pytest
from channel_rig import WAIT

from ferry.channel.base import Lane


def test_an_idle_pair_uses_no_processor_and_other_threads_run(rig):
    rig.pair()
    shares, wakes = [], []
    for _ in range(3):
        time.sleep(0.5)
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(5.0)
        now, seconds = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
        shares.append((now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / seconds)
        wakes.append((now.ru_nvcsw - used.ru_nvcsw) / seconds)
    share = min(shares)  # The machine is shared: what another process takes counts as taken here, so it only adds.
    began, ticks = time.monotonic(), 0
    while time.monotonic() - began < 2.0:
        time.sleep(0.02)
        ticks += 1
    print(f"idle: {share:.4f} of an emulated core for two sides, woken {median(wakes):.0f}/s, {ticks} ticks of 100")
    # The processor is emulated, ten times slower and more: a loop that polls needs all of it.
    assert share < 0.05
    assert median(wakes) < 60, "two sides ask the peer's device every 150 ms, and look for its answer"
    assert ticks > 70


def test_other_threads_run_while_a_channel_is_busy(rig):
    _, b, to_b, _ = rig.pair()
    done, gaps = threading.Event(), []

    def heartbeat():
        while not done.is_set():
            before = time.monotonic()
            time.sleep(0.01)
            gaps.append(time.monotonic() - before)

    thread = threading.Thread(target=heartbeat, daemon=True)
    thread.start()
    for _ in range(300):
        to_b.send(Lane.DELTA, 0, 0, b"", (bytes(50_000),), timeout=WAIT)
    b.take(300)
    done.set()
    thread.join(WAIT)
    print("longest gap", round(max(gaps), 3))
    assert max(gaps) < 0.5


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def allocated():
    """Bytes that C has allocated, and objects of Python: exact, where pages come in steps of a megabyte and more."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallInfo
    return libc.mallinfo2().numbers[7], sys.getallocatedblocks()


class MallInfo(ctypes.Structure):
    """mallinfo2 of glibc; the eighth number is what is in use."""

    _fields_ = (("numbers", ctypes.c_size_t * 10),)


MESSAGES = int(os.environ.get("FERRY_RDMA_MESSAGES", "100000"))


@pytest.mark.timeout(1200)
def test_memory_stays_flat_over_many_messages(rig):
    a, b = rig.party("a"), rig.party("b")
    seen, goal, reached = 0, 0, threading.Event()

    def count_one(message):
        nonlocal seen
        seen += 1  # on the channel's one thread
        if seen == goal:
            reached.set()

    b._message = b.endpoint._on_message = count_one
    channel = a.endpoint.connect("b", b.endpoint.listen(), WAIT)
    body = (bytes(100),)

    def run(count):
        nonlocal goal
        reached.clear()
        goal = seen + count
        sent = 0
        while sent < count:
            channel.send(Lane.DELTA, 1, 0, b"", body, WAIT)  # waits for credit
            sent += 1
            with (
                channel.transport.connection.sending
            ):  # what is queued now shares slots, as the messages of busy senders do
                while sent < count and channel.send_nowait(Lane.DELTA, 1, 0, b"", body):
                    sent += 1
            channel.transport._waker.wake()
        assert reached.wait(WAIT)
        gc.collect()

    sizes, began = [], time.monotonic()
    for _ in range(8):
        run(MESSAGES // 8)
        sizes.append(resident())
    rate = MESSAGES / (time.monotonic() - began)
    print(
        f"{MESSAGES} messages, {rate:.0f} a second, {channel.transport._control.established.requests.posted} requests, resident {sizes}"
    )
    # Buffers reach their full size once; what leaks grows in every round.
    grown = median(after - before for before, after in pairwise(sizes))
    assert grown < MESSAGES // 8, "a byte a message"


def test_requests_leave_nothing_behind(device):
    """The library's own leak, 62 bytes a request, shows here first."""
    from ferry.channel.rdma.verbs import ScatterGatherEntry

    pair = device.queue_pair(64, 8)
    pair.connect(pair.address)
    region = pair.region(4096, remote=True)
    entries = [ScatterGatherEntry(region.address, 8, region.lkey)]

    def run(count):
        for number in range(1, count + 1):
            pair.post_write(entries, region.address + 8, region.rkey, number, signaled=True)
            while not pair.poll():
                pass
        gc.collect()

    run(2000)
    before = allocated()
    run(30_000)
    bytes_more, objects_more = (after - was for after, was in zip(allocated(), before, strict=True))
    print(f"30000 requests, {bytes_more} bytes and {objects_more} objects more")
    pair.close()
    assert bytes_more < 400_000
    assert objects_more < 3000
