"""One of two machines: `node.py listen` receives, `node.py send PEER` sends until all has arrived; then the peer loses power.

The wire may lose packets and change their order until then. The last line says what was seen.
"""

from __future__ import annotations

import hashlib
import os
import queue
import subprocess
import sys
import threading
import time
from ipaddress import IPv6Address
from pathlib import Path

from ferry.channel.base import Channel, Lane, Message
from ferry.channel.rdma.device import Device, choose_device
from ferry.channel.rdma.endpoint import Notify, RdmaEndpoint, RdmaSettings
from ferry.channel.rdma.verbs import DeviceUnusable
from ferry.contract.errors import Unreachable

PORT = 7000
COUNTERS = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")
COUNT = 300


def counters() -> dict[str, int]:
    """What the kernel counted, without zeros."""
    values = {file.name: int(file.read_text()) for file in COUNTERS.iterdir() if file.name != "lifespan"}
    return {name: value for name, value in values.items() if value}


NOBODY = IPv6Address("::ffff:10.8.0.77")


def ask_for_nobody(device: Device) -> None:
    """A card that is not there is known at once, and no thread of this process stands still meanwhile."""
    gaps, over = [0.0], threading.Event()

    def tick() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            gaps.append(time.monotonic() - began)

    ticking = threading.Thread(target=tick)
    ticking.start()
    pair = device.queue_pair(16, 16)
    try:
        pair.connect(pair.address._replace(gid=NOBODY))
    except DeviceUnusable as error:
        over.set()
        ticking.join()
        print(f"nobody: {error}; threads stood still for {max(gaps):.2f} s at most", flush=True)
    finally:
        over.set()
        pair.close()


def main() -> None:
    role, *rest = sys.argv[1:]
    settings = RdmaSettings(
        notify=Notify(os.environ.get("FERRY_NOTIFY", "imm")), fallback="FERRY_FALLBACK" in os.environ
    )
    messages: queue.Queue[Message] = queue.Queue()
    ended: queue.Queue[tuple[float, str]] = queue.Queue()

    def close(peer: str, reason: str) -> None:
        ended.put((time.monotonic(), reason))

    def opened(peer: str, channel: Channel) -> None:
        return None

    device = choose_device(settings.shape, own=[os.environ["FERRY_GUEST_ADDRESS"]])
    print("device", device.port, flush=True)
    endpoint = RdmaEndpoint(role, "job", b"secret", messages.put, opened, close, device=device, settings=settings)
    if role == "listen":
        endpoint.listen("0.0.0.0", PORT)
        digest, received = hashlib.sha256(), 0
        while True:
            message = messages.get(timeout=120)
            if message.kind == 0:
                break
            digest.update(message.body)
            received += 1
        answer = digest.hexdigest().encode()
        channel = endpoint.channel(message.peer)
        assert channel is not None
        channel.send(Lane.DELTA, received, 0, answer)
        channel.flush(10)
        print("received", received, "counters", counters(), flush=True)
        threading.Event().wait(float(os.environ.get("FERRY_LINGER", "2")))
        return
    (peer,) = rest
    ask_for_nobody(device)
    deadline = time.monotonic() + 60
    while True:
        try:
            channel = endpoint.connect("listen", (peer, PORT))
            break
        except Unreachable:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    digest = hashlib.sha256()
    for number in range(1, COUNT + 1):
        body = os.urandom(1 + number * 7919 % 30_000)
        digest.update(body)
        channel.send(Lane.DELTA, number, 0, b"", (body,), timeout=30)
    channel.send(Lane.DELTA, 0, 0, b"", timeout=30)
    answer = messages.get(timeout=60)
    assert (answer.kind, answer.head) == (COUNT, digest.hexdigest().encode()), "what arrived is not what was sent"
    print("sent", COUNT, "counters", counters(), flush=True)
    subprocess.run(["tc", "qdisc", "del", "dev", os.environ["FERRY_GUEST_CARD"], "root"], check=True)
    time.sleep(1.0)  # everything is consumed, both sides sleep
    Path("/x/kill-a").touch()
    while Path("/x/kill-a").exists():
        time.sleep(0.005)
    dark = time.monotonic()
    when, reason = ended.get(timeout=20)
    print(f"noticed {when - dark:.2f} s after the power cut: {reason}", flush=True)
    assert when - dark < 1.0, "too late"


main()
