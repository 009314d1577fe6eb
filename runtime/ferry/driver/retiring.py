"""Operators that a deploy removes: they read nothing more, and stay in the plan until their open windows have fired.

    program 1: a, b        deploy without b        program 2: a, (b)        b's windows have fired        program 3: a

A retired operator reads its inputs only for their event times, so its watermark goes on. Its rows go to its sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from ferry.api.pipeline import Input, Operator, Output
from ferry.connectors.sink import Sink, distinct, identify, place
from ferry.contract.catalogue import Catalogue, ProgramRecord, Retired
from ferry.contract.descriptors import NEVER, OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.notes import EpochNotes
from ferry.contract.program_diff import ProgramDiff
from ferry.contract.settings import RunSettings
from ferry.contract.user_code import shown
from ferry.driver import session
from ferry.driver.program_parts import Signatures, signatures_of
from ferry.spark import compile
from ferry.spark.compile import CompiledPipeline
from ferry.system import program_texts


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program as its text declares it, without operators that it retires."""

    record: ProgramRecord
    plan: CompiledPipeline
    signatures: Signatures


class Texts:
    """The programs that one life of the driver has built."""

    def __init__(self, spark: SparkSession, settings: RunSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._built: dict[int, BuiltProgram] = {}

    def build(self, record: ProgramRecord) -> BuiltProgram:
        """Build a program anew. Raises SpecRefused."""
        settings = self._settings
        program_texts.require(record, settings.path, settings.secret)
        if record.text and record.folder is not None:
            session.ship(self._spark, record.folder)
        module = compile.load(*record.pipeline)
        plan = compile.build(self._spark, module, record.arguments, settings.output, settings.events)
        signatures = signatures_of(plan)
        identify(plan.sinks, settings.job, settings.run)
        return BuiltProgram(record, plan, signatures)

    def keep(self, text: BuiltProgram) -> None:
        """The parts of this program are in use."""
        self._built[text.record.number] = text

    def of(self, number: int, catalogue: Catalogue) -> BuiltProgram:
        """A program of the job, under the ids that the catalogue knows. Raises SpecRefused."""
        if (record := catalogue.program(number)) is None:
            raise SpecRefused(f"the journal has no text of program {number}")
        text = self._built.get(number)
        if text is None or text.record.pipeline != record.pipeline:  # A restore numbers the first program anew.
            text = self.build(record)
        self._built[number] = text = replace(text, record=record)
        return text


def to_retire(now: ProgramRecord, operators: Sequence[Operator], wanted: Sequence[int]) -> tuple[Retired, ...]:
    """The operators that a program with the ids `wanted` retires; `operators`: of the program in force.

    An operator without windows is retired only if a retired operator reads it.
    """
    retired: set[int] = set()
    for position in reversed(range(len(operators))):
        number = now.operators[position]
        readers = {
            now.operators[i] for i, reader in enumerate(operators) if position in (s.origin for s in reader.inputs)
        }
        fires = operators[position].descriptor.firing_window is not None
        if number not in wanted and (fires or readers & retired):
            retired.add(number)
    earlier = dict(now.retires)
    return tuple(Retired(number, earlier.get(number, now.number)) for number in now.operators if number in retired)


def retiring(
    record: ProgramRecord,
    descriptors: Sequence[OperatorDescriptor],
    diff: ProgramDiff,
    now: ProgramRecord | None,
    ids: Sequence[int],
    operators: Sequence[Operator],
) -> ProgramRecord:
    """A program with its operators and with the operators that it retires. `ids`, `operators`: of `now`, in force."""
    retires = to_retire(now, operators, (*diff.ids, *(old for _, old in diff.altered))) if now is not None else ()
    all_ids = (*diff.ids, *(one.operator for one in retires))
    known = dict(zip(ids, operators, strict=True))
    old = [replace(known[one.operator].descriptor, index=all_ids.index(one.operator)) for one in retires]
    return replace(record, operators=all_ids, descriptors=(*descriptors, *old), retires=retires, altered=diff.altered)


def with_retired(
    settings: RunSettings, record: ProgramRecord, now: BuiltProgram, text: Callable[[int], BuiltProgram]
) -> tuple[CompiledPipeline, Signatures]:
    """The plan of a program with the operators that it retires, at the end. `text(number)`: another program.

    Raises SpecRefused when a retired operator and the program would write to a sink in different ways.
    """
    if not record.retires:
        return now.plan, now.signatures
    at = {number: position for position, number in enumerate(record.operators)}
    operators, outputs, sources = [*now.plan.operators], [*now.plan.outputs], dict[str, Any]()
    signatures = [*now.signatures.sinks[: len(outputs)]]
    known = list(zip(now.signatures.sinks, now.plan.sinks, strict=True))
    schemas = {id(output.sink): output.input for output in outputs}
    for retired in record.retires:
        of = text(retired.program)
        ids = of.record.operators
        old = of.plan.operators[ids.index(retired.operator)]
        there = {d.name: position for position, d in enumerate(record.descriptors[: len(now.plan.operators)])}
        places = [at.get(number, there.get(d.name, -1)) for number, d in zip(ids, of.record.descriptors, strict=True)]
        inputs = tuple(_moved(side, ids, places, {one.operator for one in record.retires}) for side in old.inputs)
        sources |= {s.origin: of.plan.sources[s.origin] for s in inputs if isinstance(s.origin, str)}
        operators.append(Operator(replace(old.descriptor, index=at[retired.operator]), inputs, old.gives))
        for output, signature in zip(of.plan.outputs, of.signatures.sinks, strict=False):
            if isinstance(output.input.origin, int) and ids[output.input.origin] == retired.operator:
                sink = next((sink for same, sink in known if same == signature), output.sink)
                before = schemas.setdefault(id(sink), output.input)
                if isinstance(before.origin, str) or before.schema != output.input.schema:
                    raise SpecRefused(_conflict(old, sink))
                outputs.append(Output(replace(output.input, origin=at[retired.operator]), sink, output.where))
                signatures.append(signature)
                known.append((signature, sink))
    sources |= now.plan.sources
    plan = replace(now.plan, sources=sources, operators=tuple(operators), outputs=tuple(outputs))
    try:
        place(distinct(plan.sinks), settings.output)
        identify(distinct(plan.sinks), settings.job, settings.run)
    except SpecRefused as error:
        names = ", ".join(repr(one.descriptor.name) for one in operators[len(now.plan.operators) :])
        raise SpecRefused(
            f"{error}: operators that the program removes ({names}) still write rows. {AT_FIRST}"
        ) from error
    sinks = (*signatures, *now.signatures.sinks[len(now.plan.outputs) :])
    return plan, replace(now.signatures, sinks=sinks)


AT_FIRST = (
    "Remove the operators with a first deploy, and deploy the other changes when `ferry versions` has them no more"
)


def _conflict(operator: Operator, sink: Sink) -> str:
    return (
        f"operator {operator.descriptor.name!r} is removed, and its open windows will be written to {shown(sink)}, to which "
        f"the program writes other rows. {AT_FIRST}"
    )


def _moved(side: Input, ids: Sequence[int], places: Sequence[int], retired: set[int]) -> Input:
    """An input of a retired operator: rows of retired operators, and the event times of all else. `places`: in the plan."""
    if not isinstance(side.origin, int):
        return replace(side, span=NEVER)
    return replace(side, origin=places[side.origin], span=side.span if ids[side.origin] in retired else NEVER)


def ends(record: ProgramRecord, plan: CompiledPipeline, notes: EpochNotes) -> dict[int, int]:
    """By id of a retired operator: the watermark at which its last window has fired. `notes`: of the present epoch.

    Records that come later do not reach the operators, so a later look may return later ends, and never earlier ones.
    """
    ends: dict[int, int] = {}
    for retired in record.retires:
        operator = plan.operators[record.operators.index(retired.operator)]
        clocks = [clock for sides in notes.maxima.get(retired.operator, {}).values() for clock in sides.values()]
        newest = [clock.greatest for clock in clocks if clock.greatest is not None]
        newest += [
            ends[number]
            for side in operator.inputs
            if isinstance(side.origin, int) and (number := record.operators[side.origin]) in ends
        ]
        end, window = max(newest, default=WATERMARK_NONE), operator.descriptor.firing_window
        if window is not None and newest and end > WATERMARK_NONE:
            end = window.last_end(end // window.pane_ms * window.pane_ms)
        ends[retired.operator] = end
    return ends
