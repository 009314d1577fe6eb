"""The driver's own query: plans epochs over Ferry's splits, and runs them in turn.

It replaces Spark's streaming query if all sources are Ferry's: Spark plans nothing, and no separate process polls the
sources. It keeps its offsets in Spark's place (`driver/checkpoint.py`). Must never replan an epoch that it has planned
before.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from ferry.contract.errors import Fault, SpecRefused, UserCodeFailed
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.patience import Answers, ReportedPatience, UserCodeTries
from ferry.spark.shares import Batch
from ferry.spark.split_reader import SplitsReader

log = logging.getLogger("ferry.driver")

T = TypeVar("T")

LOOK_SECONDS, LOOK_SECONDS_MAX = 0.002, 0.05
"""Interval between two polls for new records. It grows while none arrive, up to the maximum or the epoch interval."""


ANSWER_SECONDS = 10.0
"""A source that takes longer for its latest offsets is reported as not answering."""


class OwnQuery:
    """Runs epochs until an epoch fails. `run(batch, epoch)` returns when the sinks have written the epoch."""

    def __init__(
        self,
        spark: SparkSession,
        reader: SplitsReader,
        checkpoint: Checkpoint,
        interval_seconds: float,
        run: Callable[[Batch, int], None],
        patience: ReportedPatience | None = None,
        tell_lags: Callable[[dict[str, int]], None] = lambda lags: None,
        tell_notice: Callable[[str], None] = lambda text: None,
        tries: UserCodeTries | None = None,
        switched: Callable[[int], bool] = lambda epoch: False,
    ) -> None:
        """`patience`: for sources that cannot be read, fully or partly; `tries`: for the user's own sources that fail.

        None: the first failure ends the query. `switched`: whether another program than before is in force from an epoch on.
        """
        self._switched = switched
        self._spark = spark
        self._reader = reader
        self._checkpoint = checkpoint
        self._interval = interval_seconds
        self._run = run
        self._patience = patience
        self._tell_lags = tell_lags
        self._tell_notice = tell_notice
        self._tries = tries
        self._away: list[str] = []
        """Problems of sources that could not be read at the last tick."""
        self._failed: Exception | None = None
        self._answers = None if patience is None else Answers(patience, ANSWER_SECONDS)
        self._thread = threading.Thread(target=self._epochs, name="query", daemon=True)

    @property
    def isActive(self) -> bool:
        """Whether further epochs may come."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """The error that ended the query."""
        return self._failed

    def start(self) -> OwnQuery:
        """Start the query. It first repeats the last planned epoch if its end was not seen."""
        self._thread.start()
        return self

    def _epochs(self) -> None:
        try:
            epoch, ended = self._checkpoint.begun()
            before = self._checkpoint.offset(epoch - 1) if epoch > 0 else None
            if epoch >= 0 and not ended:
                self._one(epoch, before or self._initial(), self._checkpoint.offset(epoch))
            offset = self._checkpoint.offset(epoch) if epoch >= 0 else self._initial()
            due = 0.0
            while True:
                later = self._later(offset, before if self._switched(epoch) else None, due)
                epoch += 1
                due = time.monotonic() + self._interval
                self._checkpoint.begin(epoch, later)
                self._one(epoch, offset, later)
                before, offset = offset, later
        except Exception as error:
            self._failed = error
            log.info("the query ends: %s: %s", type(error).__name__, error)

    def _initial(self) -> Any:
        return self._asked(self._reader.initial_offset)

    def _asked(self, ask: Callable[[], T]) -> T:
        """The answer of the sources, once they can be read."""
        while True:
            try:
                answer = self._awaited(ask)
            except Fault as error:
                if self._patience is None:
                    raise
                self._patience.failed(f"source: {error}")
                continue
            except UserCodeFailed as error:
                if self._tries is None:
                    raise
                self._tries.failed(error)
                continue
            if self._patience is not None:
                self._patience.partly("; ".join([*self._away, *self._reader.problems()]))
            if self._tries is not None:
                self._tries.succeeded()
            return answer

    def _awaited(self, ask: Callable[[], T]) -> T:
        if self._answers is None:
            return ask()
        with self._answers.awaited(lambda: f"source: {self._reader.asked}"):
            return ask()

    def _later(self, offset: Any, before: Any, due: float) -> Any:
        """The next offset, once an epoch is due and has records or a tick. `before`: where the last epoch began, if it has
        another program than its plan."""
        wait = LOOK_SECONDS
        while True:
            time.sleep(max(due - time.monotonic(), 0.0))
            later = self._asked(partial(self._latest, offset, before))
            if later != offset:
                later = _as_kept(later)
            self._tell_notice(self._reader.notice())
            self._tell_lags(self._asked(partial(self._reader.lags, later)))  # records of the next epoch are no lag
            if later != offset:
                return later
            time.sleep(wait)
            wait = min(wait * 2, max(LOOK_SECONDS_MAX, self._interval))

    def _latest(self, offset: Any, before: Any) -> Any:
        """The latest offset. If a source cannot be read, ticks still count: groups change and timers fire."""
        self._away = []
        try:
            return self._reader.latest_offset(offset, before)
        except Fault as error:
            if (ticked := self._reader.ticked(offset)) != offset:
                self._away = [f"source: {error}"]
                return ticked
            raise

    def _one(self, epoch: int, begin: Any, end: Any) -> None:
        def shares() -> list[list[tuple[str, str]]]:
            return self._reader.shares(begin, end)

        def again(reason: str) -> list[list[tuple[str, str]]]:
            self._reader.failed(end, reason)
            return shares()

        self._run(Batch(self._spark, self._asked(shares), again), epoch)
        self._checkpoint.end(epoch)


def _as_kept(offset: Any) -> Any:
    """An offset after a round trip through JSON, as the next query reads it. Raises SpecRefused if it is no JSON."""
    try:
        return json.loads(json.dumps(offset))
    except (TypeError, ValueError) as error:
        raise SpecRefused(
            f"a source: latest() or start() returned a position that is no JSON value: {error}"
        ) from error
