"""Machines of a job: guests with two network cards each, one for RDMA alone, in a network of this process's own.

The network is a namespace: two bridges, on one of which the host has an address. It is gone, with all that is in it, when its
last process ends. Needs root and /dev/net/tun; without them it says so, and fails. It asserts nothing itself.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

GUEST = Path(__file__).with_name("guest")
HOST = "10.8.0.1"
"""Where the guests find what runs on the host."""

SECONDS_MAX = 1250
"""A machine that nobody has switched off ends by itself."""

CLONE_NEWNET = 0x40000000
LINES = ("rdma", "host")
"""The bridges, and a machine's cards: the first carries RDMA and nothing else."""

COUNTERS = "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -H . * | grep -v lifespan"
CARD = "cd /sys/class/net/eth0/statistics && grep -H . tx_bytes rx_bytes"


class NoMachines(Exception):
    """Why no machine can be started here."""


class Network:
    """A context: this thread, and the processes that it starts, are in a network of their own."""

    def __enter__(self) -> Network:
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise NoMachines("machines of a job need /dev/net/tun, which is not here, or not for this user")
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.unshare(CLONE_NEWNET):
            os.close(self._before)
            raise NoMachines(
                f"machines of a job need a network of their own: {os.strerror(ctypes.get_errno())} (be root)"
            )
        try:
            ip("link set lo up")
            for line in LINES:
                ip(f"link add {line} type bridge")
                ip(f"link set {line} up")
            ip(f"addr add {HOST}/24 dev host")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._libc.setns(self._before, CLONE_NEWNET)
        os.close(self._before)


def ip(arguments: str) -> None:
    """One command of iproute2, for this network."""
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


@dataclass
class Machine:
    """A guest; `number` is the last part of its addresses, and belongs to one machine of a network."""

    number: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    asked: int = 0

    @property
    def address(self) -> str:
        """Of the card that is not for RDMA."""
        return f"10.8.0.{self.number}"

    def start(self, command: str) -> None:
        """Boot; the command runs in the guest, whose /x is the directory."""
        cards: list[str] = []
        for index, line in enumerate(LINES):
            tap, mtu = f"{line}{self.number}", 4500 if line == "rdma" else 1500
            ip(f"tuntap add {tap} mode tap")
            ip(f"link set {tap} mtu {mtu} master {line} up")
            cards += ["-netdev", f"tap,id=n{index},ifname={tap},script=no,downscript=no"]
            mac = f"52:54:00:00:{index:02x}:{self.number:02x}"
            cards += ["-device", f"virtio-net-pci,netdev=n{index},mac={mac},romfile="]
        words = f"ferry.role={self.number} ferry.address=10.9.0.{self.number}/24 ferry.host={self.address}/24"
        arguments = [str(GUEST), "host", str(self.directory), str(SECONDS_MAX), words, command, *cards]
        with open(self.directory / "said", "ab") as said:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def link(self, line: str, state: str) -> None:
        """Pull a card's cable, or plug it in: `down`, `up`."""
        ip(f"link set {line}{self.number} {state}")

    def ask(self, command: str, seconds: float = 20.0) -> str:
        """What a command prints in the guest. Raises AssertionError when it fails, or there is no answer."""
        self.asked += 1
        name = f"{self.asked:06d}"
        hidden, answer = self.directory / f".ask-{name}", self.directory / f"answer-{name}"
        hidden.write_text(command)
        hidden.rename(self.directory / f"ask-{name}")
        deadline = time.monotonic() + seconds
        while not answer.exists():
            if time.monotonic() > deadline or self.process is None or self.process.poll() is not None:
                raise AssertionError(f"machine {self.number} does not answer {command!r}\n{self.story()}")
            time.sleep(0.05)
        code, _, text = answer.read_text().partition("\n")
        if code != "0":
            raise AssertionError(f"machine {self.number}: {command!r} ended with {code}: {text}")
        return text

    def counters(self) -> dict[str, int]:
        """What the kernel counted: its RDMA device, the bytes of the card below it, packets that were lost on purpose."""
        text = self.ask(f"({COUNTERS}); ({CARD}); tc -s qdisc show dev eth0")
        found = {name: int(value) for name, value in re.findall(r"^(\w+):(\d+)$", text, re.MULTILINE)}
        lost = re.search(r"qdisc netem .*\n.*\(dropped (\d+)", text)
        return found | ({"netem_dropped": int(lost[1])} if lost else {})

    def power_off(self) -> None:
        """At once: it sends nobody anything any more."""
        pid = self.directory / "pid"
        if self.process is None or self.process.poll() is not None:
            return
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGKILL)
        else:
            self.process.terminate()
        self.process.wait()

    def story(self) -> str:
        """The end of what it printed."""
        files = [self.directory / name for name in ("said", "console", "output") if (self.directory / name).exists()]
        return "\n".join(f"--- machine {self.number}: {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)


def grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """Growth of each counter, without counters that did not change."""
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}
