"""The autoscaler of a run on this machine: it calls `control.autoscaling`, and keeps the history between two calls.

Workers here are processes that share the machine: the number of workers does not change the cores for tasks.
"""

from __future__ import annotations

from collections.abc import Callable

from ferry_operator.control import autoscaling
from ferry_operator.control.commands import Command
from ferry_operator.control.observed import Observed
from ferry_operator.control.scaling_sizes import ScalingPolicy
from ferry_operator.job.models_autoscale import AutoscaleReport


class LocalAutoscaler:
    """The autoscaler of one run. `policy`: None: the run has no autoscaling."""

    def __init__(self, policy: ScalingPolicy | None) -> None:
        self._policy = policy
        self._history: autoscaling.History | None = None
        self.report: AutoscaleReport | None = None
        """the last decision"""

    @property
    def on(self) -> bool:
        """Whether the run has autoscaling."""
        return self._policy is not None

    def due(self, observed: Observed, now: float, note: Callable[[str], None]) -> list[Command]:
        """The commands of one look, like commands of a user. `now`: seconds of a monotonic clock.

        `note`: writes a line of the timeline.
        """
        if self._policy is None:
            return []
        work = observed.status.load.work if observed.status is not None else None
        hold = autoscaling.held_up(observed)
        advice, self._history = autoscaling.advise(self._policy, observed.wanted.size, work, hold, self._history, now)
        self.report = advice.report
        if advice.report.reason in autoscaling.CHANGES:
            note(f"{'autoscale' if advice.acts else 'advice'}: {advice.report.message}")
        return [Command("workers", advice.target.workers)] if advice.acts else []
