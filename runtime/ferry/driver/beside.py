"""A program that runs together with the program before it, each with operators of its own, on the same records.

    ferry deploy --shadow K: program 1 is written | 1 and 2, compared for K epochs | 2 alone if no row differs, else 1 alone
    ferry deploy --keep T:   program 1 is written | 2 and 1, for T seconds, 2 is written | 2 alone; a rollback: 1 alone

All operators of the new program get ids of their own; their state is derived from the state of the operators of the same
names, so they begin with all of it. They are first in the order of operators, because they begin with the watermarks that
the other ones had in the epoch before. To go on with one half is a deploy of that half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ferry.api.pipeline import Input, LateOutput, Operator, Output
from ferry.contract.catalogue import ProgramRecord, Retired
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.program_diff import RETIRED, ProgramDiff
from ferry.contract.settings import RunSettings
from ferry.contract.user_code import shown
from ferry.driver.comparison import Compared, Comparison
from ferry.driver.program_parts import Signatures
from ferry.driver.retiring import BuiltProgram, to_retire, with_retired
from ferry.spark.compile import CompiledPipeline


def both(
    record: ProgramRecord, now: ProgramRecord, before: Sequence[Operator], diff: ProgramDiff, known: int
) -> tuple[ProgramRecord, tuple[OperatorDescriptor, ...]]:
    """The program with the operators of both, and all operators of the job. Raises SpecRefused.

    `record` has the operators of the new program; `now`: the program in force, with the operators `before`; `known`: how
    many operators the job has had.
    """
    assert record.beside is not None
    if now.retires or now.beside is not None:
        raise SpecRefused(
            f"program {now.number} still runs operators of the program before it (`ferry versions`): deploy it later"
        )
    lost = [repr(fate.name) for fate in diff.fates if fate.fate == RETIRED]
    if lost and record.beside.keep:
        raise SpecRefused(
            f"it removes {', '.join(lost)}, whose open windows would not be written while the operators are kept. Remove "
            "operators with a deploy of its own, without --keep"
        )
    operators, ids, altered = [*diff.operators], [*diff.ids], [*diff.altered]
    for position, number in enumerate(diff.ids):
        if number < known:
            ids[position] = len(operators)
            altered.append((len(operators), number))
            operators.append(replace(record.descriptors[position], index=len(operators)))
    old = tuple(replace(one.descriptor, index=len(ids) + position) for position, one in enumerate(before))
    program = replace(
        record,
        operators=(*ids, *now.operators),
        descriptors=(*record.descriptors, *old),
        altered=tuple(altered),
        silent=tuple(ids) if record.beside.shadow else now.operators,
    )
    return program, tuple(operators)


def with_both(
    record: ProgramRecord, now: BuiltProgram, text: Callable[[int], BuiltProgram]
) -> tuple[CompiledPipeline, Signatures]:
    """The plan of both programs. `text(number)`: another program of the job."""
    assert record.beside is not None
    old, count = _before(record, text), len(now.plan.operators)
    operators = (*now.plan.operators, *(_moved_operator(one, count) for one in old.plan.operators))
    sources = {**old.plan.sources, **now.plan.sources}
    created = {**old.plan.created, **now.plan.created}
    if not record.beside.shadow:
        kept = frozenset(range(count, len(operators)))
        plan = replace(
            now.plan, sources=sources, operators=operators, created=created, silent=kept, failed=old.plan.failed
        )
        return plan, replace(now.signatures, sources={**old.signatures.sources, **now.signatures.sources})
    written = [replace(one, input=_moved(one.input, count)) for one in old.plan.outputs]
    late = tuple(_moved_late(one, count) for one in old.plan.late)
    outputs = len(written)
    left = list(zip(old.signatures.sinks[:outputs], written, strict=True))
    pairs = list[tuple[Output, Output]]()
    alone = list[str]()
    for signature, output in zip(now.signatures.sinks, now.plan.outputs, strict=False):
        same = next((pair for pair in left if pair[0] == signature), None)
        if same is None:
            alone.append(shown(output.sink))
        else:
            left.remove(same)
            pairs.append((output, same[1]))
    if not pairs and not now.plan.failed:
        raise SpecRefused(f"no sink of it is a sink of program {old.record.number}: a shadow would compare nothing")
    alone += [shown(one.sink) for one in (*old.plan.late, *now.plan.late)]
    comparison = Comparison(record.beside.shadow, (*alone, *(shown(output.sink) for _, output in left)))
    compared = [
        replace(output, sink=Compared(comparison, number, shown(pair[1].sink), other))
        for number, pair in enumerate(pairs)
        for output, other in ((pair[0], True), (pair[1], False))
    ]
    plan = replace(
        old.plan,
        sources=sources,
        operators=operators,
        outputs=(*written, *compared),
        late=late,
        created=created,
        silent=frozenset(range(count)),
        failed=now.plan.failed,
    )
    sinks = (*old.signatures.sinks[:outputs], *("compared",) * len(compared), *old.signatures.sinks[outputs:])
    return plan, Signatures({**old.signatures.sources, **now.signatures.sources}, sinks)


def shadow_or_void(record: ProgramRecord, build: Callable[[], BuiltProgram]) -> BuiltProgram:
    """A program that is in force already. A shadow that cannot be built any more has operators whose steps are void."""
    try:
        return build()
    except SpecRefused as error:
        if not record.is_shadow:
            raise
        return _void(record, record.descriptors[: len(record.silent)], error)


def _before(record: ProgramRecord, text: Callable[[int], BuiltProgram]) -> BuiltProgram:
    assert record.beside is not None
    try:
        return text(record.beside.program)
    except SpecRefused as error:
        if record.is_shadow or record.since is None:
            raise
        return _void(record, record.descriptors[-len(record.silent) :], error)


def _void(record: ProgramRecord, descriptors: Sequence[OperatorDescriptor], error: SpecRefused) -> BuiltProgram:
    operators = tuple(Operator(replace(one, index=index), ()) for index, one in enumerate(descriptors))
    return BuiltProgram(record, CompiledPipeline({}, operators, (), failed=str(error)), Signatures({}, ()))


def _moved(side: Input, by: int) -> Input:
    return replace(side, origin=side.origin + by) if isinstance(side.origin, int) else side


def _moved_operator(operator: Operator, by: int) -> Operator:
    descriptor = replace(operator.descriptor, index=operator.descriptor.index + by)
    return replace(operator, descriptor=descriptor, inputs=tuple(_moved(side, by) for side in operator.inputs))


def _moved_late(late: LateOutput, by: int) -> LateOutput:
    return replace(late, operator=late.operator + by, inputs=tuple(_moved(side, by) for side in late.inputs))


def plan_of(
    settings: RunSettings, record: ProgramRecord, now: BuiltProgram, text: Callable[[int], BuiltProgram]
) -> tuple[CompiledPipeline, Signatures]:
    """The plan of a program, with the operators that run beside its own ones. `text(number)`: another program.

    Raises SpecRefused.
    """
    return with_both(record, now, text) if record.beside is not None else with_retired(settings, record, now, text)


def comparison_in(plan: CompiledPipeline) -> Comparison | None:
    """The comparison of a shadow's rows."""
    return next((output.sink.comparison for output in plan.outputs if isinstance(output.sink, Compared)), None)


def new_alone(record: ProgramRecord, number: int, operators: Sequence[Operator]) -> ProgramRecord:
    """The program that goes on with the new half of `record`; `operators`: of both."""
    assert record.beside is not None
    count = len(record.silent) if record.is_shadow else len(record.operators) - len(record.silent)
    mine, derived = record.operators[:count], tuple(old for _, old in record.altered)
    retires = to_retire(record, operators, (*mine, *derived))
    gone = [one.operator for one in retires]
    descriptors = (record.descriptors[record.operators.index(n)] for n in gone)
    return replace(
        record,
        number=number,
        operators=(*mine, *gone),
        descriptors=(*record.descriptors[:count], *(replace(d, index=count + i) for i, d in enumerate(descriptors))),
        retires=tuple(Retired(n, record.beside.program) for n in gone),
        drops=derived,
        settles=record.number,
        **ALONE,
        base=record.number,
        deployed_at=time.time(),
    )


def old_alone(record: ProgramRecord, number: int, before: ProgramRecord) -> ProgramRecord:
    """The program that goes on with the half of `before`. No operator of the other half has state then."""
    return replace(
        before,
        number=number,
        drops=tuple(dict.fromkeys((*record.begins, *(new for new, _ in record.altered)))),
        settles=before.settles or before.number,
        back_from=0,
        because="",
        **ALONE,
        base=record.number,
        deployed_at=time.time(),
    )


ALONE: dict[str, Any] = {
    "since": None,
    "at": 0,
    "at_time": None,
    "altered": (),
    "beside": None,
    "silent": (),
    "compared": {},
    "failed": "",
    "rewound": False,
}
"""Of a program that goes on with a part of the program before it: nothing has to be derived, awaited or compared."""
