"""Actions on a running job as text (`workers=4`, `kill-worker=1`), and the epoch and stage at which they are due (`--at`).

Pure: parses and schedules, executes nothing. `ferry scale`, `move`, `drain` and `kill` send the same actions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ferry.contract.errors import SpecRefused
from ferry.contract.names import InstanceId
from ferry.contract.settings import STAGES
from ferry_operator.job.size import INSTANCES_MAX, WORKERS_MAX, Size

FORMS = "workers=N, instances=N, kill-worker=K, kill-instance=K.I, kill-driver, move=VNODE:WORKER.INSTANCE[@window], drain=K"

AT_WINDOW = "@window"
"""Suffix of the place of a move: the move waits for the boundary of a window."""

_NUMBER = re.compile(r"^[0-9]{1,6}$")
_INSTANCE = re.compile(r"^[0-9]{1,6}\.[0-9]{1,6}$")
_WHEN = re.compile(r"^epoch=([0-9]{1,12})(?::([a-z]+))?$")
_ACTION = re.compile(r"^(workers|instances|kill-worker|kill-instance|kill-driver|move|drain)(=.*)?$")


CommandKind = Literal["workers", "instances", "kill-worker", "kill-instance", "kill-driver", "move", "drain"]


@dataclass(frozen=True, slots=True)
class Command:
    """One action: its kind (the word before '=') and its arguments."""

    kind: CommandKind
    number: int = 0
    """number of workers or instances; the worker of kill-worker and drain; the virtual node of move"""
    instance: InstanceId | None = None
    """the instance of kill-instance and move"""
    at_window: bool = False
    """move: at the boundary of a window, without state"""

    def __str__(self) -> str:
        """The text that `parse_command` reads."""
        match self.kind:
            case "kill-driver":
                return self.kind
            case "kill-instance":
                return f"{self.kind}={self.instance}"
            case "move":
                return f"{self.kind}={self.number}:{self.instance}{AT_WINDOW if self.at_window else ''}"
            case "workers" | "instances" | "kill-worker" | "drain":
                return f"{self.kind}={self.number}"
            case _:
                assert_never(self.kind)


@dataclass(frozen=True, slots=True)
class Timed:
    """A command with the epoch and stage at which it is due."""

    epoch: int
    stage: str
    command: Command

    def __str__(self) -> str:
        """The text that `parse_at` reads, for messages."""
        return f"epoch={self.epoch}:{self.stage} {self.command}"


def parse_command(text: str) -> Command:
    """The action of a text. Raises SpecRefused, which lists the forms."""
    kind, equals, value = text.strip().partition("=")
    match kind:
        case "kill-driver" if not equals:
            return Command(kind)
        case "workers" | "instances" | "kill-worker" | "drain" if _NUMBER.match(value):
            return Command(kind, int(value))
        case "kill-instance" if _INSTANCE.match(value):
            return Command(kind, instance=InstanceId(value))
        case "move":
            vnode, _, place = value.partition(":")
            instance = place.removesuffix(AT_WINDOW)
            if _NUMBER.match(vnode) and _INSTANCE.match(instance):
                return Command(kind, int(vnode), InstanceId(instance), instance != place)
    raise SpecRefused(f"{text.strip()!r} is no action; actions are {FORMS}")


def check_command(command: Command, size: Size, virtual_nodes: int, gaps: Collection[int] = ()) -> None:
    """Raise SpecRefused if a command names a worker, instance or virtual node that a job of this size does not have."""
    kind, number = command.kind, command.number
    if kind == "workers" and not 1 <= number <= WORKERS_MAX:
        raise SpecRefused(f"{command}: a job has 1 to {WORKERS_MAX} workers")
    if kind == "instances" and not 1 <= number <= INSTANCES_MAX:
        raise SpecRefused(f"{command}: a worker has 1 to {INSTANCES_MAX} instances")
    if kind in ("kill-worker", "drain") and not size.has(number, 0, gaps):
        raise SpecRefused(f"{command}: the workers are {size.numbers(gaps)}")
    if command.instance is not None:
        worker, index = map(int, command.instance.split("."))
        if not size.has(worker, index, gaps):
            which = f", without workers {', '.join(map(str, gaps))}" if gaps else ""
            last = f"{size.members(gaps)[-1]}.{size.instances - 1}"
            raise SpecRefused(f"{command}: the instances are 0.0 to {last}{which}")
    if kind == "move" and number >= virtual_nodes:
        raise SpecRefused(f"{command}: the virtual nodes are 0 to {virtual_nodes - 1}")


def parse_at(text: str) -> Timed:
    """Read 'epoch=E[:STAGE] ACTION'; without a stage the action is due at the begin of the epoch. Raises SpecRefused."""
    when, _, action = text.strip().partition(" ")
    match = _WHEN.match(when)
    if match is None or not action.strip():
        raise SpecRefused(f"--at {text!r}: must be 'epoch=E[:STAGE] ACTION', such as 'epoch=12 workers=4'")
    stage = match[2] or "begin"
    if stage not in STAGES:
        raise SpecRefused(f"--at {text!r}: no stage is called {stage!r}; stages are {', '.join(STAGES)}")
    try:
        return Timed(int(match[1]), stage, parse_command(action))
    except SpecRefused as error:
        raise SpecRefused(f"--at {text!r}: {error}") from None


def parse_all(texts: Iterable[str], size: Size, virtual_nodes: int) -> tuple[Timed, ...]:
    """All commands of `--at`, checked against the greatest size that the job has or gets."""
    timed = tuple(parse_at(text) for text in texts)
    workers = [t.command.number for t in timed if t.command.kind == "workers"]
    instances = [t.command.number for t in timed if t.command.kind == "instances"]
    greatest = Size(max(size.workers, *workers, 0), max(size.instances, *instances, 0))
    for entry in timed:
        try:
            check_command(entry.command, greatest, virtual_nodes)
        except SpecRefused as error:
            raise SpecRefused(f"--at '{entry}': {error}") from None
    return timed


def join_at(argv: Sequence[str]) -> list[str]:
    """Command line arguments, with the two words of `--at epoch=E ACTION` joined into one value of `--at`."""
    out: list[str] = []
    for word in argv:
        follows = len(out) >= 2 and out[-2] == "--at" and _WHEN.match(out[-1])
        glued = bool(out) and out[-1].startswith("--at=") and _WHEN.match(out[-1].removeprefix("--at="))
        if (follows or glued) and _ACTION.match(word):
            out[-1] = f"{out[-1]} {word}"
        else:
            out.append(word)
    return out


class Schedule:
    """The timed commands of a run; each is due once, even if its epoch is run again."""

    def __init__(self, timed: Sequence[Timed]) -> None:
        self._waiting = list(timed)

    def stops(self) -> tuple[tuple[int, str], ...]:
        """The (epoch, stage) at which the driver has to ask for commands, in order, without duplicates."""
        order = {stage: at for at, stage in enumerate(STAGES)}
        return tuple(sorted({(t.epoch, t.stage) for t in self._waiting}, key=lambda s: (s[0], order[s[1]])))

    def due(self, epoch: int, stage: str) -> list[Command]:
        """Remove and return the commands that are due; kill-driver comes last, because a killed driver cannot ask again."""
        now = [t for t in self._waiting if (t.epoch, t.stage) == (epoch, stage)]
        self._waiting = [t for t in self._waiting if t not in now]
        return sorted((t.command for t in now), key=lambda c: c.kind == "kill-driver")

    def left(self) -> list[Timed]:
        """Commands that are not due yet."""
        return list(self._waiting)
