"""Replacements for the run's secret: keys derived from it, one for each purpose, and tickets for Flight.

A ticket is lines of JSON and a seal. The first seal is keyed with the key derived for tickets, each further one with
the previous seal: the holder of a sealed *right* can narrow it by a further line, and can neither widen nor forge one.
The driver seals the scope of one read, and gives the tasks of one ingest run the right to stage its fragments; a task
narrows that right to itself and to the instance that it talks to. So neither tasks nor the network ever see the secret.
A stolen ticket is of no use anywhere else, nor later: an instance serves reads of the committed step only, takes every
fragment once, and takes no fragment of a finished epoch.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ferry.contract.errors import Refusal
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import Attempt, CommitId, Fragment, Step

TICKET_SECONDS = 86_400
"""Longest life of a ticket, by the clocks of two hosts. Usually its epoch ends after a second; the bound must never be
shorter than an epoch: the first one of a job may take hours for the backlog of its sources."""

TICKET_BYTES_MAX = 1 << 20

_NUMBER_MAX = 1 << 62


def derived(secret: str, purpose: str) -> str:
    """The key for one purpose. It reveals neither the run's secret nor the key of another purpose."""
    return hmac.new(secret.encode(), f"ferry {purpose}".encode(), "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class Right:
    """Sealed lines. The holder can show the right, or narrow it."""

    seal: bytes = field(repr=False)
    lines: tuple[str, ...] = ()

    @staticmethod
    def root(secret: str) -> Right:
        """The right to everything; it must never leave a process that knows the secret."""
        return Right(bytes.fromhex(derived(secret, "tickets")))

    def narrowed(self, fields: Mapping[str, Any]) -> Right:
        """This right, restricted to `fields`."""
        line = json.dumps(fields, separators=(",", ":"))
        return Right(hmac.digest(self.seal, line.encode(), "sha256"), (*self.lines, line))

    def dump(self) -> bytes:
        """The form that is shown."""
        return "\n".join((*self.lines, self.seal.hex())).encode()

    @staticmethod
    def load(shown: bytes) -> Right:
        """Inverse of dump, for narrowing it further."""
        *lines, seal = shown.decode().split("\n")
        return Right(bytes.fromhex(seal), tuple(lines))

    def opened(self, ticket: bytes) -> list[dict[str, Any]]:
        """The lines of a ticket that was narrowed from this right. Raises Refusal."""
        if len(ticket) > TICKET_BYTES_MAX:
            raise Refusal(f"a ticket of {len(ticket)} bytes; the limit is {TICKET_BYTES_MAX}")
        *lines, shown = ticket.split(b"\n")
        seal = self.seal
        for line in lines:
            seal = hmac.digest(seal, line, "sha256")
        if not lines or not hmac.compare_digest(seal.hex().encode(), shown):
            raise Refusal("the ticket is not of this run, or was altered")
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class ReadTicket:
    """A read of fired rows from one instance."""

    generation: int
    epoch: int
    operator: int
    attempt: tuple[int, int]
    low: int
    high: int
    vnodes: tuple[int, ...]

    @property
    def commit_id(self) -> CommitId:
        """Commit id of the committed step."""
        return CommitId(Step(self.epoch, self.operator), Attempt(*self.attempt))


def read_right(root: Right, ask: ReadTicket, instance: str, life: str, now: float) -> Right:
    """The right to this read, of this life of this instance; it is shown without narrowing."""
    whom = {"instance": instance, "life": life, "until": int(now) + TICKET_SECONDS}
    return root.narrowed({"may": "read", **asdict(ask), **whom})


def stage_right(root: Right, step: Step, generation: int, run: int, now: float) -> Right:
    """The right to stage fragments of one ingest run; each task narrows it."""
    which = {"epoch": step.epoch, "operator": step.operator, "generation": generation, "run": run}
    return root.narrowed({"may": "stage", **which, "until": int(now) + TICKET_SECONDS})


def stage_ticket(right: Right, task: int, instance: str, life: str) -> bytes:
    """The ticket of one task for one life of one instance."""
    return right.narrowed({"task": task, "instance": instance, "life": life}).dump()


def loop_right(root: Right, life: str) -> Right:
    """The right to get shares from one life of a driver; it ends with that life."""
    return root.narrowed({"may": "loop", "life": life})


def looping(root: Right, ticket: bytes, life: str) -> tuple[int, int | None]:
    """The Spark job and the worker of a loop, from its ticket. Raises Refusal for a ticket of another driver."""
    lines = root.opened(ticket)
    if len(lines) != 2:
        raise Refusal("the ticket is of no loop")
    right, mine = lines
    if right.get("may") != "loop" or right.get("life") != life:
        raise Refusal(f"the ticket is to {right.get('may')!r} for life {right.get('life')!r} of the driver")
    return _number(mine, "job"), None if mine.get("worker") is None else _number(mine, "worker")


@dataclass(frozen=True, slots=True)
class Judge:
    """Checks tickets for one life of an instance. Raises Refusal, with the reason."""

    root: Right = field(repr=False)
    instance: str
    life: str

    def fragment(self, ticket: bytes, now: float) -> Fragment:
        """The fragment that a ticket allows to stage."""
        lines = self.root.opened(ticket)
        if len(lines) != 2:
            raise Refusal("the ticket is of no task")
        right, narrowed = lines
        self._check("stage", right, narrowed, now)
        epoch, operator, generation, run = (_number(right, k) for k in ("epoch", "operator", "generation", "run"))
        return Fragment(Step(epoch, operator), generation, run, _number(narrowed, "task"))

    def read(self, ticket: bytes, now: float) -> ReadTicket:
        """The read that a ticket allows."""
        lines = self.root.opened(ticket)
        if len(lines) != 1:
            raise Refusal("the ticket is of no reader")
        doc = lines[0]
        self._check("read", doc, doc, now)
        generation, epoch, operator = (_number(doc, k) for k in ("generation", "epoch", "operator"))
        low, high = (_number(doc, k, -_NUMBER_MAX) for k in ("low", "high"))
        attempt, vnodes = _numbers(doc, "attempt", _NUMBER_MAX), _numbers(doc, "vnodes", VIRTUAL_NODES_MAX - 1)
        if len(attempt) != 2:
            raise Refusal(f"the ticket's attempt is {attempt!r}")
        return ReadTicket(generation, epoch, operator, (attempt[0], attempt[1]), low, high, vnodes)

    def _check(self, what: str, right: dict[str, Any], narrowed: dict[str, Any], now: float) -> None:
        if right.get("may") != what:
            raise Refusal(f"the ticket is to {right.get('may')!r}, not to {what}")
        if (asked := (narrowed.get("instance"), narrowed.get("life"))) != (self.instance, self.life):
            raise Refusal(
                f"the ticket is for life {asked[1]} of {asked[0]}; this is life {self.life} of {self.instance}"
            )
        over = now - _number(right, "until")
        if over > 0:
            raise Refusal(
                f"the ticket ended {over:.0f} s ago: it was kept, or the clocks of two hosts differ by more than "
                f"{TICKET_SECONDS} s"
            )


def _number(doc: dict[str, Any], name: str, least: int = 0) -> int:
    return _checked(doc.get(name), name, least, _NUMBER_MAX)


def _numbers(doc: dict[str, Any], name: str, greatest: int) -> tuple[int, ...]:
    values = doc.get(name)
    if not isinstance(values, list):
        raise Refusal(f"the ticket's {name} is {values!r}, no list")
    return tuple(_checked(value, name, 0, greatest) for value in values)


def _checked(value: Any, name: str, least: int, greatest: int) -> int:
    """A number in its range: numbers become names of files and indices, so any other value is refused."""
    if type(value) is not int or not least <= value <= greatest:
        raise Refusal(f"the ticket's {name} is {str(value)[:80]!r}, no number from {least} to {greatest}")
    return value
