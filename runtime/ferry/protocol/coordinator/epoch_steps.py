"""The steps of an epoch: ingest, prepare, commit, and at its end the rows for the sinks."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Step
from ferry.protocol.coordinator import io
from ferry.protocol.coordinator.attempts import Attempts
from ferry.protocol.coordinator.checkpoints import Checkpointing
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.moves import Moves
from ferry.protocol.coordinator.state import DriverState


class EpochSteps:
    """The step under way, from its ingest to its rows. Steps of one epoch follow each other without a look at the table."""

    def __init__(
        self, driver: DriverState, commits: Commits, attempts: Attempts, moves: Moves, checkpoints: Checkpointing
    ) -> None:
        self.driver = driver
        self._commits = commits
        self._attempts = attempts
        self._moves = moves
        self._checkpoints = checkpoints

    def is_first_step(self, epoch: int) -> bool:
        """Whether this epoch begins now with its first operator, so that the table may change before it.

        Otherwise the epoch goes on where it was: with the rows of its last step, or the ingest of the next one. An epoch
        that does not follow the committed one halts the driver.
        """
        at, following, committed = self._commits.at, self._commits.following, self._commits.committed
        if epoch == at.epoch and following.epoch != at.epoch and committed is not None:
            self._read()
        elif epoch != following.epoch:
            where = f"Spark begins epoch {epoch}, the state is committed up to {at}: "
            self.driver.halt(
                "lost-epoch", where + "the checkpoint directory and the state directory do not belong together"
            )
        elif following.operator:
            self._ingest(following)
        else:
            return True
        return False

    def hold(self) -> None:
        """Let the epoch wait for the journal: the members have nothing to do meanwhile."""
        self._commits.end()
        self._attempts.code.over()
        self.driver.enter(io.Phase.HOLD)

    def begin(self) -> None:
        """Begin the epoch unless it has to wait."""
        if self._moves.holds_epochs():
            self._commits.send_last()
        elif not self._checkpoints.holds:
            self._ingest(self._commits.following)

    def begin_again(self) -> None:
        """The program of the epoch was taken back. No copy comes in sync now: its first Prepare was sent."""
        self._ingest(self._commits.following)

    def _ingest(self, step: Step, failed: str = "") -> None:
        self._commits.end()
        self._attempts.ingest(step, failed)

    def ingested(self, event: io.Ingested) -> None:
        """The ingest job of a step has ended."""
        if self._attempts.is_ingesting(event.step, event.run):
            self._attempts.was_ingested(event)

    def ingest_failed(self, event: io.IngestFailed) -> None:
        """The ingest job of a step has failed."""
        if self._attempts.is_ingesting(event.step, event.run):
            self.again("the ingest job failed")

    def again(self, why: str, failed: str = "") -> None:
        """Run the ingest of the step under way again; `failed`: see `StartIngest`."""
        assert self.driver.step is not None
        self.driver.note("ingest-again", why)
        self._ingest(self.driver.step, failed)

    def prepare(self) -> None:
        """Begin an attempt under the present table."""
        if why := self._attempts.unusable():
            self.again(why)
        else:
            self._attempts.prepare()

    def fragments_gone(self, event: m.FragmentsGone) -> None:
        """A helper has lost its staged fragments."""
        if self._attempts.is_now(event.step, event.attempt):
            self.again(f"{event.helper} does not have its fragments any more")

    def step_committed(self) -> None:
        """Every member has applied the step: the next step of the epoch, or its rows."""
        self._commits.finish()
        if self._commits.following.operator == 0:
            self._read()
        else:
            self._ingest(self._commits.following)

    def _read(self) -> None:
        """Give the fired rows to the sinks."""
        assert self._commits.committed is not None
        self.driver.step = self._commits.committed.step
        self.driver.enter(io.Phase.READ)
        self._emit(self.driver.step)

    def _emit(self, step: Step) -> None:
        self.driver.do(io.Emit(step, self._commits.rows(), self._commits.meta))

    def read_failed(self, event: io.ReadFailed) -> None:
        """The sinks could not read the rows: they may be at other instances by now."""
        if self.driver.phase is io.Phase.READ and event.step == self.driver.step:
            self._emit(event.step)

    def ended(self, event: io.EpochEnded) -> None:
        """The sinks have the rows of the epoch."""
        step = self.driver.step
        if self.driver.phase is io.Phase.READ and step is not None and event.epoch == step.epoch:
            self.driver.enter(io.Phase.IDLE)
