"""What a pipeline says to have the first record of each key within some time, as an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.process.distinct import Distinct
from ferry.spark.windowed import with_late
from ferry.spark.words import Duration, milliseconds

if TYPE_CHECKING:
    from ferry.spark.keyed import KeyedStream
    from ferry.spark.sinks import Sink
    from ferry.spark.stream import Stream


def distinct(keyed: KeyedStream, within: Duration, name: str | None, order: str | None, late: Sink | None) -> Stream:
    """The operator; what it fires has the event time of what it reads. Raises SpecRefused."""
    name = "_".join(("distinct", *keyed.stream.input.key)).lower()[:63] if name is None else name
    within_ms = milliseconds(within, f"distinct {name!r}: within")
    if not 0 < within_ms <= WATERMARK_END // 4:
        raise SpecRefused(f"distinct {name!r}: within={within!r} is no time in which a record could be repeated")
    fired = with_late(keyed._processed(name, Distinct(within_ms), order=order), Window(within_ms, 1), (late,))
    times = {one.time for one in keyed.stream._inputs}
    return replace(fired, input=replace(fired.input, time=times.pop() if len(times) == 1 else None))
