"""What channels are compared with: iperf3, ib_write_bw, ib_write_lat, and two bare sockets. Commands, and what they print.

It must need nothing but the standard library: it runs in guests, too.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 20.0
PERFTEST = ("ib_write_bw", "ib_write_lat")


class RivalFailed(Exception):
    """A program did not do what it had to; the message holds what it printed."""


def iperf3(port: int, host: str | None, seconds: float = 2.0) -> list[str]:
    """One stream from the client, writes of 64 KiB, the first second left out; the server serves once."""
    if host is None:
        return ["iperf3", "-s", "-1", "-p", str(port)]
    return ["iperf3", "-c", host, "-p", str(port), "-l", "64K", "-t", str(max(1, round(seconds))), "-O", "1", "-J"]


def read_iperf3(text: str) -> dict[str, float]:
    """What the receiver got."""
    end = json.loads(text)["end"]
    cpu = end["cpu_utilization_percent"]
    return {
        "throughput": end["sum_received"]["bits_per_second"] / 8,
        "sender cpu": cpu["host_total"] / 100,
        "receiver cpu": cpu["remote_total"] / 100,
    }


def perftest(program: str, port: int, host: str | None, device: str, gid: int, size: int, count: int) -> list[str]:
    """One queue pair, `count` writes of `size` bytes, as many under way as the program likes."""
    command = [program, "-d", device, "-x", str(gid), "-s", str(size), "-n", str(count), "-F", "-p", str(port)]
    if program == "ib_write_bw":
        command.append("--report_gbits")
    return command if host is None else [*command, host]


def read_perftest(program: str, text: str) -> dict[str, float]:
    """The line of numbers below the line of titles."""
    lines = [line.split() for line in text.splitlines()]
    titles = next((n for n, words in enumerate(lines) if words[:1] == ["#bytes"]), None)
    if titles is None or len(lines) < titles + 2:
        raise RivalFailed(f"{program} printed no result:\n{text[-2000:]}")
    numbers = [float(word) for word in lines[titles + 1]]
    if program == "ib_write_bw":
        return {"throughput": numbers[3] * 1e9 / 8}
    return {"latency": numbers[4] * 1e-6, "latency p99": numbers[7] * 1e-6}


class Served:
    """The server's half of a program, until its client has left. Raises RivalFailed when it does not listen in time."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._command = command
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + WAIT_SECONDS
        while not listening(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RivalFailed(f"{command[0]} does not listen:\n{self.end()}")
            time.sleep(0.02)

    def end(self) -> str:
        """Wait for its end, or end it; what it printed."""
        try:
            return self._process.communicate(timeout=WAIT_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def listening(port: int) -> bool:
    """Somebody of this machine listens there. Connecting would be taken for the client."""
    wanted = f":{port:04X}"
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(file).read_text("ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[1].endswith(wanted):
                return True
    return False


def run(command: Sequence[str], seconds: float) -> str:
    """The client's half; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + WAIT_SECONDS)
    if done.returncode != 0:
        raise RivalFailed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


class Echo:
    """Sends back what one client sends, `size` bytes at a time, from a plain socket."""

    def __init__(self, host: str, size: int) -> None:
        self._server = socket.create_server((host, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._run, args=(size,), daemon=True).start()

    def _run(self, size: int) -> None:
        sock, _ = self._server.accept()
        self._server.close()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffer = memoryview(bytearray(size))
            while fill(sock, buffer):
                sock.sendall(buffer)


def ask(address: tuple[str, int], size: int, rounds: int) -> list[float]:
    """Round trips to an Echo, in seconds."""
    took = []
    with socket.create_connection(address, WAIT_SECONDS) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        question, answer = bytes(size), memoryview(bytearray(size))
        for _ in range(rounds):
            began = time.perf_counter()
            sock.sendall(question)
            if not fill(sock, answer):
                raise RivalFailed("the echo ended")
            took.append(time.perf_counter() - began)
    return took


def fill(sock: socket.socket, buffer: memoryview) -> bool:
    """Receive exactly so many bytes; False when the other side has ended."""
    got = 0
    while got < len(buffer):
        count = sock.recv_into(buffer[got:])
        if not count:
            return False
        got += count
    return True
