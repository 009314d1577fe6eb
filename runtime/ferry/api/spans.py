"""Windows of a span of event time: the windows of an operator end where the windows of another operator begin.

Records out of the span move the watermark, so windows fire as if the records had reached the operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ferry.api.declare import Keyed, StreamT, changed
from ferry.api.pipeline import MapBatches
from ferry.contract.descriptors import Span, Window
from ferry.contract.durations import Time, event_time
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END

TIME_MAX = WATERMARK_END // 2


@dataclass(frozen=True, slots=True)
class WindowsWithin:
    """A step that keeps the rows of the windows of a span: sliding windows overlap its ends."""

    span: Span

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose windows begin in the span."""
        begins = batch.column("window_start")
        return batch.filter(pc.and_(pc.greater_equal(begins, self.span.low), pc.less(begins, self.span.until)))


def span_of(window: Window, since: Time | None, until: Time | None) -> Span | None:
    """The span from `since` to `until`; None: all of time. Raises SpecRefused."""
    if since is None and until is None:
        return None
    low, high = -TIME_MAX, TIME_MAX
    if since is not None:
        low = _start(window, "since", since)
    if until is not None:
        high = _start(window, "until", until)
    if low >= high:
        raise SpecRefused(f"window: since={since!r} is not before until={until!r}: no window would be between them")
    return Span(low, high + window.size_ms - window.slide_ms, high)


def _start(window: Window, name: str, value: Time) -> int:
    at, slide = event_time(value, f"window: {name}="), window.slide_ms
    if abs(at) >= TIME_MAX:
        raise SpecRefused(f"window: {name}={value!r} is beyond all event times")
    if at % slide:
        before = at // slide * slide
        raise SpecRefused(
            f"window: {name}={value!r} is not the start of a window: windows begin at multiples of {slide} ms since 1970. "
            f"The nearest starts are {before} and {before + slide}, in milliseconds since 1970"
        )
    return at


def within(keyed: Keyed[StreamT], span: Span | None) -> Keyed[StreamT]:
    """The stream, of which only the records of this span reach the next operator."""
    return keyed if span is None else replace(keyed, stream=changed(keyed.stream, partial(replace, span=span)))


def windows_within(fired: StreamT, window: Window, span: Span | None) -> StreamT:
    """The fired rows of the pipeline's last operator, of windows in this span."""
    if span is None or window.size_ms == window.slide_ms:
        return fired
    return replace(fired, input=replace(fired.input, steps=(MapBatches(WindowsWithin(span)),)))
