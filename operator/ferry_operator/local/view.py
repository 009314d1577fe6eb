"""The view of a run: `RunView` for the supervisor's terminal, `describe` for other terminals. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry_operator.control.balancing import Advice
from ferry_operator.control.observed import Wanted, Worker
from ferry_operator.job.models_autoscale import AutoscaleReport
from ferry_operator.local.requested import RequestedState

Record = dict[str, Any]


@dataclass(slots=True)
class RunView:
    """One look at a run."""

    settings: RunSettings
    status: Status | None
    workers: tuple[Worker, ...]
    wanted: Wanted
    records: list[Record]
    """new records of the timeline"""
    warnings: list[str] = field(default_factory=list)
    """new warnings"""
    advice: Advice | None = None
    """advice for balance"""
    ends: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """by process: time of its last failure (seconds since 1970), and the reason"""
    silent: float | None = None
    """seconds since the last answer of this driver; None: it has not answered yet"""
    ending: bool = False
    """all input is read, or the run is stopping"""


def describe(view: RunView, phase: str, requested: RequestedState, autoscale: AutoscaleReport | None) -> Record:
    """The answer of `GET /job`."""
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
        "drains": list(requested.drains),
        "pins": {str(vnode): instance for vnode, instance in sorted(requested.pins.items())},
        "plan": requested.described(view.settings.job),
        "autoscale": autoscale.to_wire() if autoscale is not None else None,
        "balance": _balance(view),
        "silent": view.silent,
        "ending": view.ending,
        "ends": {process: {"at": at, "why": why} for process, (at, why) in view.ends.items()},
        "workers": [asdict(worker) for worker in view.workers],
        "status": view.status.to_wire() if view.status is not None else None,
    }


def _balance(view: RunView) -> Record:
    """The mode of balancing, and the imbalance of the load."""
    advice = view.advice
    known = {} if advice is None else {name: getattr(advice, name) for name in ("before", "after", "worth", "reason")}
    return {"mode": view.wanted.balance.mode, **known}
