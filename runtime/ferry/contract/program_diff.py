"""Decides whether each operator keeps its state under another program. The name identifies an operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ferry.contract.catalogue import Catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.differences import changes_of, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import FERRYS

KEPT, ALTERED, ADDED, RETURNS, RETIRED, REMOVED = "kept", "altered", "added", "returns", "retired", "removed"


@dataclass(frozen=True, slots=True)
class OperatorFate:
    """Whether an operator is kept, altered, added or removed by a deploy."""

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
    altered: tuple[tuple[int, int], ...] = ()
    """Operators whose state is derived from another one: (id, id before)."""


def program_diff(catalogue: Catalogue, in_force: Sequence[int], wanted: Sequence[OperatorDescriptor]) -> ProgramDiff:
    """Compare the operators of a program with the catalogue of a job. Raises SpecRefused when a state cannot be kept.

    `in_force`: ids of the present program. An id belongs to a name for ever, so an operator that was removed earlier
    returns to its state, and another operator of its name is refused. An altered operator gets another id.
    """
    operators, ids, fates, refused = [*catalogue.operators], list[int](), list[OperatorFate](), list[str]()
    # After a restore an operator in force may have an earlier id than its last one, whose state is lost.
    known, altered = catalogue.ids | {operators[number].name: number for number in in_force}, list[tuple[int, int]]()
    for descriptor in wanted:
        number = known.get(descriptor.name)
        if number is None:
            number = len(operators)
            operators.append(replace(descriptor, index=number))
            fates.append(OperatorFate(descriptor.name, ADDED, "begins empty; windows that began before are partial"))
        elif changes := changes_of(_with_code_of(descriptor, operators[number]), descriptor):
            if words := _altered(operators[number], descriptor):
                altered.append((len(operators), number))
                number = len(operators)
                operators.append(replace(descriptor, index=number))
                fates.append(OperatorFate(descriptor.name, ALTERED, f"keeps its state; {words}"))
            else:
                refused += [f"operator {descriptor.name!r}: {words}{_hint(descriptor, words)}" for words in changes]
        elif number in in_force:
            fates.append(OperatorFate(descriptor.name, KEPT, "keeps its state"))
        else:
            fates.append(
                OperatorFate(descriptor.name, RETURNS, "goes on with its state as of the epoch in which it was removed")
            )
        ids.append(number)
    if refused:
        raise SpecRefused(
            f"{'; '.join(refused)}. Its state cannot be taken over: put the operator back as it was, or give it another "
            "name, so that it begins empty"
        )
    before = {number for _, number in altered}
    for number in in_force:
        if number not in ids and number not in before:
            fires = operators[number].firing_window is not None
            words = "its open windows fire at their ends" if fires else "its state is kept for its return"
            fate = RETIRED if fires else REMOVED
            fates.append(OperatorFate(operators[number].name, fate, f"reads nothing more; {words}"))
    return ProgramDiff(tuple(operators), tuple(ids), tuple(fates), tuple(altered))


def _hint(now: OperatorDescriptor, words: str) -> str:
    """What to do about another window, or about other tables of a user's class."""
    process = now.process
    if words.startswith("the window was"):
        return " (an operator of another name may follow at a time: since= and until= of .window)"
    if process is None or process.upgrades or not words.startswith("table "):
        return ""
    return "" if all(name.startswith(FERRYS) for name in process.classes) else " (its class has no upgrade())"


def _with_code_of(now: OperatorDescriptor, before: OperatorDescriptor) -> OperatorDescriptor:
    """The operator as it was, but for the user's code: a process keeps its state if its tables are the same."""
    old, new = before.process, now.process
    if old is None or new is None or new.made_of.startswith(FERRYS) or old.made_of.startswith(FERRYS):
        return before
    return replace(before, process=replace(new, tables=old.tables))


def _altered(before: OperatorDescriptor, now: OperatorDescriptor) -> str:
    """What is altered: columns, tables, and how long keys are kept. Empty: the state cannot be derived."""
    if before.process is not None and now.process is not None and now.process.upgrades:
        tables = _with_code_of(now, replace(before, process=replace(before.process, tables=now.process.tables)))
        return "upgrade() of its class derives the rows of other tables" if not changes_of(tables, now) else ""
    ttl = before.ttl_ms if now.ttl_ms is not None else None
    same = replace(
        now, index=before.index, aggregates=before.aggregates, left=before.left, right=before.right, ttl_ms=ttl
    )
    if same != before or now.kind == "process":
        return ""
    words = _lives(before.ttl_ms, now.ttl_ms)
    if now.kind == "aggregate":
        old, new = ({one.name: replace(one, name="") for one in each.aggregates} for each in (before, now))
        fresh = {name: one.function for name, one in new.items() if one not in old.values()}
        if any(name in old for name in fresh):
            return ""  # A column keeps its name and has another function or type.
        words += _gains(
            (f"{name} ({function})" for name, function in fresh.items()), "counts records from the switch on"
        )
        words += _loses(name for name, one in old.items() if one not in new.values())
        return "; ".join(words) or "its columns have other names or places"
    for old_side, new_side in zip(before.sides, now.sides, strict=True):
        was, is_now = ({name: rest for name, *rest in side.columns} for side in (old_side, new_side))
        if any(name in was and was[name] != rest for name, rest in is_now.items()):
            return ""
        words += _gains((name for name in is_now if name not in was), "is null in the records before the switch")
        words += _loses(name for name in was if name not in is_now)
    return "; ".join(words) or "its columns have other places"


def _lives(before: int | None, now: int | None) -> list[str]:
    """How long keys are kept, if that is another time."""
    if before == now:
        return []
    there = "is kept until its next record" if before is None else "is forgotten at the earlier of both times"
    return [f"keeps keys for {now} ms, not {milliseconds(before)}; a key without a record since the switch {there}"]


def _gains(names: Iterable[str], words: str) -> list[str]:
    return [f"gains {name}, which {words}" for name in names]


def _loses(names: Iterable[str]) -> list[str]:
    return [f"loses {name}" for name in names]
