"""The outcome of a move when a process fails during the move: (table before and after) x victim x moment.

    python -m tests.sim.matrix >docs/handover-matrix.md

Each cell is simulated with several seeds: other delays, other records, epochs of both kinds. Every run must write each row
to the sinks once (`checks`), and must end with the planned table; the cell lists the events on the way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ferry.contract.names import CommitId, InstanceId, Term
from ferry.contract.plans import Placement, Plan
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as dcore
from tests.sim import data
from tests.sim.driver import Driver
from tests.sim.events import Weather
from tests.sim.faults import Scenario
from tests.sim.host import Host
from tests.sim.world import World

SEEDS = 6
GIVEN_MS = 60
"""Time of the plan: epochs are running."""
BACK_MS = 40
"""Time until a victim is back, with its files; for the journal five times that."""


def placed(*workers: int) -> Placement:
    return tuple(InstanceId(f"{w}.0") for w in workers)


@dataclass(frozen=True)
class Case:
    """A move of virtual node 0; virtual node 1 stays on workers 1 and 0."""

    what: str
    before: Placement
    after: Placement
    warm: bool = True


CASES = (
    Case("Another worker leads", placed(0, 1), placed(2, 1)),
    Case("Another worker leads, cold", placed(0, 1), placed(2, 1), warm=False),
    Case("Another worker leads, no replicas", placed(0), placed(2)),
    Case("The replica leads", placed(0, 1), placed(1, 0)),
    Case("All copies go elsewhere (a worker is emptied)", placed(0, 1), placed(2, 3)),
    Case("The replica is elsewhere", placed(0, 1), placed(0, 2)),
    Case("A further copy", placed(0, 1), placed(0, 1, 2)),
)

MOMENTS = {
    "given": "the plan is given",
    "joining": "the copy is to begin: on its way to the journal",
    "joined": "the copy begins: journaled",
    "loading": "a part of the copy is there",
    "syncing": "the copy is whole: on its way to the journal",
    "synced": "the copy is whole: journaled",
    "switching": "the new leader: on its way to the journal",
    "switched": "the new leader: journaled, not yet announced",
    "computing": "the new leader computes its first epoch",
    "committing": "the next epoch is committed, not yet announced",
    "letting go": "the former member is let go: on its way to the journal",
    "let go": "the former member is let go: journaled",
}

VICTIMS = {
    "old": "old leader",
    "replica": "replica",
    "new": "new member",
    "files": "new member and its files",
    "driver": "driver",
    "both": "driver and old leader",
    "journal": "journal, for a while",
}


class Struck(World):
    """A simulated cluster in which a victim fails at a moment."""

    hit: dict[str, Placement]
    """By victim: the instances that fail."""

    def __init__(self, victim: str, moment: str, seed: int, **scenario: Any) -> None:
        self.victim, self.moment = victim, moment
        self.struck, self.ends = False, 0
        self.facts: dict[str, bool] = {}
        self.attempts: list[CommitId] = []
        """Attempts before the fault."""
        drawn = {
            "graph": (data.Node((data.SOURCE,), False),), "vnodes": 2, "workers": 4, "spare": 0, "per_worker": 1, "replicas": 1,
            "epochs": 8, "keys": 8, "splits": 2, "varied": bool(seed % 2), "weather": Weather(slow=0.0), "faults": [],
            "desired": [GIVEN_MS], "batch": 1, "attempt_ms": 250, "fenced_sink": False, "pulses": False, "disasters": [],
            "checkpoint_ms": 90, "keep": 1, "continuous": seed % 2 == 0, "losing": False,
        }  # fmt: skip
        super().__init__(seed, scenario=Scenario(**{**drawn, **scenario}))
        self.settings = replace(self.settings, plan_ms=1_800_000)

    def quiet(self) -> bool:
        return super().quiet() and self.clock.now > self.ends

    def reached(self, moment: str) -> None:
        if self.struck or moment != self.moment:
            return
        self.struck, self.ends = True, self.clock.now + 10 * BACK_MS
        self.attempts = list(self.checks.prepares)
        for name in self.hit.get(self.victim, ()):
            host = self.hosts[name]
            if not host.alive or (self.victim == "files" and not self.may_lose(host)):
                self.facts["spared"] = True
                continue
            if self.victim == "files":
                host.lost_at = self.clock.now
            self.after(BACK_MS, self.start, name)
            self.crash(host)
        if self.victim in ("driver", "both") and self.driver is not None:
            self.kill_driver(self.driver)
        if self.victim == "journal" and self.driver is not None:
            self.journal_up = False
            self.after(1, self.driver.take, dcore.JournalReachable(False))
            self.after(5 * BACK_MS, self.journal_back)

    def again(self) -> bool:
        """Whether a step had another attempt because of the fault."""
        again = [one for one in self.checks.prepares if one not in self.attempts]
        steps = [one.step for one in (*again, *self.attempts)]
        return any(steps.count(one.step) > 1 for one in again)

    def found(self) -> dict[str, bool]:
        """The events in words. Raises Violation or Livelock, or AssertionError if the run ended in a wrong way."""
        raise NotImplementedError


class Played(Struck):
    """One cell with one seed."""

    def __init__(self, case: Case, victim: str, moment: str, seed: int) -> None:
        self.case, self.switched, self.copies = case, False, 0
        super().__init__(victim, moment, seed)
        self.counts = {"LoadChunk": 0, "Compute": 0}  # effects before which `before` is called
        new = [i for i in case.after if i not in case.before] or [case.after[0]]
        self.hit = {
            "old": case.before[:1],
            "replica": case.before[1:2],
            "new": new[:1],
            "files": new[:1],
            "both": case.before[:1],
        }

    def first_table(self) -> Table:
        groups = Group(Term(0, 0), self.case.before), Group(Term(0, 0), placed(1, 0))
        return Table(Version(0, 0), groups, initial=True)

    def desire(self, number: int) -> None:
        self.desired = self.plans[number] = Plan(number, (self.case.after, placed(1, 0)), warm=self.case.warm)
        if self.driver is not None:
            self.driver.take(self.desired)
        self.reached("given")

    # ---- moments
    def journal_write(self, driver: Driver, effect: dcore.Journal) -> None:
        before = self.journal
        kinds = list(self.kinds(before, effect.table)) if before is not None and self.desired is not None else []
        for on_its_way, _ in kinds:
            self.reached(on_its_way)
        super().journal_write(driver, effect)
        if before is not self.journal and self.journal is effect.table and before is not None:
            self.remember(before, effect.table)
            for _, written in kinds:
                self.reached(written)

    def kinds(self, before: Table | None, table: Table) -> Iterator[tuple[str, str]]:
        assert before is not None
        old, new = before.groups[0], table.groups[0]
        if any(i not in old.members for i in new.learners):
            yield "joining", "joined"
        if any(i in old.learners for i in new.in_sync):
            yield "syncing", "synced"
        if old.leader != new.leader == self.case.after[0]:
            yield "switching", "switched"
        if (
            any(i not in new.members and i not in self.case.after for i in old.in_sync)
            and new.leader == self.case.after[0]
        ):
            yield "letting go", "let go"

    def before(self, kind: str, who: Any) -> str:
        if self.desired is not None:
            if kind == "LoadChunk":
                self.after(0, self.reached, "loading")
            elif self.switched and kind == "Compute" and isinstance(who, Host) and who.name == self.case.after[0]:
                self.after(0, self.reached, "computing")
            elif self.switched and kind == "DCommit":
                self.reached("committing")
        return "dead" if isinstance(who, Driver) and not who.alive else super().before(kind, who)

    # ---- what happened
    def remember(self, before: Table, table: Table) -> None:
        old, new = before.groups[0], table.groups[0]
        self.switched |= new.leader == self.case.after[0]
        self.copies += sum(i not in old.members for i in new.learners)
        if not self.struck:
            return
        if old.leader != new.leader and new.leader != self.case.after[0]:
            self.facts[f"{new.leader} leads"] = True
        for i in self.case.after:
            if i in old.in_sync and i not in new.in_sync:
                self.facts[f"{i} out, in"] = True

    def found(self) -> dict[str, bool]:
        assert self.run() == "finished", self.done
        assert self.journal is not None
        ends = self.journal.groups[0]
        as_wanted = ends.leader == self.case.after[0] and sorted(ends.in_sync) == sorted(self.case.after)
        assert as_wanted and not ends.learners, f"it ends with {ends}"
        fresh = sum(i not in self.case.before for i in self.case.after)
        if self.copies > fresh:
            self.facts["copy anew"] = True
        if self.again():
            self.facts["again"] = True
        return self.facts


def cell(case: Any, victim: str, moment: str, play: Callable[[Any, str, str, int], Struck] = Played) -> str:
    """The events of all seeds; in brackets: of some seeds."""
    played = [play(case, victim, moment, seed) for seed in range(SEEDS)]
    if not all(world.hit.get(victim, True) for world in played):
        return "-"
    found = []
    for world in played:
        try:
            found.append(world.found())
        except AssertionError as error:
            raise AssertionError(f"{case.what}; {victim}; {moment}; seed {world.seed}: {error}") from error
    there = [facts for facts, world in zip(found, played) if world.struck and "spared" not in facts]
    if not there:
        return "-"
    words = dict.fromkeys(word for facts in there for word in facts)
    shown = [word if all(word in facts for facts in there) else f"({word})" for word in sorted(words)]
    return "; ".join(shown) or "as planned"


HEAD = """\
# The outcome of a move when a process fails during the move

Generated by `python -m tests.sim.matrix`, and checked by `make sim`: every cell is played {seeds} times in the simulated cluster (other delays and records, both kinds of epochs), {plays:,} plays in
all. In every one of them the sinks got every row once, and the move ended as planned. A cell lists the events on the way; brackets mean in some plays only:

| | |
|---|---|
| as planned | the failure has no visible effect |
| again | an epoch had another attempt: all results of the first attempt were dropped, and the rows went to the sinks once |
| 1.0 leads | meanwhile, because the planned leader is away or has no copy |
| copy anew | a copy was begun a second time |
| 1.0 out, in | the instance left the group and joined it again |
| - | the move has no such moment, or no such process |

A failed process is back after {back} ms, with its files unless the column says otherwise, the journal after {journal} ms; [The design](design.md) explains failures without a return. Virtual nodes are
written as leader, replicas.
"""


def rows() -> Iterator[str]:
    """The lines of the page."""
    tables, plays = list[list[str]](), 0
    for case in CASES:
        table = [[cell(case, victim, moment) for victim in VICTIMS] for moment in MOMENTS]
        plays += SEEDS * sum(one != "-" for cells in table for one in cells)
        tables.append([
            f"| {text} | {' | '.join(cells)} |"
            for text, cells in zip(MOMENTS.values(), table, strict=True)
            if any(one != "-" for one in cells)
        ])  # fmt: skip
    yield from HEAD.format(seeds=SEEDS, plays=plays, back=BACK_MS, journal=5 * BACK_MS).splitlines()
    for case, lines in zip(CASES, tables, strict=True):
        yield ""
        yield f"## {case.what}: {words(case.before)} becomes {words(case.after)}"
        yield ""
        yield f"| when | {' | '.join(VICTIMS.values())} |"
        yield "|---" * (1 + len(VICTIMS)) + "|"
        yield from lines


def words(placement: Sequence[InstanceId]) -> str:
    return f"({', '.join(placement)})"


def main() -> None:
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
