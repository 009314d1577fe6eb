"""What all processes of a run use over time, by what they are: processors, memory, disks and network.

They are those that a process has started, and those that have its mark in their environment: also who has lost its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path

from bench.shared import proc
from bench.shared.results import Panel, draw

METHOD = """\
/proc each {every:g} s, of all processes of the run, by what they are. cpu (seconds), read and written (bytes of disks, \
/proc/PID/io) are sums since the begin, also of those that have ended, but for what a process did after the last look at \
it; rss and anonymous (RssAnon) are bytes at that moment, and what several processes share is in each of them. network: \
bytes since the begin. A namespace of its own is told by what is in it, received and sent, without its loopback; all that \
is in the namespace of the host is told as what came out of its loopback, which is of everybody on this machine."""

LOOPBACK = "loopback of the host"


@dataclass(slots=True)
class Use:
    """Of one group, at one look."""

    processes: int = 0
    rss: int = 0
    anonymous: int = 0
    cpu: float = 0.0
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """All groups at one moment."""

    t: float
    uses: dict[str, Use]
    network: dict[str, int]


@dataclass(slots=True)
class Resources:
    """Looks at the processes of a run, on a thread; use as a context."""

    root: int
    mark: str
    """value of `proc.MARK` in their environment"""
    every: float = 1.0
    where: Path = proc.PROC
    looks: list[Look] = field(default_factory=list)
    _mine: dict[proc.Key, bool] = field(default_factory=dict)
    """whether it is of the run; once told it stays so"""
    _counted: dict[proc.Key, tuple[str, float, int, int]] = field(default_factory=dict)
    """group, and what it had used at the last look"""
    _sums: dict[str, Use] = field(default_factory=dict)
    _home: str | None = None
    """the network namespace of the root"""
    _spaces: dict[str, int] = field(default_factory=dict)
    """bytes of each namespace at the last look"""
    _network: dict[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Resources:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.look()
            if self._stop.wait(self.every):
                return

    def look(self) -> None:
        """Add one."""
        uses: dict[str, Use] = {}
        inside: dict[str, dict[str, int]] = {}
        witness: dict[str, int] = {}
        for one in self.members():
            command = proc.command_of(one.pid, self.where)
            group = self._count(one, command)
            if not command:  # It has ended, and its parent was not told yet.
                continue
            use = uses.setdefault(group, Use())
            use.processes += 1
            use.rss += one.resident_bytes
            use.anonymous += proc.anonymous_bytes(one.pid, self.where)
            if (space := proc.network_of(one.pid, self.where)) is not None:
                witness[space] = one.pid
                sizes = inside.setdefault(space, {})
                sizes[group] = sizes.get(group, 0) + one.resident_bytes
        for group, total in self._sums.items():
            use = uses.setdefault(group, Use())
            use.cpu, use.read, use.written = round(total.cpu, 3), total.read, total.written
        for space, pid in witness.items():
            self._count_network(space, pid, max(inside[space], key=inside[space].__getitem__))
        self.looks.append(Look(time.time(), uses, dict(self._network)))

    def members(self) -> list[proc.Process]:
        """Those of the run that are there now."""
        there = proc.processes(self.where)
        for one in there.values():
            self._belongs(one, there)
        return [one for one in there.values() if self._mine[one.key]]

    def _belongs(self, one: proc.Process, there: dict[int, proc.Process]) -> bool:
        if one.key not in self._mine:
            parent = there.get(one.parent)
            known = one.pid == self.root or proc.mark_of(one.pid, self.where) == self.mark
            self._mine[one.key] = known or (parent is not None and self._belongs(parent, there))
        return self._mine[one.key]

    def _count(self, one: proc.Process, command: str) -> str:
        """What it has used since the last look is of the group that it is in now."""
        known, *had = self._counted.get(one.key, (proc.OTHER, 0.0, 0, 0))
        group = proc.group_of(command) if command else known
        # Of a process that has ended /proc says less.
        now = [max(pair) for pair in zip((one.cpu_seconds, *proc.disk_bytes(one.pid, self.where)), had, strict=True)]
        total = self._sums.setdefault(group, Use())
        total.cpu += now[0] - had[0]
        total.read += int(now[1] - had[1])
        total.written += int(now[2] - had[2])
        self._counted[one.key] = group, now[0], int(now[1]), int(now[2])
        return group

    def _count_network(self, space: str, pid: int, group: str) -> None:
        devices = proc.network_bytes(pid, self.where)
        if not devices:  # It has ended.
            return
        self._home = self._home or proc.network_of(self.root, self.where)
        own = space == self._home
        now = devices.get("lo", (0, 0))[0] if own else sum(sum(both) for name, both in devices.items() if name != "lo")
        # The host's has counted before; one of its own begins with the run.
        had = self._spaces.get(space, now if own else 0)
        name = LOOPBACK if own else group
        # The name of a namespace that is gone is given to the next one.
        self._network[name] = self._network.get(name, 0) + (now - had if now >= had else now)
        self._spaces[space] = now


def run(command: Sequence[str], directory: Path) -> tuple[int, Resources]:
    """Run a command to its end: its exit code, and what all its processes have used."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(command, cwd=directory, env={**os.environ, proc.MARK: mark})
    with Resources(process.pid, mark) as seen:
        try:
            process.wait()
        except KeyboardInterrupt:  # It was told, too, and removes what it has made.
            process.wait()
            raise
    return process.returncode, seen


def columns(looks: Sequence[Look]) -> dict[str, object]:
    """Of each group one list for each number, as long as the list of times; None: it was not there."""
    groups = list(dict.fromkeys(name for look in looks for name in look.uses))
    spaces = list(dict.fromkeys(name for look in looks for name in look.network))
    return {
        "t": [round(look.t, 3) for look in looks],
        "groups": {
            group: {
                part.name: [asdict(look.uses[group])[part.name] if group in look.uses else None for look in looks]
                for part in fields(Use)
            }
            for group in groups
        },
        "network": {space: [look.network.get(space) for look in looks] for space in spaces},
    }


def write(file: Path, what: str, found: Resources) -> list[Path]:
    """What was seen, as JSON and as a picture; where both are."""
    about = {"what": what, "method": METHOD.format(every=found.every)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"about": about, **columns(found.looks)}) + "\n")
    picture = file.with_suffix(".png")
    draw(picture, f"{what}: what its processes use", panels(found.looks))
    return [file, picture]


def panels(looks: Sequence[Look]) -> list[Panel]:
    """Processors, memory, disks and network over time; of what only grows the change a second."""
    groups = list(dict.fromkeys(name for look in looks for name in look.uses))
    spaces = list(dict.fromkeys(name for look in looks for name in look.network))
    t = [look.t - looks[0].t for look in looks]

    def of(value: Callable[[Use], float]) -> dict[str, list[float | None]]:
        return {group: [value(look.uses[group]) if group in look.uses else None for look in looks] for group in groups}

    network: dict[str, list[float | None]] = {space: [look.network.get(space) for look in looks] for space in spaces}
    return [
        Panel("processors", "processors", t, rates(t, of(lambda use: use.cpu)), "times"),
        Panel("memory (RSS)", "bytes", t, of(lambda use: use.rss), "times"),
        Panel("disks, read and written", "bytes/s", t, rates(t, of(lambda use: use.read + use.written)), "times"),
        Panel("network", "bytes/s", t, rates(t, network), "times"),
    ]


def rates(t: Sequence[float], series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Change a second up to each moment."""
    made: dict[str, list[float | None]] = {}
    for name, values in series.items():
        changes: list[float | None] = [None]
        for (t0, v0), (t1, v1) in pairwise(zip(t, values, strict=True)):
            changes.append(None if v0 is None or v1 is None else (v1 - v0) / max(t1 - t0, 1e-9))
        made[name] = changes
    return made
