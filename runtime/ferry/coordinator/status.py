"""The status of a job: what the driver counts, what the coordinator knows, and how moves go.

Read by the control endpoint from another thread: the values of the machine are frozen, and its maps are copied first.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.contract.names import InstanceId
from ferry.contract.status import LoadStatus, MovesStatus, ProgramStatus, ProgressStatus, ReportedProblem, Status
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.coordinator.problems import TEXT_MAX
from ferry.protocol.coordinator import Coordinator
from ferry.protocol.coordinator.groups import settled


def status_of(
    metrics: DriverMetrics,
    machine: Coordinator,
    moves: MoveMetrics,
    bandwidth: int = -1,
    programs: tuple[ProgramStatus, ...] = (),
    known: Collection[str] = (),
) -> Status:
    """A snapshot. `bandwidth`: as MovesStatus has it; `programs`: as Status has them; `known`: versions of long lists
    that the reader has."""
    table, plan = machine.table, machine.moves.plan
    rate, epoch_seconds = metrics.rates()
    version = f"{table.version.generation}.{table.version.number}"
    lists = version, f"{version}.{time.monotonic():.0f}"
    return Status(
        job=metrics.job,
        generation=machine.generation,
        phase=str(machine.phase),
        epoch=metrics.epoch,
        version=(table.version.generation, table.version.number),
        groups=[(list(g.in_sync), list(g.learners)) for g in table.groups] if lists[0] not in known else [],
        settled=is_settled(machine),
        desired=plan.number if plan is not None else 0,
        alive=sorted(machine.alive),
        journal_up=machine.journaling.up,
        finished=metrics.finished,
        problems=(*metrics.problems.current, *failing_code(machine)),
        notices=(*metrics.problems.lasting, *notices(machine), *moves.damages()),
        progress=_progress(metrics, machine),
        load=LoadStatus(
            vnodes=moves.loads(table, rate) if lists[1] not in known else [],
            rows_per_second=rate,
            epoch_seconds=epoch_seconds,
            latency=metrics.latency.recent(time.time()),
            work=moves.work.recent(metrics.lag()),
        ),
        moves=_moves(metrics, machine, moves, bandwidth),
        transport=moves.links(),
        checkpoint=metrics.checkpoint,
        spark=metrics.spark,
        programs=programs,
        lists=lists,
    )


def _progress(metrics: DriverMetrics, machine: Coordinator) -> ProgressStatus:
    known = WATERMARK_NONE < machine.commits.watermark < WATERMARK_END
    return ProgressStatus(
        began=metrics.began,
        watermark=machine.commits.watermark if known else None,
        rows=metrics.rows,
        late=metrics.late,
        malformed=metrics.malformed,
        epoch_mode=metrics.epoch_mode,
        program=machine.table.programs[-1][:2],
    )


def _moves(metrics: DriverMetrics, machine: Coordinator, moves: MoveMetrics, bandwidth: int) -> MovesStatus:
    plan, journaled = machine.moves.plan, machine.journaling.plan
    return MovesStatus(
        steps=(plan.reached, len(plan.steps)) if plan is not None else (0, 0),
        prepared=prepared(machine),
        rolled_back=journaled.undone if journaled is not None else "",
        members_gone=members_gone(machine),
        given_up=sum(machine.now < refusal.backoff.until for refusal in list(machine.moves.refused.values())),
        replica_lag=moves.replica_lag(metrics.epoch),
        quiet_seconds=moves.quiet_seconds(),
        costs=moves.costs(),
        boundaries=tuple(moves.boundaries()),
        unbounded=metrics.unbounded,
        windows_end_in=metrics.window_rest.seconds(time.time()),
        bandwidth=bandwidth,
    )


def is_settled(machine: Coordinator) -> bool:
    """Whether the groups are as desired."""
    return _settled(_Same(machine.table), _Same(machine.moves.plan), frozenset(dict(machine.alive)))


def members_gone(machine: Coordinator) -> int:
    """Number of planned or current members that are not alive."""
    table, moves = machine.table, machine.moves
    wanted = table if moves.plan is None else moves.placements()  # without a plan they follow from the table
    return _gone(_Same(moves), _Same(table), _Same(wanted), frozenset(dict(machine.alive)))


@dataclass(frozen=True, eq=False)
class _Same:
    """An argument that is equal to the same object alone: groups of 32,768 virtual nodes are not compared."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


# Status is asked ten times a second, while tables and plans change seldom.
@lru_cache(1)
def _settled(table: _Same, plan: _Same, alive: frozenset[InstanceId]) -> bool:
    return plan.value is not None and settled(table.value, plan.value.placements, dict.fromkeys(alive))


@lru_cache(1)
def _gone(moves: _Same, table: _Same, wanted: _Same, alive: frozenset[InstanceId]) -> int:
    pairs = zip(table.value.groups, moves.value.placements(), strict=True)
    return sum(i not in alive for group, placement in pairs for i in {*group.in_sync, *placement})


def prepared(machine: Coordinator) -> str:
    """The scheduled plan and when it begins; empty if no plan is scheduled."""
    plan, commits = machine.journaling.prepared, machine.commits
    if plan is None or plan.is_due(commits.following.epoch, commits.watermark):
        return ""
    due = [f"with epoch {plan.at_epoch}"] if plan.at_epoch > commits.following.epoch else []
    if plan.at_time is not None and plan.at_time > commits.watermark:
        due.append(f"when the watermark is at {datetime.fromtimestamp(plan.at_time / 1000, UTC).isoformat()}")
    return f"plan {plan.number} begins {', and '.join(due)}"


def is_at_rest(machine: Coordinator) -> bool:
    """Whether the groups are exactly as desired: former members have been removed, too."""
    wanted = machine.moves.plan.placements if machine.moves.plan is not None else ()
    return is_settled(machine) and all(
        i in placement for group, placement in zip(machine.table.groups, wanted, strict=True) for i in group.in_sync
    )


def notices(machine: Coordinator) -> tuple[ReportedProblem, ...]:
    """Problems that the coordinator works around; read from another thread."""
    now = machine.now
    texts_by_reason: dict[str, tuple[list[str], int]] = {}

    def add(reason: str, text: str, since: int) -> None:
        texts, first = texts_by_reason.get(reason, ([], since))
        texts_by_reason[reason] = [*texts, text], min(first, since)

    for i, failure in sorted(dict(machine.members.failed).items()):
        if failure.since is not None:
            add("InstanceFailed", f"{i}: {failure.reason}", failure.since)
    for (a, b), backoff in sorted(dict(machine.reachability.apart).items()):
        if now < backoff.until:
            add("InstancesApart", f"{a} and {b} cannot reach each other", backoff.since)
    moves: dict[tuple[InstanceId, str], tuple[int, int]] = {}
    for (i, _), refusal in sorted(dict(machine.moves.refused).items()):
        if now < refusal.backoff.until:
            count, since = moves.get((i, refusal.reason), (0, refusal.backoff.since))
            moves[(i, refusal.reason)] = count + 1, min(since, refusal.backoff.since)
    for (i, reason), (count, since) in moves.items():
        add("MovesGivenUp", f"{count} copies on {i}: {reason}", since)
    return tuple(
        ReportedProblem(reason, "; ".join(texts)[:TEXT_MAX], time.time() - (now - since) / 1000)
        for reason, (texts, since) in texts_by_reason.items()
    )


def failing_code(machine: Coordinator) -> tuple[ReportedProblem, ...]:
    """Failing user code in instances that stops the job's progress; read from another thread."""
    code = machine.attempts.code
    if not (reason := code.reason):
        return ()
    since = time.time() - (machine.now - code.since) / 1000
    return (ReportedProblem("UserCode", reason[:TEXT_MAX], since),)
