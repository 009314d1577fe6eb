"""The progress of event time in an epoch: the notes of a step, the watermark of its operator, the next idle flow.

`ids` are the operators of the epoch by position. Pure, values in and out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ferry.api.pipeline import Operator
from ferry.contract import limits, watermarks
from ferry.contract.descriptors import NEVER
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.notes import EpochNotes, Receipt
from ferry.contract.programs import Programs, predecessor


def noted(
    begun: EpochNotes,
    operator: Operator,
    ids: Sequence[int],
    programs: Programs,
    receipts: Sequence[Receipt],
    letters: Iterable[str],
    now: int,
) -> EpochNotes:
    """The notes of a step with the receipts of its ingest. `begun`: the notes of the step before; `now`: as planned."""
    inputs, mine = operator.inputs, ids[operator.descriptor.index]
    idle = {side: source.idle_ms for side, source in enumerate(inputs) if source.idle_ms is not None}
    unlisted = [side for side, source in enumerate(inputs) if source.flow is not None]
    origins = [i.origin if isinstance(i.origin, str) else f"@{ids[i.origin]}" for i in inputs]
    read = [ids[i.origin] for i in inputs if not isinstance(i.origin, str)]
    renamed = {f"@{before}": f"@{one}" for one in read if (before := predecessor(programs, one)) is not None}
    return begun.add(mine, receipts, letters, now, idle, unlisted, origins, predecessor(programs, mine), renamed)


def watermark(
    notes: EpochNotes, operators: Sequence[Operator], ids: Sequence[int], fired: Sequence[int], now: int
) -> int:
    """The watermark of the last one of these operators; the coordinator keeps it monotonic. Raises SpecRefused.

    `fired`: watermarks of the operators before it.
    """
    last = operators[-1].descriptor
    for clocks in notes.maxima[ids[last.index]].values():
        watermarks.refuse_too_many(clocks.keys(), last.name)
    return watermarks.operator_watermark(_highs(notes, operators, ids, fired, now)[-1])


def _highs(
    notes: EpochNotes, operators: Sequence[Operator], ids: Sequence[int], fired: Sequence[int], now: int
) -> list[list[int | None]]:
    """The watermark of each input, by operator. None: idle, as a fired input of an idle operator."""
    of: list[list[int | None]] = []
    for number, operator in enumerate(operators):
        clocks_of = notes.maxima.get(ids[number], {})
        highs: list[int | None] = []
        for side, source in enumerate(operator.inputs):
            if source.initial:
                highs.append(None)
            elif isinstance(source.origin, int):
                before = of[source.origin]
                idle = bool(before) and set(before) == {None}
                highs.append(None if idle else max(fired[source.origin] - source.delay_ms, limits.WATERMARK_NONE))
            else:
                clocks = clocks_of.get(side, {})
                highs.append(watermarks.input_watermark(clocks, source.delay_ms, source.idle_ms, now))
        of.append(highs)
    return of


def crossed(
    new: Sequence[Operator],
    ids: Sequence[int],
    origins: Mapping[int, int],
    old: Mapping[int, Operator],
    notes: EpochNotes,
) -> str:
    """Why a program comes too late for the `until` of a window; empty: it does not. `old`: operators in force, by id.

    `origins`: ids before, of altered operators and of operators that run beside them.

    The windows from `until` on belong to another operator, which would lack the records before the switch.
    """
    for operator, mine in zip(new, ids, strict=True):
        number = origins.get(mine, mine)
        spans = [source.span for source in old[number].inputs if source.span] if number in old else []
        before = [span.until for span in spans if span != NEVER]
        for side, source in enumerate(operator.inputs):
            if source.span is None or source.span == NEVER or any(until <= source.span.until for until in before):
                continue
            clocks = notes.maxima.get(number, {}).get(side, {}).values()
            newest = max((clock.greatest for clock in clocks if clock.greatest is not None), default=WATERMARK_NONE)
            if newest >= source.span.until:
                return (
                    f"operator {operator.descriptor.name!r}: until={source.span.until}, and records of event times up to "
                    f"{newest} are in its windows already (milliseconds since 1970): choose a later time"
                )
    return ""


def next_silence(notes: EpochNotes, operators: Sequence[Operator], ids: Sequence[int], now: int) -> int | None:
    """When the next flow of any operator becomes idle, unless a record arrives before."""
    due = (
        watermarks.next_idle(notes.maxima.get(ids[number], {}).get(side, {}), source.idle_ms, now)
        for number, operator in enumerate(operators)
        for side, source in enumerate(operator.inputs)
        if source.idle_ms is not None
    )
    return min((at for at in due if at is not None), default=None)
