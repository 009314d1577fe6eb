"""What an epoch commits with its state for the epochs and drivers after it, and the receipts of tasks that it comes from.

Values, sums and wire forms (JSON). Must never decide which receipts count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ferry.contract.latency import Counts, added
from ferry.contract.lenient import known
from ferry.contract.messages import Fragment
from ferry.contract.watermarks import Clocks, FlowClock, advanced


def dead_letters_name(fragment: Fragment) -> str:
    """Name of the file of dead letters, without its suffix, that belongs to a fragment: of its task attempt."""
    step, generation, run, task = fragment.step, fragment.generation, fragment.run, fragment.task
    return f"{step.epoch}-{step.operator}-{generation}-{run}-{task}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task attempt of an ingest run has done."""

    task: int = -1
    """Spark's number of the attempt; -1: the whole run failed, as `error` says."""
    helper: str | None = None
    """The instance that holds its fragment; None: it had no rows."""
    rows: int = 0
    """Records read: those of each source where its first operator reads them."""
    malformed: int = 0
    maxima: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Greatest event time by input of the operator and its flow, where there was any."""
    letters: tuple[str, ...] = ()
    """Malformed records that go with the receipt, for no directory is shared with the driver."""
    flush: bool = False
    """The task has seen the end of all input."""
    error: str | None = None
    flows: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    """By input, in one receipt of all: the flows that its source lists, and whether each has records that wait."""
    ages: Counts = field(default_factory=dict)
    """How many records were how old when the epoch was planned (`contract/latency.py`); of sources that say so."""
    busy: float = 0.0
    """Seconds from when it was dealt its records to this receipt."""
    unread: int = 0
    """Malformed records that `rows` does not count: their source could not make records of them."""
    first_malformed: str = ""
    """What is wrong with the first one, and where it lies."""
    given: int = 0
    """Records that the inputs of the operator were given, also where another operator counts them."""
    bad: int = 0
    """Those of `given` that are malformed."""
    died: bool = False
    """It has read nothing: attempts before it have died."""

    def dump(self) -> str:
        """As the task returns it."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> Receipt:
        """As the driver reads it."""
        doc = known(Receipt, json.loads(text))
        numbered = {name: _by_number(doc[name]) for name in ("maxima", "flows", "ages")}
        return Receipt(**{**doc, **numbered, "letters": tuple(doc["letters"])})


RecordPlace = tuple[str, str, int]
"""A record: its source, the split as JSON, its number there."""


class EpochCounts(NamedTuple):
    """Records of one epoch."""

    rows: int = 0
    malformed: int = 0
    late: int = 0
    """Those that are late at any operator but the last one so far, whose own commit counts them."""


@dataclass(frozen=True, slots=True)
class EpochNotes:
    """Committed with a step. A driver that only emits the epoch again knows from it what the epoch brought."""

    epoch: EpochCounts = field(default_factory=EpochCounts)
    """Of this epoch, so far."""
    late: int = 0
    """Of all steps before this one: the commit of a step counts its own."""
    spark: str | None = None
    """What Spark needs to begin the epoch again (`driver/checkpoint.py`); None: of a release that did not keep it."""
    maxima: Mapping[int, Mapping[int, Clocks]] = field(default_factory=dict)
    """Greatest event time ever seen, and when the flow was heard last: by operator, its input and the flow."""
    rows: int = 0
    malformed: int = 0
    """Of all epochs."""
    flush: bool = False
    """All input has ended: every window fires."""
    letters: tuple[str, ...] = ()
    """Files of dead letters that belong to this epoch."""
    ages: Counts = field(default_factory=dict)
    """How many records of this epoch were how old when it was planned."""
    aside: tuple[RecordPlace, ...] = ()
    """Records of this epoch that are left out: a task dies of each. Whoever reads them again leaves them out, too."""

    def next_epoch(self, late: int, spark: str) -> EpochNotes:
        """Of the epoch after this one, before anything is read. `late`: of the last step of this epoch."""
        return replace(
            self, epoch=EpochCounts(), late=self.late + late, spark=spark, flush=False, letters=(), ages={}, aside=()
        )

    def next_operator(self, late: int) -> EpochNotes:
        """Of the step after this one in the same epoch. `late`: of this step."""
        return replace(self, epoch=self.epoch._replace(late=self.epoch.late + late), late=self.late + late)

    def add(
        self,
        operator: int,
        receipts: Sequence[Receipt],
        letters: Iterable[str],
        now: int = 0,
        idle: Mapping[int, int] | None = None,
        unlisted: Iterable[int] = (),
    ) -> EpochNotes:
        """With what the tasks of an operator's ingest have read.

        `now`: when the epoch was planned. `idle`: timeouts by input, where there is one. `unlisted`: inputs whose flows are
        named by their records, and listed by nobody.
        """
        rows = sum(r.rows for r in receipts)
        malformed = sum(r.malformed for r in receipts)
        mine = _advanced(self.maxima.get(operator, {}), receipts, now, idle or {}, unlisted)
        return replace(
            self,
            epoch=EpochCounts(self.epoch.rows + rows, self.epoch.malformed + malformed, self.epoch.late),
            maxima={**self.maxima, operator: mine},
            rows=self.rows + rows,
            malformed=self.malformed + malformed,
            flush=self.flush or any(r.flush for r in receipts),
            letters=(*self.letters, *letters),
            ages=added((self.ages, *(r.ages for r in receipts))),
        )

    def newest(self) -> dict[int, int]:
        """By operator: the greatest event time of what sources have brought for it."""
        found: dict[int, int] = {}
        for operator, sides in self.maxima.items():
            times = [one.greatest for clocks in sides.values() for one in clocks.values() if one.greatest is not None]
            if times:
                found[operator] = max(times)
        return found

    def dump(self) -> bytes:
        """As it is committed."""
        maxima = {operator: {i: _wire(c) for i, c in sides.items()} for operator, sides in self.maxima.items()}
        doc = {**asdict(self), "maxima": maxima}
        for name in ("ages", "aside"):
            if not doc[name]:
                del doc[name]  # so it was before there were any
        return json.dumps(doc, separators=(",", ":")).encode()

    @staticmethod
    def load(meta: bytes) -> EpochNotes:
        """As it was committed, also by another release; nothing committed yet is b''."""
        doc = known(EpochNotes, json.loads(meta)) if meta else {}
        doc["epoch"] = EpochCounts(*doc.get("epoch", ()))
        doc["maxima"] = {
            int(operator): {side: _clocks(wire) for side, wire in _by_number(sides).items()}
            for operator, sides in doc.get("maxima", {}).items()
        }
        doc["aside"] = tuple((source, split, number) for source, split, number in doc.get("aside", ()))
        return EpochNotes(**{**doc, "letters": tuple(doc.get("letters", ())), "ages": _by_number(doc.get("ages", {}))})


def _advanced(
    before: Mapping[int, Clocks],
    receipts: Sequence[Receipt],
    now: int,
    idle: Mapping[int, int],
    unlisted: Iterable[int],
) -> dict[int, Clocks]:
    """Clocks of the flows by input, after these receipts; inputs of which nothing is known are left out."""
    maxima: dict[int, dict[str, int]] = {}
    listed: dict[int, Mapping[str, bool]] = {side: {} for side in unlisted}
    for receipt in receipts:
        listed |= receipt.flows
        for side, flows in receipt.maxima.items():
            mine = maxima.setdefault(side, {})
            for flow, greatest in flows.items():
                mine[flow] = max(mine.get(flow, greatest), greatest)
    sides = sorted(before.keys() | maxima.keys() | listed.keys() | idle.keys())
    after = {
        side: advanced(before.get(side, {}), maxima.get(side, {}), listed.get(side), idle.get(side), now)
        for side in sides
    }
    return {side: clocks for side, clocks in after.items() if clocks}


def _wire(clocks: Clocks) -> Any:
    """One flow that never is idle is a number, as before there were others."""
    if clocks.keys() == {""} and clocks[""].heard is None:
        return clocks[""].greatest
    return clocks


def _clocks(wire: Any) -> Clocks:
    if isinstance(wire, dict):
        return {flow: FlowClock(*clock) for flow, clock in wire.items()}
    return {"": FlowClock(wire)}


def _by_number(doc: Mapping[str, Any]) -> dict[int, Any]:
    """A map whose keys are numbers: JSON makes texts of them."""
    return {int(key): value for key, value in doc.items()}
