"""Prepares the sinks of a job before its first epoch: rolls them back to the restored epoch, then opens them.

Each call is retried, as writes are, because a sink may recover. Must never truncate a sink that another driver may own by
now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ferry.connectors import sink as sinks
from ferry.connectors.console.sink import Console
from ferry.contract.errors import SpecRefused, Unreachable, UserCodeFailed
from ferry.contract.settings import RunSettings
from ferry.contract.user_code import shown, text_of
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.loop import Loop
from ferry.driver.coordinator_orders import sleep
from ferry.driver.errors import Stopped
from ferry.driver.failures import is_final, sink_code
from ferry.driver.patience import QUIET_SECONDS, RETRY_SECONDS_MAX, ReportedPatience, UserCodeTries, watched

log = logging.getLogger("ferry.driver")

PRINTED_MAX = 1 << 16
"""Maximum characters of an epoch's printed rows in the timeline."""

RETRY_SECONDS = 0.3
"""Interval between two reads of an unavailable journal."""


class SinkStartup:
    """Rolls back and opens all sinks of one job; `stop` is set when the job must end."""

    def __init__(self, declared: Sequence[sinks.Sink], settings: RunSettings, stop: threading.Event) -> None:
        self._sinks = declared
        self._settings = settings
        self._stop = stop
        self._over = False
        self._opened: list[sinks.Sink] = []
        """Each is there once, as in `_sinks`."""
        self.last_failure = ""
        """Why the last try failed."""

    def rewind(self, epoch: int, loop: Loop, metrics: DriverMetrics) -> bool:
        """Roll the sinks back to the end of this epoch; False: the job must stop. Raises Superseded when another driver
        has taken over meanwhile."""

        def roll_back(sink: sinks.Sink) -> None:
            if self._settings.restore_sink == "keep":
                sink.keep_after(epoch)
            else:
                sink.truncate_after(epoch)

        return self._each(roll_back, f"be rolled back to epoch {epoch}", loop, metrics, lambda: _await_claim(loop))

    def open(self, committed: int, loop: Loop, metrics: DriverMetrics, cut: bool = False) -> bool:
        """Open the sinks; False: the job must stop. `cut`: roll them back to the committed epoch before."""
        self._announce(metrics)
        opened = self._each(partial(self._open, committed, cut), "be opened", loop, metrics)
        self._over = True
        self._opened += self._sinks
        if texts := [text for sink in self._sinks if (text := getattr(sink, "notice", ""))]:
            metrics.problems.warn("OutputIsNew", "; ".join(texts))
        return opened

    def postpone(self) -> None:
        """Open no sink now: `follow` does, at the begin of the first epoch."""
        self._sinks, self._over = (), True

    def follow(
        self,
        declared: Sequence[sinks.Sink],
        committed: int,
        loop: Loop,
        metrics: DriverMetrics,
        is_over: Callable[[], bool],
        cut: bool = False,
    ) -> bool:
        """Open the new sinks of a deployed program; False: the job must stop, or `is_over()` is true.

        `cut`: roll them back before, because a life before a restore may have written later epochs to them.
        """

        def require() -> None:
            if is_over():
                raise Stopped("the program was taken back")

        declared = sinks.distinct(declared)
        fresh = [sink for sink in declared if all(sink is not other for other in self._opened)]
        opened = self._each(partial(self._open, committed, cut), "be opened", loop, metrics, require, fresh)
        if opened:
            self._opened += fresh
            self._sinks = declared
            if fresh:
                self._announce(metrics)
        return opened

    def _open(self, committed: int, cut: bool, sink: sinks.Sink) -> None:
        if cut and self._settings.restore_sink == "keep":
            sink.keep_after(committed)
        elif cut:
            try:
                sink.truncate_after(committed)
            except SpecRefused as refused:  # It cannot remove rows, and may have none: it may never have been written.
                log.warning("%s; later rows are kept, if it has any", refused)
                sink.keep_after(committed)
        sink.open(committed)

    def stop(self, loop: Loop) -> None:
        """End after the current epoch; before the first epoch, end at once."""
        self._stop.set()
        if not self._over:
            loop.stop()

    def _announce(self, metrics: DriverMetrics) -> None:
        """Tell `ferry run` the output folders, and forward printed rows."""
        if folders := [str(where) for sink in self._sinks if (where := getattr(sink, "directory", ""))]:
            metrics.note("output", ", ".join(folders))
        for sink in self._sinks:
            if isinstance(sink, Console):
                sink.show = partial(_print, metrics)

    def _each(
        self,
        step: Callable[[sinks.Sink], None],
        action: str,
        loop: Loop,
        metrics: DriverMetrics,
        await_turn: Callable[[], None] = lambda: None,
        each: Sequence[sinks.Sink] | None = None,
    ) -> bool:
        """Call `step` on each sink in turn. `await_turn` is called before each try; its time does not use up patience."""
        ms, left = self._settings.sink_patience_ms, list(self._sinks if each is None else each)
        patience = ReportedPatience(loop, metrics, "SinkFailing", limit=None if ms is None else ms / 1000)
        tries = UserCodeTries(loop, metrics)
        while left and not self._stop.is_set():
            try:
                began = time.monotonic()
                await_turn()
                patience.allow(time.monotonic() - began)
                text = f"sink {shown(left[0])} is to {action}, and has not answered for {QUIET_SECONDS:g} s"
                with watched(metrics, "SinkFailing", QUIET_SECONDS, text), sink_code(left[0]):
                    step(left[0])
                patience.succeeded()
                tries.succeeded()
                left.pop(0)
            except Stopped:
                break
            except UserCodeFailed as failed:
                with suppress(Stopped):
                    tries.failed(failed)
            except Exception as error:
                if is_final(error):
                    raise
                with suppress(Stopped):
                    failed_with = f"{type(error).__name__}: {text_of(error)}"
                    self.last_failure = f"sink {shown(left[0])} cannot {action}: {failed_with}"
                    patience.failed(f"{self.last_failure}{_advice(error)}")
        return not left


def _print(metrics: DriverMetrics, text: str) -> None:
    print(text, flush=True)
    if len(text) > PRINTED_MAX:
        text = f"{text[:PRINTED_MAX]} ... (the full text is in the log of the driver)"
    with suppress(OSError):  # on a full disk
        metrics.note("printed", text)


def _advice(error: Exception) -> str:
    """Advice for an error that lasts until the user acts; empty for other errors."""
    if not isinstance(error, NotADirectoryError | FileExistsError):
        return ""
    again = f"It is tried again, at last every {RETRY_SECONDS_MAX:g} s"
    return f". {again}: make it a folder, or stop the job and give another --output (spec.output)"


def _await_claim(loop: Loop) -> None:
    """Check that no other driver has taken over. Waits for an unavailable journal."""
    while True:
        try:
            return loop.check_claim()
        except Unreachable as error:
            log.warning("waiting for the journal: %s", error)
            sleep(loop, RETRY_SECONDS)
