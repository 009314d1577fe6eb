"""One of two processes that measure channels: `receive` serves, `send` goes through a plan and prints a line per result.

    python -m bench.parts.channel.peer receive HOST PORT      serves one sender, then ends
    python -m bench.parts.channel.peer send HOST PORT PLAN    PLAN: a list of steps as JSON; can be tried by hand

Both talk over a TCP connection of their own, one line of JSON a question. It must know nothing of where it runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.parts.channel import rivals
from bench.parts.channel.ends import PINGS_WARM, Case, Receiver, Sender, half

Step = dict[str, Any]

CONNECT_SECONDS = 60.0


class Serving:
    """What the receiving side does when it is asked."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._receiver: Receiver | None = None
        self._served: rivals.Served | None = None

    def channel(self, case: Step) -> Step:
        """Listen for a channel."""
        self._receiver = Receiver(Case(**case), self._host)
        return {"port": self._receiver.port}

    def program(self, step: Step) -> Step:
        """Start the server of a program."""
        port = rivals.free_port()
        self._served = rivals.Served(command(step, port, None), port)
        return {"port": port}

    def echo(self, step: Step) -> Step:
        """Send back what comes."""
        return {"port": rivals.Echo(self._host, step["size"]).port}

    def end(self, step: Step) -> Step:
        """End what was begun."""
        if self._receiver is not None:
            self._receiver.close()
        if self._served is not None:
            self._served.end()
        self._receiver = self._served = None
        return {}


def receive(host: str, port: int) -> None:
    """Serve one sender."""
    serving = Serving(host)
    with socket.create_server((host, port)) as server:
        talk, _ = server.accept()
    with talk, talk.makefile("r") as lines:
        for line in lines:
            question = json.loads(line)
            try:
                answer = getattr(serving, question.pop("do"))(question)
            except Exception as error:  # told to the sender, which ends everything
                answer = {"failed": f"{type(error).__name__}: {error}"}
            talk.sendall(json.dumps(answer).encode() + b"\n")
    serving.end({})


class Asking:
    """The sending side: each step returns its numbers, in bytes and seconds."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                self._talk = socket.create_connection((host, port), CONNECT_SECONDS)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        self._lines = self._talk.makefile("r")

    def _ask(self, what: str, **question: Any) -> Step:
        self._talk.sendall(json.dumps({"do": what, **question}).encode() + b"\n")
        answer: Step = json.loads(self._lines.readline() or '{"failed": "it ended"}')
        if "failed" in answer:
            raise rivals.RivalFailed(f"the receiving side: {answer['failed']}")
        return answer

    @contextmanager
    def _other(self, what: str, **question: Any) -> Iterator[int]:
        yield self._ask(what, **question)["port"]
        self._ask("end")

    def channel(self, step: Step) -> Iterator[tuple[Step, dict[str, float]]]:
        """A channel: throughput, then latency of each size of message."""
        case = Case(**step)
        with self._other("channel", **step) as port:
            sender = Sender(case, own_address(self._host), (self._host, port))
            if case.seconds:
                yield {"bytes": case.message_bytes}, sender.throughput()
            for size in case.pings:
                yield {"bytes": size}, sender.latency(size)
            sender.close()

    def program(self, step: Step) -> Iterator[tuple[Step, dict[str, float]]]:
        """A program of others."""
        with self._other("program", **step) as port:
            text = rivals.run(command(step, port, self._host), 60)
        name = step["name"]
        yield {}, rivals.read_iperf3(text) if name == "iperf3" else rivals.read_perftest(name, text)

    def echo(self, step: Step) -> Iterator[tuple[Step, dict[str, float]]]:
        """Round trips of a bare socket."""
        with self._other("echo", **step) as port:
            took = rivals.ask((self._host, port), step["size"], PINGS_WARM + step["rounds"])
        yield {"bytes": step["size"]}, half(took[PINGS_WARM:])

    def close(self) -> None:
        """The other side ends."""
        self._lines.close()
        self._talk.close()


def command(step: Step, port: int, host: str | None) -> list[str]:
    """The command line of one half of a program."""
    if step["name"] == "iperf3":
        return rivals.iperf3(port, host, step["seconds"])
    assert step["name"] in rivals.PERFTEST, step["name"]
    device, gid = verbs()
    return rivals.perftest(step["name"], port, host, device, gid, step["size"], step["count"])


def verbs() -> tuple[str, int]:
    """The device and the number of its address that a channel of this guest would take."""
    from ferry.channel.rdma.device import choose_device
    from ferry.channel.rdma.memory import RingShape

    device = choose_device(RingShape(), own=[os.environ["FERRY_GUEST_ADDRESS"]])
    try:
        return device.port.device, device.port.gid.gid_index
    finally:
        device.close()


def own_address(peer: str) -> str:
    """This side's address on the way to the peer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((peer, 9))
        return str(sock.getsockname()[0])


def send(host: str, port: int, plan: list[Step]) -> None:
    """Go through the plan."""
    asking = Asking(host, port)
    steps: dict[str, Callable[[Step], Iterator[tuple[Step, dict[str, float]]]]] = {
        "channel": asking.channel,
        "program": asking.program,
        "echo": asking.echo,
    }
    for step in plan:
        what = step["do"]
        for more, numbers in steps[what]({k: v for k, v in step.items() if k not in ("do", "label")}):
            print(json.dumps({**step["label"], **more, "numbers": numbers}), flush=True)
    asking.close()


def main() -> None:
    """Which side this is."""
    role, host, port, *rest = sys.argv[1:]
    if role == "receive":
        receive(host, int(port))
    else:
        send(host, int(port), json.loads(rest[0]))


if __name__ == "__main__":
    main()
