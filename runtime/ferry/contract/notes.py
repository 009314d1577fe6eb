"""Notes: what an epoch commits beside its state for later epochs and drivers, and the receipts of tasks behind them.

Values, sums and wire forms (JSON). Must never decide which receipts count.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ferry.contract.latency import Counts, added
from ferry.contract.lenient import known
from ferry.contract.names import Fragment
from ferry.contract.watermarks import Clocks, FlowClock, advanced


def dead_letters_name(fragment: Fragment) -> str:
    """Name, without suffix, of the file of dead letters that belongs to a fragment's task attempt."""
    step, generation, run, task = fragment.step, fragment.generation, fragment.run, fragment.task
    return f"{step.epoch}-{step.operator}-{generation}-{run}-{task}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of one task attempt of an ingest run."""

    task: int = -1
    """Spark's number of the attempt; -1: the whole run failed, as `error` says."""
    helper: str | None = None
    """The instance that holds its fragment; None: it had no rows."""
    rows: int = 0
    """Records read, each counted once: by the first operator that reads its source."""
    malformed: int = 0
    maxima: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Greatest event time by input of the operator and flow; inputs without records are left out."""
    letters: tuple[str, ...] = ()
    """Malformed records that travel with the receipt because tasks and driver share no directory."""
    flush: bool = False
    """The task has seen the end of all input."""
    error: str | None = None
    flows: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    """By input, in one of all receipts: the flows that its source lists, and whether each has waiting records."""
    ages: Counts = field(default_factory=dict)
    """Records by their age when the epoch was planned (`contract/latency.py`); of sources that know it."""
    busy: float = 0.0
    """Seconds from the assignment of its records to this receipt."""
    unread: int = 0
    """Malformed records that `rows` does not count: their source could not parse them as records."""
    first_malformed: str = ""
    """The problem of the first one, and its place."""
    given: int = 0
    """Records that the inputs of the operator received, including records that another operator counts."""
    bad: int = 0
    """Malformed records among `given`."""
    died: bool = False
    """It has read nothing because attempts before it have died."""

    def dump(self) -> str:
        """JSON, for the driver."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> Receipt:
        """Inverse of dump."""
        doc = known(Receipt, json.loads(text))
        numbered = {name: _by_number(doc[name]) for name in ("maxima", "flows", "ages")}
        return Receipt(**{**doc, **numbered, "letters": tuple(doc["letters"])})


RecordPlace = tuple[str, str, int]
"""The place of a record: its source, the split as JSON, its number in the split."""


class EpochCounts(NamedTuple):
    """Records of one epoch."""

    rows: int = 0
    malformed: int = 0
    late: int = 0
    """Late records of all operators so far but the last one, whose own commit counts them."""


@dataclass(frozen=True, slots=True)
class EpochNotes:
    """Notes committed with a step. A driver that only repeats an epoch's output reads its counts from them."""

    epoch: EpochCounts = field(default_factory=EpochCounts)
    """Counts of this epoch, so far."""
    late: int = 0
    """Late records of all steps before this one: the commit of a step counts its own."""
    spark: str | None = None
    """What Spark needs to begin the epoch again (`driver/checkpoint.py`); None: from a release that did not keep it."""
    maxima: Mapping[int, Mapping[int, Clocks]] = field(default_factory=dict)
    """Greatest event time ever seen, and when the flow was last heard: by id of the operator, input and flow."""
    rows: int = 0
    malformed: int = 0
    """Malformed records of all epochs."""
    flush: bool = False
    """All input has ended: every window fires."""
    letters: tuple[str, ...] = ()
    """Files of dead letters that belong to this epoch."""
    ages: Counts = field(default_factory=dict)
    """Records of this epoch by their age when it was planned."""
    aside: tuple[RecordPlace, ...] = ()
    """Records of this epoch that are left out because each kills its task. A repeated read leaves them out, too."""
    origins: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By id of the operator: what its inputs read, a source or `@` and the id of an operator. Another program may have other
    inputs: flows of an input that is not read any more must not hold the watermark back."""
    failed: tuple[int, str] | None = None
    """A program, and why its half that is not written has failed: all further steps of that half are void."""

    def next_epoch(self, late: int, spark: str, live: Container[int] | None = None) -> EpochNotes:
        """Notes of the next epoch, before it has read anything. `late`: late records of the last step of this epoch.

        `live`: ids of operators whose event times may be needed; None: all.
        """
        begun = replace(
            self, epoch=EpochCounts(), late=self.late + late, spark=spark, flush=False, letters=(), ages={}, aside=()
        )
        if live is None or all(number in live for number in self.maxima):
            return begun
        origins = {number: read for number, read in self.origins.items() if number in live}
        return replace(begun, maxima={n: sides for n, sides in self.maxima.items() if n in live}, origins=origins)

    def next_operator(self, late: int) -> EpochNotes:
        """Notes of the next step in the same epoch. `late`: late records of this step."""
        return replace(self, epoch=self.epoch._replace(late=self.epoch.late + late), late=self.late + late)

    def add(
        self,
        operator: int,
        receipts: Sequence[Receipt],
        letters: Iterable[str],
        now: int = 0,
        idle: Mapping[int, int] | None = None,
        unlisted: Iterable[int] = (),
        origins: Sequence[str] = (),
        predecessor: int | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> EpochNotes:
        """The notes with the receipts of an operator's ingest. `operator`: its id; `predecessor`: before it was altered.

        `now`: when the epoch was planned. `idle`: timeouts by input, of inputs with a timeout. `unlisted`: inputs whose
        flows are named only by their records. `renamed`: origins by the names that they had before, of altered operators.
        """
        rows = sum(r.rows for r in receipts)
        malformed = sum(r.malformed for r in receipts)
        known = operator if operator in self.maxima or predecessor is None else predecessor
        were = tuple((renamed or {}).get(name, name) for name in self.origins.get(known, origins))
        clocks = self.maxima.get(known, {})
        if were != tuple(origins):
            same = {side for side, pair in enumerate(zip(were, origins, strict=False)) if pair[0] == pair[1]}
            clocks = {side: clocks[side] for side in clocks if side in same}
        mine = _advanced(clocks, receipts, now, idle or {}, unlisted)
        return replace(
            self,
            epoch=EpochCounts(self.epoch.rows + rows, self.epoch.malformed + malformed, self.epoch.late),
            maxima={**self.maxima, operator: mine},
            origins={**self.origins, operator: tuple(origins)} if origins else self.origins,
            rows=self.rows + rows,
            malformed=self.malformed + malformed,
            flush=self.flush or any(r.flush for r in receipts),
            letters=(*self.letters, *letters),
            ages=added((self.ages, *(r.ages for r in receipts))),
        )

    def without(self, aside: tuple[RecordPlace, ...]) -> EpochNotes:
        """The notes, with these records left out."""
        return replace(self, aside=aside)

    def failure(self, program: int) -> str:
        """Why the half of this program that is not written has failed; empty: it has not."""
        return self.failed[1] if self.failed is not None and self.failed[0] == program else ""

    def newest(self, operators: Sequence[int]) -> dict[int, int]:
        """By position: the greatest event time that sources have brought for an operator. `operators`: ids by position."""
        newest: dict[int, int] = {}
        for position, operator in enumerate(operators):
            sides = self.maxima.get(operator, {})
            times = [one.greatest for clocks in sides.values() for one in clocks.values() if one.greatest is not None]
            if times:
                newest[position] = max(times)
        return newest

    def dump(self) -> bytes:
        """JSON, as it is committed."""
        maxima = {operator: {i: _wire(c) for i, c in sides.items()} for operator, sides in self.maxima.items()}
        doc = {**asdict(self), "maxima": maxima}
        for name in ("ages", "aside", "origins", "failed"):
            if not doc[name]:
                del doc[name]  # as in releases without these fields
        return json.dumps(doc, separators=(",", ":")).encode()

    @staticmethod
    def load(meta: bytes) -> EpochNotes:
        """Inverse of dump, also for notes of another release; b'' before the first commit."""
        doc = known(EpochNotes, json.loads(meta)) if meta else {}
        doc["epoch"] = EpochCounts(*doc.get("epoch", ()))
        doc["maxima"] = {
            int(operator): {side: _clocks(wire) for side, wire in _by_number(sides).items()}
            for operator, sides in doc.get("maxima", {}).items()
        }
        doc["aside"] = tuple((source, split, number) for source, split, number in doc.get("aside", ()))
        doc["failed"] = (doc["failed"][0], doc["failed"][1]) if doc.get("failed") else None
        doc["origins"] = {operator: tuple(read) for operator, read in _by_number(doc.get("origins", {})).items()}
        return EpochNotes(**{**doc, "letters": tuple(doc.get("letters", ())), "ages": _by_number(doc.get("ages", {}))})


def _advanced(
    before: Mapping[int, Clocks],
    receipts: Sequence[Receipt],
    now: int,
    idle: Mapping[int, int],
    unlisted: Iterable[int],
) -> dict[int, Clocks]:
    """Clocks of the flows by input, after these receipts; unknown inputs are left out."""
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
    """A flow without an idle timeout is a bare number, as in releases without idle timeouts."""
    if clocks.keys() == {""} and clocks[""].heard is None:
        return clocks[""].greatest
    return clocks


def _clocks(wire: Any) -> Clocks:
    if isinstance(wire, dict):
        return {flow: FlowClock(*clock) for flow, clock in wire.items()}
    return {"": FlowClock(wire)}


def _by_number(doc: Mapping[str, Any]) -> dict[int, Any]:
    """A map with numbers as keys, from JSON, which makes texts of them."""
    return {int(key): value for key, value in doc.items()}
