"""Looks for the records of which tasks die: their shares are cut, until one record is left, or none dies any more.

    a share has died three times -> its entries apart -> parts of a split -> parts of a part -> a record, three times alone
    spec.deadLetter.onCrash: stop: the job stops with the place of the first one; set-aside: the epoch goes on without it

Parts are tried one after the other, so that a death has one cause. Records that are left out are committed with the epoch:
whoever reads it again leaves out the same. Must never blame a record for a task that died with its worker.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ferry.contract.errors import Final
from ferry.contract.ingest_runs import Shares
from ferry.contract.notes import Receipt, RecordPlace
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.spark.attempts import DEATHS_MAX
from ferry.spark.cuts import PARTS, cut, opened, parts, pieces
from ferry.spark.directory import DirectorySplits
from ferry.spark.files import JsonSplits
from ferry.spark.kafka import KafkaSplits
from ferry.spark.source import TICK

log = logging.getLogger("ferry.driver")

POISON = "PoisonRecord"
"""What the problem is called in the driver's status."""

ASIDE_MAX = 100
"""Records of an epoch that are set aside at most: of more the code is the cause, and no record."""

WORDS_SECONDS = 2.0
"""So long after its end Spark may take to say why a task has failed."""

PLACE_MAX = 160
"""Characters of a split that its source cannot describe."""

Attempt = Callable[[Shares], list[Receipt] | None]
"""Has one task read a share: its receipts, None when it has died of it."""


class Poison:
    """What is known of one epoch.

    `losses` counts workers and instances that were lost; `crash` says of which signal a task has died since it was
    asked last: empty of none, None: no task has died.
    """

    def __init__(
        self,
        sources: dict[str, Any],
        metrics: DriverMetrics,
        set_aside: bool,
        losses: Callable[[], int],
        crash: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._sources = sources
        self._metrics = metrics
        self._set_aside = set_aside
        self._losses = losses
        self._crash = crash
        self._asking = threading.Lock()
        self._words = ""
        """of the last task that has died in this epoch"""
        self._told_crash = False
        """and nothing of a search since"""
        self._epoch = -1
        self.aside: tuple[RecordPlace, ...] = ()
        """Records that are left out."""

    def begin(self, epoch: int, known: Iterable[RecordPlace]) -> None:
        """An epoch; `known` are records that steps before have left out."""
        if epoch != self._epoch:
            self._epoch, self.aside, self._words = epoch, (), ""
        self.aside = tuple(dict.fromkeys((*self.aside, *known)))

    def over(self) -> None:
        """No task dies any more."""
        self._metrics.mended(POISON)

    def died(self) -> None:
        """Report the crash of a task, whose share is read again; none when it ended otherwise. Callable from any thread."""
        until = time.monotonic() + WORDS_SECONDS
        with self._asking:
            while (words := self._crash()) is None and time.monotonic() < until:
                time.sleep(0.1)
            self._words = words or self._words
            if words and all(problem.reason != POISON for problem in self._metrics.problems):
                self._told_crash = True
                again = "its share is read again; if tasks go on dying, the record that kills them is searched"
                self._metrics.report_problem(POISON, f"a task died: {words}; {again}")

    def search(self, died: Sequence[Shares], attempt: Attempt, where: str, code: str = "") -> list[Receipt]:
        """Receipts of all that is left of these shares; of one with an error the run is to be tried again.

        `where` says who reads them, `code` which functions of the user's do. Raises Final with the place of a record that
        kills, unless it may be set aside.
        """
        receipts: list[Receipt] = []
        waiting = [(share, True) for share in reversed(died)]
        while waiting:
            share, dead = waiting.pop()
            made = None if dead else attempt(share)
            if made is None:
                self._report(share, where)
            if made is None and (smaller := self._divided(share)):
                waiting += [(one, False) for one in reversed(smaller)]
                continue
            made = self._judged(share, attempt, where, code) if made is None else made
            if any(receipt.error for receipt in made):
                return made
            receipts += made
        return receipts

    def _divided(self, share: Shares) -> list[Shares]:
        """Parts of a share that together are the same; none when it is a single record, or cannot be cut."""
        if len(share) > 1:
            size = -(-len(share) // PARTS)
            return [share[i : i + size] for i in range(0, len(share), size)]
        ((name, split),) = share
        if name == "" or name.startswith("@"):
            return []
        own = isinstance(self._sources.get(name), DirectorySplits | KafkaSplits)
        if own and (alone := pieces(split)):
            return self._divided([(name, one) for one in alone])
        return [[(name, part)] for part in parts(split)]

    def _judged(self, share: Shares, attempt: Attempt, where: str, code: str) -> list[Receipt]:
        """What is left of a share that cannot be cut: nothing but a dead letter, if it dies again and again."""
        deaths, losses = 1, self._losses()
        while deaths < DEATHS_MAX:
            if (made := attempt(share)) is not None:
                return made
            deaths += 1
            if (now := self._losses()) != losses:
                deaths, losses = 1, now  # It may have died with its worker.
        ((name, split),) = share
        if name == "":
            raise Final(f"{where} dies before it reads anything")
        whole, number, _ = (split, 0, None) if name.startswith("@") else opened(split)
        crash = f": {self._words}" if self._words else ""
        text = f"{where} dies of {self._place(name, split)}, {DEATHS_MAX} times alone{crash}"
        if name.startswith("@"):
            raise Final(f"{text}: of rows that an operator fired none can be left out; mend the function behind it")
        if attempt([(name, cut(whole, number + 1, number + 1))]) is None:
            if attempt([("", TICK)]) is None:
                raise Final(f"{where} dies before it reads anything")
            raise Final(f"{text}, while it is read from its source: mend or remove it there")
        if not self._set_aside:
            cause = "" if crash else ": a crash of native code, an exit, or no memory"
            raise Final(
                f"{text}{cause}. Nothing is lost: mend {code or 'the record'}, or set spec.deadLetter.onCrash: set-aside, "
                "and start the job again"
            )
        if len(self.aside) == ASIDE_MAX:
            raise Final(f"{text}: {ASIDE_MAX} records of this epoch were set aside already, so the code is the cause")
        self.aside = (*self.aside, (name, whole, number))
        log.warning("%s: it is set aside", text)
        self._metrics.note("malformed", f"{text}: it is set aside")
        made = attempt([(name, cut(whole, number, number + 1, [number]))])
        if made is None:
            raise Final(f"{text}, also where it is only set aside: mend or remove it in its source")
        return made

    def _report(self, share: Shares, where: str) -> None:
        names = ", ".join(self._place(name, split) for name, split in share[:3] if name)
        more = f" and {len(share) - 3} more" if len(share) > 3 else ""
        with self._asking:  # Who has asked before reports it.
            self._words = self._crash() or self._words
        died = f"died: {self._words}" if self._words else "dies"
        text = f"{where} {died}: looking for the record that kills it in {names or 'its share'}{more}"
        told, self._told_crash = self._told_crash, False
        if told:  # The problem is known: the timeline would not hear of the search.
            self._metrics.note("degraded", text)
        self._metrics.report_problem(POISON, text)

    def _place(self, name: str, split: str) -> str:
        """Source, file or partition, and numbers of the records."""
        if name.startswith("@"):
            return "rows of an operator before it"
        whole, low, high = opened(split)
        where = _described(self._sources.get(name), whole)
        if high == low + 1:
            return f"record {low} (counted from 0) of source {name!r}, {where}"
        numbers = "" if (low, high) == (0, None) else f", records {low} to {'the end' if high is None else high - 1}"
        return f"source {name!r}, {where}{numbers}"


def _described(source: Any, split: str) -> str:
    """File or partition of a split of Ferry's own sources; that of another one as it is."""
    doc = json.loads(split)
    if isinstance(source, KafkaSplits):
        return source.place(doc)
    if not isinstance(source, DirectorySplits):
        return f"split {split[:PLACE_MAX]}"
    unit = "bytes" if isinstance(source, JsonSplits) else "row groups"
    files = [f"{about[1]}, {unit} {low} to {high - 1}" for about, low, high in doc["pieces"]]
    return "; ".join(files[:3]) + (f"; and {len(files) - 3} more" if len(files) > 3 else "")
