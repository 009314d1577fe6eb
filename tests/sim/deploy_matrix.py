"""The outcome of a deploy when a process fails during the deploy: change of the program x victim x moment.

    python -m tests.sim.deploy_matrix >docs/deploy-matrix.md

Cells are played as in `tests.sim.matrix`. Every run must write each row of the program of its epoch to the sinks once
(`checks`), and must end with the deployed program. The page ends with what the simulation does not have, and its tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ferry.contract import messages as m
from ferry.contract.names import Term
from ferry.contract.plans import Plan
from ferry.contract.programs import first_program
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as dcore
from tests.sim import data
from tests.sim.driver import Driver
from tests.sim.events import Dice
from tests.sim.host import Host
from tests.sim.matrix import GIVEN_MS, SEEDS, Struck, cell, placed

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (data.SOURCE,)
COUNTS, MORE, WIDER, COPY = (
    data.Node(SOURCE, False, 0),
    data.Node((0,), False, 1),
    data.Node((0,), False, 3, 1),
    data.Node(SOURCE, False, 4, 0),
)
"""The ids give altered operators windows of the same size (`data.size_of`)."""


@dataclass(frozen=True)
class Change:
    """A deploy of the last one of these programs, each with operators in their order."""

    what: str
    programs: tuple[data.Graph, ...]


CASES = (
    Change("An operator more", ((COUNTS,), (COUNTS, MORE))),
    Change("An operator less", ((COUNTS, MORE), (COUNTS,))),
    Change("An altered operator: its state is derived before the switch", ((COUNTS, MORE), (COUNTS, WIDER))),
    Change("A program beside the one in force (`--shadow`, `--keep`)", ((COUNTS,), (COPY, COUNTS))),
    Change("The new half goes on alone (a verdict, the end of `--keep`)", ((COUNTS,), (COPY, COUNTS), (COPY,))),
    Change("The old half goes on alone (a verdict, a rollback, a failure)", ((COUNTS,), (COPY, COUNTS), (COUNTS,))),
)

MOMENTS = {
    "asked": "the coordinator has the deploy",
    "loading": "an instance loads the program",
    "loaded": "the first instance has loaded it",
    "switching": "the switch is on its way to the journal",
    "switched": "the switch is journaled, not yet announced",
    "computing": "a leader computes the first step",
    "committing": "the first step is decided, not yet announced",
    "committed": "the first step is applied by an instance",
    "writing": "rows of the first epoch go to the sinks",
}

VICTIMS = {
    "leader": "leader",
    "files": "leader and its files",
    "replica": "replica",
    "learner": "learner of a move that began with the deploy",
    "helper": "worker without state",
    "driver": "driver",
    "both": "driver and leader",
    "journal": "journal, for a while",
}


class Steady(Dice):
    """No instance refuses a program, and nobody withdraws it."""

    def random(self) -> float:
        return 0.4 + 0.4 * super().random()


class Deployed(Struck):
    """One cell with one seed."""

    def __init__(self, case: Change, victim: str, moment: str, seed: int) -> None:
        self.case, self.last, self.asked = case, len(case.programs), 0
        times = [20, GIVEN_MS] if self.last == 3 else [GIVEN_MS]
        super().__init__(
            victim,
            moment,
            seed,
            graph=case.programs[0],
            deploys=tuple(zip(times, case.programs[1:], strict=True)),
            desired=[GIVEN_MS] if victim == "learner" else [],
            epochs=24,
        )
        self.programs, self.code_fails = Steady(f"loads/{seed}"), 0.0
        self.counts = {"Compute": 0, "Apply": 0}  # effects before which `before` is called
        leader, helper = placed(0), placed(3)
        self.hit = {
            "leader": leader, "files": leader, "both": leader, "replica": placed(1), "learner": placed(2), "helper": helper,
        }  # fmt: skip

    def first_table(self) -> Table:
        groups = Group(Term(0, 0), placed(0, 1)), Group(Term(0, 0), placed(1, 0))
        return Table(Version(0, 0), groups, initial=True, programs=first_program(len(self.case.programs[0])))

    def desire(self, number: int) -> None:
        self.desired = self.plans[number] = Plan(number, (placed(0, 1, 2), placed(1, 0)))
        if self.driver is not None:
            self.driver.take(self.desired)

    def quiet(self) -> bool:
        return super().quiet() and self.journal is not None and self.journal.programs[-1].number == self.last

    # ---- moments
    def deploy(self, number: int = 0) -> None:
        driver, newest = self.driver, 0 if self.journal is None else self.journal.programs[-1].number
        asks = max(self.wanted, number) == self.last > newest and driver is not None and driver.ready
        self.asked += asks
        super().deploy(number)
        if asks:
            self.reached("asked")

    def journal_write(self, driver: Driver, effect: dcore.Journal) -> None:
        switches = effect.table.programs[-1].number == self.last and self.last not in self.since
        if switches:
            self.reached("switching")
        super().journal_write(driver, effect)
        if switches and self.journal is effect.table:
            self.reached("switched")

    def before(self, kind: str, who: Any) -> str:
        first = self.since.get(self.last)
        if isinstance(who, Host) and who.name == placed(0)[0] and first is not None:
            step = who.core.participation.prepare
            if kind == "Compute" and step is not None and step.step.epoch == first:
                self.after(0, self.reached, "computing")
            elif kind == "Apply" and self.driver is not None and self.driver.core.driver.step.epoch == first:
                self.after(0, self.reached, "committed")
        elif kind == "DLoadProgram" and self.wanted == self.last:
            self.reached("loading")
        elif isinstance(who, Driver) and first is not None and who.core.driver.step is not None:
            if kind == "DCommit" and who.core.driver.step.epoch == first:
                self.reached("committing")
            elif kind == "DSink" and who.core.driver.step.epoch == first:
                self.reached("writing")
        return "dead" if isinstance(who, Driver) and not who.alive else super().before(kind, who)

    def to_driver(self, host: Host, kind: str, message: Any, *more: Any) -> None:
        super().to_driver(host, kind, message, *more)
        if isinstance(message, m.ProgramLoaded) and message.number == self.last:
            self.reached("loaded")

    # ---- what happened
    def found(self) -> dict[str, bool]:
        assert self.run() == "finished", self.done
        assert self.journal is not None
        assert self.journal.programs[-1].number == self.last, f"it ends with {self.journal.programs}"
        if self.asked > 1:
            self.facts["asked again"] = True
        if self.again():
            self.facts["again"] = True
        return self.facts


HEAD = """\
# The outcome of a deploy when a process fails during the deploy

Generated by `python -m tests.sim.deploy_matrix`, and checked by `make sim`: every cell is played {seeds} times in the simulated cluster, as for [a move](handover-matrix.md), {plays:,} plays in all. In every
one of them each epoch was of one program, the sinks got every row of it once, and the deployed program was in force in the end. A cell lists the events on the way; brackets mean in some plays only:

| | |
|---|---|
| as planned | the failure has no visible effect |
| again | a step had another attempt: all results of the first attempt were dropped, and the rows went to the sinks once |
| asked again | the next driver found the program in the journal, and had all instances load it once more |
| - | the deploy has no such moment, or no such process |

Until the switch is journaled, the journal knows only that the program is wanted, and the next driver has it loaded again; afterwards the epoch is of the new program, whichever driver finishes it. Processes come back as for a move.
"""

TESTS = "## Failures outside of the simulation"

CLUSTER, UNIT, KUBE = "tests/cluster/test_", "tests/unit/driver/test_", "tests/kube/test_"
FUZZ = "python -m tests.cluster.fuzz --deploys"

REAL = (
    ("the process that checks a program", "it is killed, exits, or raises", "the deploy is refused", f"{CLUSTER}deploys.py::test_a_refused_program_is_an_answer_and_the_job_goes_on"),
    ("driver", "requested, not yet journaled", "the program is unknown, and `ferry deploy` says so", FUZZ),
    ("driver", "journaled as wanted", "the next driver loads it and deploys it", f"{UNIT}deploys.py::test_the_next_driver_goes_on_with_a_wanted_program"),
    ("driver", "switched, but the outcome is not journaled", "the next driver takes the first epoch from the table", f"{UNIT}beginning.py::test_a_deploy_whose_driver_died_at_the_switch_is_known_to_be_in_force"),
    ("driver, at each stage of an epoch and at any time", "every phase", "each epoch has one program", FUZZ),
    ("driver", "after the switch", "it goes on with the new program", f"{CLUSTER}deploys.py::test_programs_change_while_workers_and_drivers_die"),
    ("driver", "open windows of removed operators fire", "they fire once", f"{CLUSTER}deploys.py::test_open_windows_of_a_removed_operator_fire_once"),
    ("driver", "sources come or go", "a source goes on where it ended", f"{CLUSTER}deploys.py::test_sources_come_and_go_and_a_source_that_returns_goes_on"),
    ("driver", "a shadow runs", "the comparison begins again", f"{CLUSTER}shadow.py::test_a_shadow_goes_on_alone_if_no_row_differs_and_else_leaves_no_trace"),
    ("driver", "code of a shadow has just failed", "the next driver ends the shadow", f"{CLUSTER}shadow.py::test_code_that_fails_in_the_program_that_is_not_written_ends_only_that_program"),
    ("drivers, three in a row", "a program on probation, nothing of it is committed", "it is refused", f"{CLUSTER}probation.py::test_a_program_that_kills_each_driver_is_given_up"),
    ("drivers, three in a row", "a program on probation, later", "the next driver goes back to the program before", f"{CLUSTER}probation.py::test_the_job_goes_back_from_a_committed_program_of_which_three_drivers_die"),
    ("driver", "the first epoch of a program whose sinks do not open, or whose functions fail", "the next driver takes the program back", f"{CLUSTER}probation.py::test_a_program_that_cannot_begin_is_taken_back_though_its_driver_dies_in_its_first_epoch"),
    ("drivers, three in a row, and one more", "the way back is journaled, or another program is wanted", "the next driver begins no epoch of the program before the switch", f"{UNIT}going_back.py::test_no_epoch_of_a_program_that_drivers_die_of_begins_before_the_next_one_has_tasks"),
    ("driver with a standby", "a standby of the program before", "it begins anew, with the program in force", f"{UNIT}beginning.py::test_a_standby_with_the_program_of_yesterday_does_not_take_over"),
    ("driver with a standby, at any time", "every phase", "each epoch has one program", FUZZ),
    ("worker", "after the switch", "it comes back with the program of the table", f"{CLUSTER}deploys.py::test_programs_change_while_workers_and_drivers_die"),
    ("worker or instance, at any time", "every phase", "each epoch has one program", FUZZ),
    ("worker", "just after the switch to altered state", "a replica leads, with the state that it has derived itself", f"{CLUSTER}deploys.py::test_columns_come_and_go_while_the_state_stays"),
    ("worker", "a shadow runs", "nothing differs", f"{CLUSTER}shadow.py::test_a_shadow_goes_on_alone_if_no_row_differs_and_else_leaves_no_trace"),
    ("worker", "a program is kept", "a rollback still finds all state", f"{CLUSTER}shadow.py::test_a_rollback_to_a_kept_program_equals_never_having_deployed"),
    ("instance that has not loaded the program", "switched", "it reads the program in the registry", "tests/unit/sidecar/test_programs.py::test_a_table_that_names_an_unknown_program_is_looked_up"),
    ("all state", "every phase", "the newest checkpoint is restored with its program; a wanted program is compared anew", FUZZ),
    ("all state", "a shadow or a kept program runs", "the written half goes on, the state of the other half goes", f"{UNIT}restoring.py::test_after_a_restore_of_two_programs_side_by_side_the_state_of_the_silent_half_goes"),
    ("all state", "the job had gone on with one of two programs", "it does so again; a later program is refused", f"{UNIT}requests_at_a_bad_time.py::test_a_job_that_is_back_at_two_programs_goes_on_with_the_half_that_it_had_gone_on_with"),
    ("all state", "a program is loaded, or was in force after the checkpoint", "its new operators have no state to return with", f"{UNIT}requests_at_a_bad_time.py::test_an_operator_of_a_lost_program_begins_anew_after_a_restore"),
    ("Redis, for 5 s (registry, and journal on one machine)", "requested, loading, switching", "the deploy waits, and goes on", f"{CLUSTER}deploys.py::test_a_deploy_outlasts_an_absence_of_redis"),
    ("API server (journal on Kubernetes), for 15 s", "requested, loading, switching", "epochs go on, and the switch waits", "tests/kube/test_deploys.py::test_a_deploy_outlasts_the_api_server_and_is_taken_back_with_its_state"),
    ("operator on Kubernetes", "every phase", "its next look compares the spec with the report of the driver", "tests/unit/kube/test_programs.py::test_what_the_driver_is_asked"),
    ("a new sink refuses, or is away", "the first epoch waits for it", "the program is taken back", f"{UNIT}deploys.py::test_sinks_that_refuse_or_are_away_take_their_program_back"),
    ("a task that runs code of the program", "the first epoch", "Spark repeats it", f"{CLUSTER}deploys.py::test_a_task_that_dies_in_the_first_epoch_is_repeated"),
    ("a task or an instance that runs silent code", "a shadow or a kept program runs", "the silent half ends", f"{CLUSTER}shadow.py::test_code_that_fails_in_the_program_that_is_not_written_ends_only_that_program"),
)  # fmt: skip
"""Of real processes: what is gone, in which phase, what happens, and the test."""


def rows() -> Iterator[str]:
    """The lines of the page."""
    tables, plays = list[list[str]](), 0
    for case in CASES:
        table = [[cell(case, victim, moment, Deployed) for victim in VICTIMS] for moment in MOMENTS]
        plays += SEEDS * sum(one != "-" for cells in table for one in cells)
        tables.append([
            f"| {text} | {' | '.join(cells)} |"
            for text, cells in zip(MOMENTS.values(), table, strict=True)
            if any(one != "-" for one in cells)
        ])  # fmt: skip
    yield from HEAD.format(seeds=SEEDS, plays=plays).splitlines()
    for case, lines in zip(CASES, tables, strict=True):
        yield from ("", f"## {case.what}", "", f"| when | {' | '.join(VICTIMS.values())} |")
        yield "|---" * (1 + len(VICTIMS)) + "|"
        yield from lines
    yield from ("", TESTS, "", "| what is gone | when | what happens | shown by |", "|---|---|---|---|")
    for what, when, then, test in REAL:
        yield f"| {what} | {when} | {then} | {f'`{test}`' if test else 'not tested'} |"


def missing() -> list[str]:
    """Tests on the page that do not exist."""
    named = [test.split("::") for *_, test in REAL if "::" in test]
    return [
        f"{file}::{name}" for file, name in named if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M)
    ]


def main() -> None:
    for row in rows():
        print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
