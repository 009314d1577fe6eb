"""A deploy: another program from an epoch on. All instances load it first, so that the switch costs one journal write.

    Deploy --> LoadProgram to all ... ProgramLoaded by all --> an epoch begins --> journal --> Install --> Deployed
                   '-- an error, or a deadline: Deployed with the reason; nothing has changed
    Withdraw, and no step of the program is decided --> journal --> Install --> the epoch begins again, with the old program

Everything before the journal write is in memory only: a new driver gets the Deploy again. Once the journal has the program,
the epoch is of this program, whichever driver finishes it.
"""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.programs import Programs, program_at
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.io import Deploy, Deployed, Phase, Withdraw
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.state import DriverState


class Deploying:
    """The deploy under way."""

    def __init__(self, driver: DriverState, journaling: Journaling, members: Membership, commits: Commits) -> None:
        self._driver = driver
        self._journaling = journaling
        self._members = members
        self._commits = commits
        self.wanted: Deploy | None = None
        """The program that is loaded, or waits for its epoch."""
        self.taken_back: Withdraw | None = None
        """The program in force that is to be taken back."""
        self.stays = 0
        """Number of a program that cannot be taken back: the job has no text of the program before it."""
        self._loaded: dict[InstanceId, bool] = {}
        self._since = 0
        self._asked_at = 0

    def deploy(self, event: Deploy) -> None:
        """Have all instances load a program. It replaces a deploy under way, unless the journal is getting that one."""
        newest = self._journaling.table.programs[-1].number
        if self.taken_back is not None and self.taken_back.number == event.number:
            return  # The table without it tells the outcome.
        if event.number <= newest:
            self._driver.do(Deployed(event.number, "" if event.number == newest else f"program {newest} is in force"))
            return
        if self._is_written():
            assert self.wanted is not None
            if event.number != self.wanted.number:
                self._driver.do(Deployed(event.number, f"program {self.wanted.number} begins now: deploy it again"))
            return
        if self.wanted is not None and self.wanted.number != event.number:
            self._refuse(f"program {event.number} was deployed instead")
        self.wanted, self._loaded, self._since = event, {}, self._driver.now
        if self._is_outdated():
            return
        self._ask()

    def _is_written(self) -> bool:
        """Whether a table with the deployed program is on its way to the journal: the deploy cannot be given up."""
        writing = self._journaling.writing
        return writing is not None and self.wanted is not None and writing.programs[-1].number == self.wanted.number

    def _is_outdated(self) -> bool:
        """Refuse a program that was compared with another program than the one in force: that one was taken back."""
        newest = self._journaling.table.programs[-1].number
        if self.wanted is None or self.wanted.base in (0, newest):
            return False
        self._refuse(
            f"it was compared with program {self.wanted.base}, and program {newest} is in force: deploy it again"
        )
        return True

    def withdraw(self, event: Withdraw) -> None:
        """Give the deploy up. A program in force is taken back with the next table."""
        if self.wanted is not None and self.wanted.number == event.number:
            self._give_up(event.reason)
        elif self.may_take_back(event.number):
            self.taken_back = event

    def may_take_back(self, number: int) -> bool:
        """Whether a program in force can be taken back: no member has committed a step of it, nor has to."""
        programs, driver = self._journaling.table.programs, self._driver
        undecided = driver.phase not in (Phase.COMMIT, Phase.FINISH, Phase.READ) or not driver.rules.programs_kept
        return (
            len(programs) > 1
            and programs[-1].number == number != self.stays
            and (self._commits.at.epoch < programs[-1].since or not driver.rules.programs_kept)
            and undecided
        )

    def takes_back(self) -> bool:
        """Whether the next table takes the newest program back; the request ends when it is too late."""
        if self.taken_back is not None and not self.may_take_back(self.taken_back.number):
            self.taken_back = None
        return self.taken_back is not None and self._journaling.up

    def _ask(self) -> None:
        assert self.wanted is not None
        self._asked_at = self._driver.now
        for i in self._waited_for():
            self._driver.send(i, m.LoadProgram(self.wanted.number, self.wanted.program))

    def _waited_for(self) -> list[InstanceId]:
        return [i for i in self._members.alive if i not in self._loaded]

    def loaded(self, event: m.ProgramLoaded) -> None:
        """An instance has loaded the program, or cannot: then the program is refused."""
        if self.wanted is None or event.number != self.wanted.number:
            return
        if event.error:
            self._give_up(f"{event.instance}: {event.error}")
        else:
            self._loaded[event.instance] = True

    def forget(self, instance: InstanceId) -> None:
        """The instance's next life has to load it, too."""
        self._loaded.pop(instance, None)

    def tick(self) -> None:
        """Repeat the request to instances that have not answered; refuse after the deadline."""
        if self.wanted is None:
            return
        if not (waited_for := self._waited_for()):
            self._since = self._driver.now  # The deadline of an instance that comes later begins then.
            return
        settings = self._driver.settings
        if self._driver.now - self._since > settings.load_ms and not self.wanted.altered:  # State is derived for long.
            who = ", ".join(sorted(waited_for)[:4])
            self._give_up(f"it was not loaded after {settings.load_ms / 1000:.0f} s by {who} (of {len(waited_for)})")
        elif self._driver.now - self._asked_at > settings.load_again_ms:
            self._ask()

    def _give_up(self, why: str) -> None:
        """Refuse the deploy, or take the program back once the journal has it."""
        if self._is_written():
            assert self.wanted is not None
            self.taken_back = Withdraw(self.wanted.number, why)
        else:
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        assert self.wanted is not None
        self._driver.do(Deployed(self.wanted.number, why))
        for i in self._members.alive if self.wanted.altered else ():
            self._driver.send(i, m.LoadProgram(self.wanted.number, b"", given_up=True))
        self.wanted = None

    # ---- the switch
    def is_due(self, epoch: int) -> bool:
        """Whether this epoch, which has done nothing yet, is the first one of the program.

        A copy without a snapshot waits until the state from before its start has expired: what it skips is known of the
        operators in force only. Any copy waits for operators that are derived from operators which go on: a learner could
        not tell which rows of a chunk are older than the table.
        """
        if self.wanted is None or epoch < self.wanted.at or self._waited_for() or not self._journaling.up:
            return False
        if self.wanted.at_time is not None and self._commits.watermark < self.wanted.at_time:
            return False
        table, rules = self._journaling.table, self._driver.rules
        if len(table.programs) > 1 and self._commits.at.epoch < table.programs[-1].since:
            return False  # Its altered operators have no result yet, from which the next program could go on.
        copying = any(group.learners for group in table.groups) and rules.beside_alone
        return not table.at_window and not (copying and self.wanted.version(epoch).beside)

    def programs(self, epoch: int) -> Programs:
        """The programs of the next table: the present one until `epoch`, then the deployed one."""
        if self.taken_back is not None:
            return self._journaling.table.programs[:-1]
        assert self.wanted is not None
        since = epoch if self._driver.rules.programs_since_next else epoch - 1
        before = program_at(self._journaling.table.programs, epoch - 1)
        return (before, self.wanted.version(since))

    def in_force(self) -> None:
        """Another table is in force: if it has the deployed program, the deploy is over."""
        newest = self._journaling.table.programs[-1]
        if (back := self.taken_back) is not None and newest.number < back.number:
            self.taken_back = None
            self._driver.note("taken-back", f"program {back.number}: {back.reason}")
            self._driver.do(Deployed(back.number, back.reason))
            self._is_outdated()
        if self.wanted is not None and self.wanted.number == newest.number:
            self._driver.note("deployed", f"program {newest.number} is in force from epoch {newest.since} on")
            self._driver.do(Deployed(newest.number))
            self.wanted = None
