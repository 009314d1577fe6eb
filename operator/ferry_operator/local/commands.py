"""Commands of a run on this machine: scale, move, drain and kill, from users, the schedule or the autoscaler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ferry.contract.errors import Refusal
from ferry_operator.control.commands import Command, Schedule
from ferry_operator.local.cluster.local import LocalCluster
from ferry_operator.local.driver import StatusWatch
from ferry_operator.local.requested import RequestedState


class Commands:
    """Checks and executes commands.

    `note`: writes a line of the timeline. `is_ending`: whether the job refuses commands because it ends.
    """

    def __init__(
        self,
        requested: RequestedState,
        schedule: Schedule,
        cluster: LocalCluster,
        watch: StatusWatch,
        note: Callable[[str], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._requested = requested
        self._schedule = schedule
        self._cluster = cluster
        self._watch = watch
        self._note = note
        self._is_ending = is_ending

    def check(self, commands: Sequence[Command]) -> None:
        """Raise Refusal if one of the commands is impossible, or the job is ending."""
        if commands and self._is_ending():
            raise Refusal("the job is ending")
        for command in commands:
            self._requested.check(command, self._watch.latest(self._cluster.driver_pid()))

    def perform(self, commands: Sequence[Command]) -> None:
        """Execute all commands, or none if one of them is impossible. Raises Refusal."""
        self.check(commands)
        for command in commands:
            self._perform(command)

    def reach(self, epoch: int, stage: str) -> list[str]:
        """Execute the scheduled commands of a stage of an epoch. Returns a warning for each refused command."""
        warnings = []
        for command in self._schedule.due(epoch, stage):
            try:
                self.perform([command])
            except Refusal as error:
                warnings.append(f"--at epoch={epoch}:{stage} {command}: {error}")
                self._note(f"{command} refused: {error}")
        return warnings

    def _perform(self, command: Command) -> None:
        self.check([command])
        self._note(str(command))  # before the command: the time of a recovery begins here
        if self._requested.apply(command):
            return
        match command.kind:
            case "kill-worker":
                self._cluster.kill_worker(command.number)
            case "kill-instance":
                assert command.instance is not None
                self._cluster.kill_instance(*map(int, command.instance.split(".")))
            case _:
                assert command.kind == "kill-driver", command
                self._cluster.kill_driver()
                self._watch.forget()
