"""What a supervisor shows of a run: to the terminal it runs in (`RunView`), and to other ones (`describe`). Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry_operator.control.balancing import Advice
from ferry_operator.control.observed import Wanted, Worker
from ferry_operator.job.models_autoscale import AutoscaleReport
from ferry_operator.local.asked import Asked

Record = dict[str, Any]


@dataclass(slots=True)
class RunView:
    """One look at the run."""

    settings: RunSettings
    status: Status | None
    workers: tuple[Worker, ...]
    wanted: Wanted
    records: list[Record]
    """new ones of the timeline"""
    warnings: list[str] = field(default_factory=list)
    """new ones"""
    advice: Advice | None = None
    """what would be more even"""
    ends: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """by process: when it ended badly at last (seconds since 1970), and why"""
    silent: float | None = None
    """seconds since the driver has answered; None: this one has not yet"""
    ending: bool = False
    """all input is read, or the run is being stopped"""


def describe(view: RunView, phase: str, asked: Asked, autoscale: AutoscaleReport | None) -> Record:
    """The job as `GET /job` answers it."""
    how = view.wanted.handover
    return {
        "job": view.settings.job,
        "run": view.settings.run,
        "directory": view.settings.directory,
        "phase": phase,
        "spec": {
            **view.wanted.size.to_wire(),
            "replicas": view.wanted.replicas,
            "virtualNodes": view.settings.virtual_nodes,
            "handover": {
                "strategy": how.strategy,
                "batch": how.batch,
                "switchovers": how.switchovers,
                "gap": how.gap,
                "warm": how.warm,
                "atWindow": how.at_window,
                **({"bandwidth": str(view.wanted.bandwidth)} if view.wanted.bandwidth else {}),
                "atEpoch": how.at_epoch,
                "atEventTime": how.at_time,
                **({"deadline": f"{how.deadline_ms}ms"} if how.deadline_ms else {}),
            },
        },
        "events": view.settings.events,
        "checkpoints": view.settings.checkpoint.location if view.settings.checkpoint is not None else None,
        "drains": list(asked.drains),
        "pins": {str(vnode): instance for vnode, instance in sorted(asked.pins.items())},
        "plan": asked.described(view.settings.job),
        "autoscale": autoscale.to_wire() if autoscale is not None else None,
        "balance": _balance(view),
        "silent": view.silent,
        "ending": view.ending,
        "ends": {process: {"at": at, "why": why} for process, (at, why) in view.ends.items()},
        "workers": [asdict(worker) for worker in view.workers],
        "status": view.status.to_wire() if view.status is not None else None,
    }


def _balance(view: RunView) -> Record:
    """How uneven the load is, and what is thought of that."""
    advice = view.advice
    known = {} if advice is None else {name: getattr(advice, name) for name in ("before", "after", "worth", "reason")}
    return {"mode": view.wanted.balance.mode, **known}
