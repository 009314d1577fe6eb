"""Searches for poison records, which kill their task: bisects the shares until a single record is left.

    a share has died three times -> its entries apart -> ranges of a file or partition -> parts of a split -> a record alone
    three times its task dies, and each time a task that reads the same split without the record lives: it is the record
    spec.deadLetter.onCrash: stop: the job stops with the place of the first record; set-aside: the epoch skips the record

Parts are tried in turn, so that a death has one cause. Skipped records are committed with the epoch: every retry of the
epoch skips the same records. Must never blame a record for a task that died of another cause.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from ferry.connectors.formats.json_text import json_text
from ferry.connectors.splits import PARTS, RangeSplits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Fault, Final
from ferry.contract.ingest_runs import Shares
from ferry.contract.notes import Receipt, RecordPlace
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.spark.attempts import DEATHS_MAX
from ferry.spark.control_rows import TICK
from ferry.spark.cuts import aside_alone, cut, opened, parts, pieces
from ferry.spark.tasks.reading import read

log = logging.getLogger("ferry.driver")

POISON = "PoisonRecord"
"""The name of the problem in the driver's status."""

ASIDE_MAX = 100
"""Maximum number of records of an epoch that are set aside. If more records kill tasks, the code is the cause."""

WORDS_SECONDS = 2.0
"""Spark may report the reason of a failed task this long after its end."""

PLACE_MAX = 160
"""Maximum characters of a split that its source cannot describe, and of a fired row."""

ROUNDS_MAX = 12
"""Tries of a single record. Without a verdict after that, another cause ends tasks, and the run must be retried."""

LOSS_SECONDS = 3.0
"""The loss of a worker may become known this long after its tasks have died."""

LOST_WEIGHT = 0.34
"""Weight of a death during the loss of a worker; other deaths weigh 1. After many in a row, the record killed the worker."""


Attempt = Callable[[Shares], list[Receipt] | None]
"""Has one task read a share. Returns its receipts, or None if the task died."""


class Poison:
    """The search in one epoch.

    `losses` counts lost workers and instances. `crash` returns the signal of a task that died since the last call;
    empty: it died without a signal; None: no task has died.
    """

    def __init__(
        self,
        sources: dict[str, Any],
        metrics: DriverMetrics,
        set_aside: bool,
        losses: Callable[[], int],
        operators: Sequence[OperatorDescriptor],
        crash: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._sources = sources
        self._operators = operators
        self._metrics = metrics
        self._set_aside = set_aside
        self._losses = losses
        self._crash = crash
        self._asking = threading.Lock()
        self._words = ""
        """of the last task that died in this epoch"""
        self._crash_reported = False
        """and no search since"""
        self._epoch = -1
        self._lost = self._runs = 0
        """losses before the current run; consecutive runs that failed during a loss"""
        self.aside: tuple[RecordPlace, ...] = ()
        """Skipped records."""

    def follow(self, sources: dict[str, Any], operators: Sequence[OperatorDescriptor]) -> None:
        """Another program is in force."""
        self._sources, self._operators = sources, operators

    def begin(self, epoch: int, known: Iterable[RecordPlace]) -> None:
        """Begin a run of an epoch; `known`: records that earlier steps skip."""
        if epoch != self._epoch:
            self._epoch, self.aside, self._words = epoch, (), ""
        self.aside = tuple(dict.fromkeys((*self.aside, *known)))
        self._lost = self._losses()

    def over(self) -> None:
        """A run succeeded: tasks no longer die."""
        self._runs = 0
        self._metrics.problems.mended(POISON)

    def died(self) -> None:
        """Report the crash of a task, whose share is read again, if a signal killed it. Callable from any thread."""
        until = time.monotonic() + WORDS_SECONDS
        with self._asking:
            while (words := self._crash()) is None and time.monotonic() < until:
                time.sleep(0.1)
            self._words = words or self._words
            if words and all(problem.reason != POISON for problem in self._metrics.problems.current):
                self._crash_reported = True
                again = "its share is read again; if tasks keep dying, Ferry searches for the record that kills them"
                self._metrics.problems.report(POISON, f"a task died: {words}; {again}")

    def failed(self, where: str, code: str) -> None:
        """A run failed and is retried. Reports a problem when each of several runs in a row lost a worker."""
        self._runs = self._runs + 1 if self._losses() != self._lost else 0
        if self._runs >= DEATHS_MAX:
            text = (
                f"epoch {self._epoch} has been read {self._runs} times through {where}, and each time a worker was lost"
            )
            self._metrics.problems.report(POISON, f"{text}: a record may kill it, e.g. by its use of memory{_of(code)}")

    def excuses(self) -> bool:
        """Whether the tasks of this run died with a worker, so that the run is read again instead of searched.

        Two such runs in a row are not excused: a record may kill a worker, e.g. by its use of memory.
        """
        until = time.monotonic() + LOSS_SECONDS
        while not self._runs and self._losses() == self._lost and time.monotonic() < until:
            time.sleep(0.1)
        return not self._runs and self._losses() != self._lost

    def search(self, died: Sequence[Shares], attempt: Attempt, where: str, code: str = "") -> list[Receipt]:
        """Receipts of these shares without their poison records. After a receipt with an error, the run must be retried.

        `where` names the reading task, `code` the user's functions in it. Raises Final with the place of a poison record,
        unless it may be set aside.
        """
        receipts: list[Receipt] = []
        waiting = [(share, False) for share in reversed(died)]
        """share, whether it is an untried part"""
        while waiting:
            share, is_part = waiting.pop()
            if self._is_unread(share):
                continue
            results = attempt(share) if is_part else None
            if results is None:
                try:
                    self._report(share, where)
                    if smaller := self._divided(share):
                        waiting += [(part, True) for part in reversed(smaller)]
                        continue
                    results = self._judged(share, attempt, where, code, deaths=int(is_part))
                except (Fault, OSError) as gone:  # a file was removed meanwhile
                    return [Receipt(error=f"{type(gone).__name__}: {gone}")]
            if any(receipt.error for receipt in results):
                return results
            receipts += results
        return receipts

    def _divided(self, share: Shares) -> list[Shares]:
        """Parts that together make up a share; empty when it is a single record, or cannot be cut."""
        if len(share) > 1:
            size = -(-len(share) // PARTS)
            return [share[i : i + size] for i in range(0, len(share), size)]
        ((name, split),) = share
        if name == "":
            return []
        source = self._sources.get(name)
        if isinstance(source, RangeSplits) and (alone := pieces(split)):
            if len(alone) > 1:
                return self._divided([(name, piece) for piece in alone])
            if (smaller := source.divided(json.loads(split))) is not None:
                return [[(name, json.dumps(part))] for part in smaller]
        return [[(name, part)] for part in parts(split)]

    def _judged(self, share: Shares, attempt: Attempt, where: str, code: str, deaths: float) -> list[Receipt]:
        """Receipts of a share that cannot be cut. If its task dies repeatedly, its record becomes a dead letter."""
        ((name, split),) = share
        whole, number, _ = opened(split) if name else (split, 0, None)
        spared = [(name, cut(whole, number + 1, number + 1))] if name else share
        reading = starting = 0
        for _ in range(ROUNDS_MAX):
            losses = self._losses()
            if name and (results := attempt(spared)) is not None:
                if any(receipt.error for receipt in results) or (results := attempt(share)) is not None:
                    return results
                deaths += 1 if self._losses() == losses else LOST_WEIGHT
                reading = 0
            elif (results := attempt([("", TICK)])) is None:
                starting += self._losses() == losses
            elif any(receipt.error for receipt in results):
                return results
            else:
                reading += self._losses() == losses
            if starting == DEATHS_MAX:
                raise Final(f"{where} dies before it reads a record{_of(code)}")
            if reading == DEATHS_MAX:
                return self._left_out(name, whole, -1 - number, attempt, where, code)
            if deaths >= DEATHS_MAX:
                return self._left_out(name, whole, number, attempt, where, code)
        return [Receipt(error=f"{where} dies now and then, but no single record kills it repeatedly")]

    def _left_out(self, name: str, whole: str, number: int, attempt: Attempt, where: str, code: str) -> list[Receipt]:
        """Set a poison record aside; a `number` below 0: a record that cannot be read. Raises Final if it must stay."""
        at = number if number >= 0 else -1 - number
        crash = f": {self._words}" if self._words else ""
        text = f"{where} dies of {self._place(name, whole, at, at + 1)}, {DEATHS_MAX} times alone{crash}"
        own = isinstance(self._sources.get(name), RangeSplits)
        set_aside = "set spec.deadLetter.onCrash: set-aside, and start the job again"
        if name.startswith("@"):
            raise Final(
                f"{text}: rows that an operator fired cannot be skipped; mend {code or 'the code that reads them'}"
            )
        if number < 0:
            text = f"{text}, while it is read from its source"
            if not own:
                raise Final(f"{text}: mend or remove it there{_of(code)}")
            if not self._set_aside:
                raise Final(f"{text}: mend or remove it there, or {set_aside}")
        elif not self._set_aside:
            cause = "" if crash else ": a crash of native code, an exit, or no memory"
            raise Final(f"{text}{cause}. Nothing is lost: mend {code or 'the record'}, or {set_aside}")
        if len(self.aside) == ASIDE_MAX:
            raise Final(f"{text}: {ASIDE_MAX} records of this epoch were set aside already, so the code is the cause")
        self.aside = (*self.aside, (name, whole, number))
        log.warning("%s: it is set aside", text)
        self._metrics.note("malformed", f"{text}: it is set aside")
        for _ in range(DEATHS_MAX):
            if (results := attempt([(name, aside_alone(whole, number))])) is not None:
                return results
        raise Final(f"{text}, even when it is only set aside: mend or remove it in its source")

    def _is_unread(self, share: Shares) -> bool:
        """Whether a share lies behind a record that its source cannot read."""
        if len(share) > 1:
            return False
        ((name, split),) = share
        if name == "" or name.startswith("@"):
            return False
        whole, low, _ = opened(split)
        return any((name, whole) == (source, split) and n < 0 and low >= -1 - n for source, split, n in self.aside)

    def _report(self, share: Shares, where: str) -> None:
        names = ", ".join(self._place(name, *opened(split)) for name, split in share[:3] if name)
        more = f" and {len(share) - 3} more" if len(share) > 3 else ""
        with self._asking:  # `died` may have read the signal already.
            self._words = self._crash() or self._words
        died = f"died: {self._words}" if self._words else "dies"
        text = f"{where} {died}: looking for the record that kills it in {names or 'its share'}{more}"
        reported, self._crash_reported = self._crash_reported, False
        if reported:  # The problem is known already, so the timeline would not show the search.
            self._metrics.note("degraded", text)
        self._metrics.problems.report(POISON, text)

    def _place(self, name: str, whole: str, low: int, high: int | None) -> str:
        """Source, file or partition, and numbers of the records; for fired rows the operator."""
        single = high == low + 1
        if name.startswith("@"):
            operator = f"operator {self._operators[int(name[1:])].name!r}"
            return f"row {self._row(whole, low)} of {operator}" if single else f"rows of {operator}"
        source, doc, alone = self._sources.get(name), json.loads(whole), False
        where = f"source {name!r}, split {whole[:PLACE_MAX]}"
        if isinstance(source, RangeSplits):
            where, alone = f"source {name!r}, {source.place(doc)}", single and source.divided(doc) == []
        if single:
            return f"the record of {where}" if alone else f"record {low} (counted from 0) of {where}"
        numbers = "" if (low, high) == (0, None) else f", records {low} to {'the end' if high is None else high - 1}"
        return f"{where}{numbers}"

    def _row(self, split: str, number: int) -> str:
        """A fired row, read from its instance."""
        try:
            for records in read("", None, json.loads(cut(split, number, number + 1)), None):
                if isinstance(records, pa.RecordBatch) and records.num_rows:
                    return json_text(records)[0][:PLACE_MAX]
        except (fl.FlightError, pa.ArrowException) as gone:
            log.warning("a row cannot be shown: %s", gone)
        return str(number)


def _of(code: str) -> str:
    return f"; look at {code}" if code else ""
