"""The progress of event time: of the flows of an input, of the input, of an operator. Pure, values in and out.

A flow is ordered in itself: a partition, a folder of files. The clocks of an input's flows are committed with every
epoch, so every computation of the next watermark begins with the same clocks. Must never read a clock: `now` is when
the epoch was planned, in milliseconds, and a repeated epoch has the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ferry.contract.errors import SpecRefused
from ferry.contract.limits import FLOW_NAME_MAX, FLOWS_MAX, WATERMARK_NONE


class FlowClock(NamedTuple):
    """The progress of one flow."""

    greatest: int | None
    """event time; None: no record has come yet"""
    heard: int | None = None
    """When it was last not silent; None: its input has no idle timeout."""


Clocks: TypeAlias = Mapping[str, FlowClock]
"""Flows of one input by name. A source without flows has one, named ''."""


def advanced(
    clocks: Clocks, maxima: Mapping[str, int], listed: Mapping[str, bool] | None, idle_ms: int | None, now: int
) -> dict[str, FlowClock]:
    """The clocks after an epoch, whose records have these greatest event times.

    `listed`: the flows that exist, and whether each has waiting records; None: the source is one flow. A flow that is
    not listed counts until it is idle; the last ones stay idle. If no flow is known, the timeout is of the whole input.
    """
    if listed is None:
        listed = {}
        maxima = {"": max(maxima.values())} if maxima else {}
        kept = {""} & clocks.keys()
    else:
        kept = {flow for flow, clock in clocks.items() if flow and not _is_idle(clock, idle_ms, now)}
    flows = kept | maxima.keys() | listed.keys() or set(clocks)
    if not flows and idle_ms is not None:
        flows = {""}
    waiting = {flow for flow, waits in listed.items() if waits}
    return {flow: _heard(clocks.get(flow), maxima.get(flow), flow in waiting, idle_ms, now) for flow in sorted(flows)}


def _heard(clock: FlowClock | None, greatest: int | None, waits: bool, idle_ms: int | None, now: int) -> FlowClock:
    before = clock or FlowClock(None)
    seen = [at for at in (before.greatest, greatest) if at is not None]
    silent = before.heard is not None and greatest is None and not waits
    heard = min(before.heard, now) if silent and before.heard is not None else now
    return FlowClock(max(seen, default=None), None if idle_ms is None else heard)


def _is_idle(clock: FlowClock, idle_ms: int | None, now: int) -> bool:
    return idle_ms is not None and clock.heard is not None and now - clock.heard >= idle_ms


def refuse_too_many(flows: Collection[str], operator: str) -> None:
    """Raise SpecRefused for more flows than an epoch should commit, or for longer names."""
    what_to_do = "let one flow stand for more of them"
    if len(flows) > FLOWS_MAX:
        raise SpecRefused(
            f"operator {operator!r}: an input has {len(flows)} flows, at most {FLOWS_MAX} are possible; {what_to_do}"
        )
    for flow in flows:
        if len(flow) > FLOW_NAME_MAX:
            raise SpecRefused(
                f"operator {operator!r}: the name of flow {flow!r} has {len(flow)} characters, at most {FLOW_NAME_MAX} are "
                f"possible; {what_to_do}"
            )


def input_watermark(clocks: Clocks, delay_ms: int, idle_ms: int | None, now: int) -> int | None:
    """Minimum over the flows that are not idle of (greatest event time - delay); None: all are idle.

    A flow without any record yet holds it back, and so does an input without any flow.
    """
    if not clocks:
        return WATERMARK_NONE
    awake = [clock.greatest for clock in clocks.values() if not _is_idle(clock, idle_ms, now)]
    return min((WATERMARK_NONE if at is None else at - delay_ms for at in awake), default=None)


def operator_watermark(highs: Iterable[int | None]) -> int:
    """Minimum over the inputs that are not idle; below every time if all are idle, so that it does not move."""
    return min((high for high in highs if high is not None), default=WATERMARK_NONE)


def next_idle(clocks: Clocks, idle_ms: int, then: int) -> int | None:
    """When the next flow becomes idle that was not idle at `then`, if no records come; None: never."""
    awake = [clock.heard for clock in clocks.values() if not _is_idle(clock, idle_ms, then)]
    return min((heard + idle_ms for heard in awake if heard is not None), default=None)
