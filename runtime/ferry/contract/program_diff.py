"""Decides whether each operator keeps its state under another program. The name identifies an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.differences import changes_of
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import FERRYS

KEPT, ADDED, RETURNS, RETIRED, REMOVED = "kept", "added", "returns", "retired", "removed"


@dataclass(frozen=True, slots=True)
class OperatorFate:
    """Whether an operator is kept, added or removed by a deploy."""

    name: str
    fate: str
    words: str


@dataclass(frozen=True, slots=True)
class ProgramDiff:
    """The way from the program in force to another one."""

    operators: tuple[OperatorDescriptor, ...]
    """The catalogue, with the operators that are new."""
    ids: tuple[int, ...]
    """Of the other program, by position."""
    fates: tuple[OperatorFate, ...]


def program_diff(
    catalogue: Sequence[OperatorDescriptor], in_force: Sequence[int], wanted: Sequence[OperatorDescriptor]
) -> ProgramDiff:
    """Compare the operators of a program with the catalogue of a job. Raises SpecRefused when a state cannot be kept.

    `in_force`: ids of the present program. An id belongs to a name for ever, so an operator that was removed earlier
    returns to its state, and another operator of its name is refused.
    """
    operators, ids, fates, refused = [*catalogue], list[int](), list[OperatorFate](), list[str]()
    known = {descriptor.name: number for number, descriptor in enumerate(catalogue)}
    for descriptor in wanted:
        number = known.get(descriptor.name)
        if number is None:
            number = len(operators)
            operators.append(replace(descriptor, index=number))
            fates.append(OperatorFate(descriptor.name, ADDED, "begins empty; windows that began before are partial"))
        elif changes := changes_of(_with_code_of(descriptor, catalogue[number]), descriptor):
            refused += [f"operator {descriptor.name!r}: {words}" for words in changes]
        elif number in in_force:
            fates.append(OperatorFate(descriptor.name, KEPT, "keeps its state"))
        else:
            fates.append(
                OperatorFate(descriptor.name, RETURNS, "goes on with its state as of the epoch in which it was removed")
            )
        if number is not None:
            ids.append(number)
    if refused:
        raise SpecRefused(
            f"{'; '.join(refused)}. Its state cannot be taken over: put the operator back as it was, or give it another "
            "name, so that it begins empty"
        )
    for number in in_force:
        if number not in ids:
            fires = catalogue[number].firing_window is not None
            words = "its open windows fire at their ends" if fires else "its state is kept for its return"
            fate = RETIRED if fires else REMOVED
            fates.append(OperatorFate(catalogue[number].name, fate, f"reads nothing more; {words}"))
    return ProgramDiff(tuple(operators), tuple(ids), tuple(fates))


def _with_code_of(now: OperatorDescriptor, before: OperatorDescriptor) -> OperatorDescriptor:
    """The operator as it was, but for the user's code: a process keeps its state if its tables are the same."""
    old, new = before.process, now.process
    if old is None or new is None or new.made_of.startswith(FERRYS) or old.made_of.startswith(FERRYS):
        return before
    return replace(before, process=replace(new, tables=old.tables))
