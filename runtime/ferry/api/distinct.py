"""The operator that passes on the first record of each key within a span of event time."""

from __future__ import annotations

from dataclasses import replace

from ferry.api.declare import Keyed, StreamT, declare_process, inputs_of, with_late
from ferry.connectors.sink import Sink
from ferry.contract.descriptors import Window
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.process.distinct import Distinct


def distinct(
    keyed: Keyed[StreamT], within: Duration, name: str | None, order: str | None, late: Sink | None
) -> StreamT:
    """Add the operator. Its rows have the event time of its input. Raises SpecRefused."""
    name = "_".join(("distinct", *keyed.stream.input.key)).lower()[:63] if name is None else name
    within_ms = milliseconds(within, f"distinct {name!r}: within")
    if not 0 < within_ms <= WATERMARK_END // 4:
        raise SpecRefused(f"distinct {name!r}: within={within!r} is not a span in which a record can repeat")
    fired = with_late(declare_process(keyed, name, Distinct(within_ms), order=order), Window(within_ms, 1), (late,))
    times = {source.time for source in inputs_of(keyed.stream)}
    return replace(fired, input=replace(fired.input, time=times.pop() if len(times) == 1 else None))
