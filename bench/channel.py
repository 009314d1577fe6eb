"""`make bench-channel`: bytes per second and latency of channels by slots, TCP and RDMA, compared with iperf3 and perftest.

Both ends are processes of one machine: on the host, in one virtual machine with Soft-RoCE, or in two virtual machines
on a wire.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.parts.channel.plan import LEFT_OUT, PLACES, Sizes, Step, plan
from bench.parts.channel.report import Report
from bench.parts.channel.rivals import free_port
from bench.shared.ferry_job import RESULTS, ROOT, RunFailed
from bench.shared.results import Results

SPEED = "Soft-RoCE says nothing about speed: the processor makes its packets."

METHOD = """\
{speed} Numbers of RDMA show what slots and credits do and what our code adds to ib_write_bw on the same device, not \
what a network card would do. One process sends to another one: 'host', over 127.0.0.1; 'guest', both in one virtual \
machine without KVM with 2 emulated processors, TCP over its address and RDMA through its device rxe0; 'pair', in two \
virtual machines with 1 processor each, on one emulated wire. The compared measurements alternate, several times (twice \
as many on the host), and a ratio is the median of the ratios of all turns: iperf3 (one stream, writes of 64 KiB, \
without its first second, bytes received), ib_write_bw and ib_write_lat (one queue pair), and a channel with messages \
of 64 KiB on one lane, sent for {seconds:g} s after a warm-up and counted where they arrive, whole and checked. A \
channel's checksum is on, except where a record says 'checksum: false'. Slots of TCP: frames and credits of a lane (the \
product: 64 of 64 KiB); of RDMA: the ring (the product: 8 of 64 KiB), below a lane's credits. Latency: half of a round \
trip of one message at a time, median of {rounds}; 'sockets' is the same with bare sockets in Python. cpu: processors \
that the process used in this time. Left out: {left_out}."""

PEER = ["-m", "bench.parts.channel.peer"]
GUEST = ROOT / "tests" / "rdma" / "guest"
PORT = 7001
SECONDS_MAX = {"host": 300, "guest": 400, "pair": 240}


@dataclass(frozen=True, slots=True)
class Place:
    """Where both ends run."""

    name: str
    console: Console

    def results(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Perform the steps at this place, and yield each result when it arrives. Raises RunFailed."""
        with self._started(steps) as process:
            assert process.stdout is not None
            output: deque[str] = deque(maxlen=30)
            for line in process.stdout:
                text = line.removeprefix("b: ").strip()
                if text.startswith("{"):
                    yield json.loads(text)
                else:
                    output.append(line.rstrip())
            if process.wait() != 0:
                raise RunFailed(f"{self.name}: ended with {process.returncode}\n" + "\n".join(output))

    @contextmanager
    def _started(self, steps: Sequence[Step]) -> Iterator[subprocess.Popen[str]]:
        text = json.dumps(steps)
        if self.name == "host":
            with self._process([sys.executable, *PEER, "receive", "127.0.0.1", str(port := free_port())]):
                with self._process([sys.executable, *PEER, "send", "127.0.0.1", str(port), text]) as sender:
                    yield sender
            return
        peer, seconds = " ".join(["python3", *PEER]), str(SECONDS_MAX[self.name])
        receive, send = f"{peer} receive $FERRY_GUEST_ADDRESS {PORT}", f"{PORT} {shlex.quote(text)}"
        if self.name == "pair":
            commands = [receive, f"{peer} send $FERRY_GUEST_PEER {send}"]
        else:
            commands = [f"{receive} & {peer} send $FERRY_GUEST_ADDRESS {send}; status=$?; wait; exit $status"]
        kind, cpus = ("pair", "1") if self.name == "pair" else ("run", "2")
        with self._process([str(GUEST), kind, seconds, *commands], FERRY_RDMA_CPUS=cpus) as guest:
            yield guest

    @contextmanager
    def _process(self, command: Sequence[str], **more: str) -> Iterator[subprocess.Popen[str]]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'runtime'}{os.pathsep}{ROOT}", **more}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


UNITS = {"throughput": "bytes/s", "latency": "us", "latency p99": "us", "messages": "messages", "stalls": "sends"}


def keep(results: Results, place: str, found: Step) -> None:
    """Add the numbers of one result."""
    numbers: dict[str, float] = found.pop("numbers")
    system, case = found.pop("system"), found.pop("case")
    for metric, value in numbers.items():
        unit = UNITS.get(metric, "processors")
        results.add(system, case, metric, value * 1e6 if unit == "us" else value, unit, place=place, **found)


def describe(found: Step) -> str:
    """One result, for people."""
    numbers: dict[str, Any] = found["numbers"]
    name = " ".join([found["system"], *([found["carrier"]] if "carrier" in found else [])])
    words = [f"{found['slots']} x {found['slot_bytes'] // 1024} KiB"] if "slots" in found else []
    words += [f"messages of {found['bytes']:,} bytes"] if "bytes" in found else []
    words += ["without checksum"] if not found.get("checksum", True) else []
    words += [found["notify"]] if found.get("notify", "auto") != "auto" else []
    if "throughput" in numbers:
        value = f"{numbers['throughput'] / 1e6:9,.1f} MB/s"
    else:
        value = f"{numbers['latency'] * 1e6:9,.1f} us"
    return f"{name:14}{value:16}{', '.join(words)}"


def measure(arguments: argparse.Namespace, console: Console) -> Results:
    """All places, one after the other. Raises RunFailed."""
    a, sizes = arguments, Sizes.quick() if arguments.quick else Sizes(repeats=arguments.repeats)
    method = METHOD.format(speed=SPEED, seconds=sizes.seconds, rounds=sizes.rounds, left_out=LEFT_OUT)
    results = Results("channel", method)
    if "host" in a.places and shutil.which("iperf3") is None:
        raise RunFailed("iperf3 is missing on this machine: apt-get install iperf3")
    if {"guest", "pair"} & {*a.places}:
        with console.status("building the virtual machine, if it is missing"):
            done = subprocess.run([GUEST, "setup"], capture_output=True, text=True)
        if done.returncode != 0:
            raise RunFailed(f"the virtual machine cannot be built:\n{done.stderr[-2000:]}")
    for place in a.places:
        console.print(f"{place}: {PLACES[place]}", style="bold")
        for found in Place(place, console).results(plan(place, sizes)):
            console.print(f"  {describe(found)}", markup=False)
            keep(results, place, found)
        results.write(a.json)
    return results


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "channel.json", help="records; the picture is put beside it")
    p.add_argument("--places", nargs="+", default=[*PLACES], choices=[*PLACES], help="where both ends run")
    p.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="turns of comparisons with other programs, twice as many on the host; slots are measured once",
    )
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.places = [place for place in a.places if place != "pair"]
    # SIGTERM is handled like an error, so that no process and no virtual machine is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)
    console.print(SPEED, style="yellow")
    try:
        results = measure(a, console)
    except KeyboardInterrupt:
        return 130
    except RunFailed as failed:
        console.print(f"failed: {failed}", style="red", markup=False)
        return 1
    report = Report(results, a.places, console)
    report.ratios()
    results.write(a.json)
    report.tables()
    report.picture(a.json.with_suffix(".png"), f"Channels by slots\n{SPEED}")
    console.print(f"\n{SPEED}", style="yellow")
    console.print(f"records: {a.json}\npicture: {a.json.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
