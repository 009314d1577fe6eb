"""Versions of a job's program, as rows of the routing table: the operators of an epoch, in order.

An operator has an id, which belongs to its name for ever: ids are never given to another name. A step names the *position*
of its operator in the program of its epoch; state, watermarks and results are kept by id. So an operator may be introduced
before another one, removed, and introduced again, without a change of the state of the other operators (decision 0039).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from ferry.contract.names import Step

WITHDRAWN = "it was withdrawn"
ROLLED_BACK = "it was rolled back before its first epoch was committed"
"""Reasons why a program is not in force that a user has given, not the program."""


class ProgramVersion(NamedTuple):
    """A program, in force from epoch `since` until the version after it is in force."""

    number: int
    """From 1; each deploy has a higher one."""
    since: int
    operators: tuple[int, ...]
    """Ids of the stateful operators, by position."""
    altered: tuple[tuple[int, int], ...] = ()
    """Pairs of ids: the state of the first operator was derived from the state of the second one."""
    silent: tuple[int, ...] = ()
    """Ids of operators whose rows no sink gets: of a program that only runs beside the one whose rows are written."""

    @property
    def beside(self) -> bool:
        """Whether two programs run, or an operator and the one from which it was derived, from its first epoch on."""
        return bool(self.silent) or any(before in self.operators for _, before in self.altered)

    @property
    def new_half(self) -> tuple[int, ...]:
        """The operators of the new one of two programs that run side by side; they come first."""
        count = len(self.silent)
        is_shadow = self.operators[:count] == self.silent
        return self.operators[: count if is_shadow else len(self.operators) - count] if count else ()


Programs = tuple[ProgramVersion, ...]
"""Ordered by `since`: the program of the last committed epoch, and the next one if it has another program."""


def first_program(operators: int) -> Programs:
    """The program that a job with this number of operators begins with."""
    return (ProgramVersion(1, 0, tuple(range(operators))),)


ONE_OPERATOR = first_program(1)


def program_at(programs: Programs, epoch: int) -> ProgramVersion:
    """The program of an epoch; the first one for epochs before it."""
    at = programs[0]
    for program in programs:
        if program.since > epoch:
            break
        at = program
    return at


def operator_id(programs: Programs, step: Step) -> int:
    """The id of the operator of a step."""
    return program_at(programs, step.epoch).operators[step.operator]


def predecessor(programs: Programs, operator: int) -> int | None:
    """The id from which the state of an operator was derived."""
    return next((before for program in programs for after, before in program.altered if after == operator), None)


def to_wire(programs: Programs) -> list[Any]:
    """Plain lists."""
    return [
        [p.number, p.since, list(p.operators), *([p.altered, p.silent] if p.altered or p.silent else [])]
        for p in programs
    ]


def from_wire(doc: Any) -> Programs:
    """Inverse of to_wire. Raises ValueError for programs that no job has."""
    programs = tuple(
        ProgramVersion(
            int(number),
            int(since),
            tuple(map(int, ids)),
            tuple((int(a), int(b)) for pairs in more[:1] for a, b in pairs),
            tuple(int(silent) for ids in more[1:] for silent in ids),
        )
        for number, since, ids, *more in doc
    )
    for program in programs:
        if not program.operators or len({*program.operators}) != len(program.operators) or min(program.operators) < 0:
            raise ValueError(f"program {program.number} has the operators {program.operators}")
    if any(a.since >= b.since or a.number >= b.number for a, b in pairwise(programs)):
        raise ValueError(f"programs {[(p.number, p.since) for p in programs]} are not in order")
    return programs
