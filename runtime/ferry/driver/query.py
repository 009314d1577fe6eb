"""The driver's own query: plans epochs over Ferry's splits, and runs one after the other.

It stands in for a streaming query of Spark where all sources are Ferry's: nothing is planned by Spark, and no process of its
own is needed to ask the sources. It keeps its offsets where Spark would (`driver/checkpoint.py`). Must never plan an epoch
anew that it has planned before.
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
"""Between two looks for new records; longer and longer while there are none, or the interval of epochs."""


ANSWER_SECONDS = 10.0
"""A source that takes longer to say what is new is said not to answer."""


class OwnQuery:
    """Runs epochs until one fails. `run(batch, epoch)` returns when the sinks have it."""

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
    ) -> None:
        """`patience`: for sources that cannot be read, wholly or in part; `tries`: for a user's own that fail.

        None: the first failure ends the query.
        """
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
        """What could not be read when a tick was asked for."""
        self._failed: Exception | None = None
        self._answers = None if patience is None else Answers(patience, ANSWER_SECONDS)
        self._thread = threading.Thread(target=self._epochs, name="query", daemon=True)

    @property
    def isActive(self) -> bool:
        """Whether further epochs may come."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Why there are no more."""
        return self._failed

    def start(self) -> OwnQuery:
        """Begin with the epoch that was planned last and not seen to its end, if there is one."""
        self._thread.start()
        return self

    def _epochs(self) -> None:
        try:
            epoch, ended = self._checkpoint.begun()
            if epoch >= 0 and not ended:
                begin = self._checkpoint.offset(epoch - 1) if epoch else None
                self._one(epoch, begin or self._initial(), self._checkpoint.offset(epoch))
            offset = self._checkpoint.offset(epoch) if epoch >= 0 else self._initial()
            due = 0.0
            while True:
                epoch, later = epoch + 1, self._later(offset, due)
                due = time.monotonic() + self._interval
                self._checkpoint.begin(epoch, later)
                self._one(epoch, offset, later)
                offset = later
        except Exception as error:
            self._failed = error
            log.info("the query ends: %s: %s", type(error).__name__, error)

    def _initial(self) -> Any:
        return self._asked(self._reader.initial_offset)

    def _asked(self, ask: Callable[[], T]) -> T:
        """What the sources answer, as soon as they can be read."""
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

    def _later(self, offset: Any, due: float) -> Any:
        """The next offset, when it is time for an epoch and there is something for it."""
        wait = LOOK_SECONDS
        while True:
            time.sleep(max(due - time.monotonic(), 0.0))
            later = self._asked(partial(self._latest, offset))
            if later != offset:
                later = _as_kept(later)
            self._tell_notice(self._reader.notice())
            self._tell_lags(self._asked(partial(self._reader.lags, later)))  # what is about to be read does not wait
            if later != offset:
                return later
            time.sleep(wait)
            wait = min(wait * 2, max(LOOK_SECONDS_MAX, self._interval))

    def _latest(self, offset: Any) -> Any:
        """Also while a source cannot be read, groups change and timers go off."""
        self._away = []
        try:
            return self._reader.latest_offset(offset)
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
    """An offset as whoever goes on with it will find it. Raises SpecRefused for a position that is no JSON."""
    try:
        return json.loads(json.dumps(offset))
    except (TypeError, ValueError) as error:
        raise SpecRefused(
            f"a source: latest() or start() returned a position that is no JSON value: {error}"
        ) from error
