"""The conditions of a job, from one view of it. Pure: `status` adds the times of transitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ferry.contract.status import Status
from ferry_operator.control.autoscaling import ScalingAdvice
from ferry_operator.job.status import AUTOSCALER_ACTIVE, DEFINITION_OLDER, DEPLOYING, ROLLED_OUT, ProgramReport
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.expiry import why_kept
from ferry_operator.kube.observe.facts import NO_TRANSPORT_REASON, Problem
from ferry_operator.kube.observe.lifecycle import AGAIN
from ferry_operator.kube.observe.readiness import ready
from ferry_operator.kube.observe.suspension import Stage, never_began
from ferry_operator.kube.observe.view import STALLED_SECONDS, JobView
from ferry_operator.kube.report.program import program_problems, program_report
from ferry_operator.kube.report.spec_in_force import spec_in_force
from ferry_operator.kube.report.untimed import Truth, UntimedCondition
from ferry_operator.kube.steps import BOOKKEEPING, Step, describe

PROBLEMS_MAX = 3
"""Problems in one message; the message has the number of the others."""

WAITS = "the driver takes a last durable checkpoint and ends"

STUCK_SECONDS = 45.0
"""A pod without containers this long after its creation waits for something, such as a volume."""


def conditions(view: JobView, steps: Sequence[Step], problems: Sequence[Problem]) -> list[UntimedCondition]:
    """All conditions, in order. `problems`: all problems."""
    always = [
        _ready(view, problems),
        _progressing(view, steps),
        _handover(view),
        _degraded(problems),
        _in_sync(view),
        spec_in_force(view),
    ]
    program = program_report(view)
    deploys = [_deploying(program)] if program is not None else []
    reason, message = view.seen.rolled_out
    rolls = [UntimedCondition(ROLLED_OUT, "False", reason, message)] if reason else []
    older = (
        [UntimedCondition(DEFINITION_OLDER, "True", "FieldsMissing", text)] if (text := view.seen.definition) else []
    )
    return [*always, *deploys, *([_autoscaler(view.advice)] if view.advice is not None else []), *rolls, *older]


def _deploying(program: ProgramReport) -> UntimedCondition:
    going = program.phase in ("Deploying", "Waiting")
    text = program.message
    if program.phase == "InForce":
        text = f"program {program.number} is in force from epoch {program.since} on" + (f"; {text}" if text else "")
    return UntimedCondition(DEPLOYING, "True" if going else "False", program.phase, text)


def all_problems(view: JobView) -> list[Problem]:
    """All problems of the job, without duplicates, the most severe first."""
    by_message: dict[str, Problem] = {}
    for problem in _problems(view):
        by_message.setdefault(problem.message, problem)
    return list(by_message.values())


def event_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems for events: the first few of every reason."""
    by_reason: dict[str, list[Problem]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem)
    return tuple(problem for same in by_reason.values() for problem in same[:PROBLEMS_MAX])


def _problems(view: JobView) -> Iterable[Problem]:
    if view.lifecycle.problem is not None:
        yield view.lifecycle.problem
    if view.effective.problem is not None:
        yield view.effective.problem
    yield from view.seen.problems
    yield from program_problems(view)
    yield from view.ignored
    seen = view.seen
    if view.stage is Stage.GOING and view.lifecycle.end is not None and not never_began(seen.driver, seen.last_epoch):
        yield Problem(
            "CannotSuspend", f"no driver can take the last checkpoint, and the workers keep their state; {AGAIN}"
        )
    if (kept := why_kept(view)) is not None:
        yield kept
    if view.held is not None:
        yield Problem("Held", view.held)
    if view.rolling.stuck:
        yield Problem("NoRoom", "a worker has to leave its pod, and no other worker can take its state")
    status = view.seen.status
    if view.hangs is not None:
        yield Problem("DriverHangs", view.hangs)
    if status is not None and view.stalled >= STALLED_SECONDS:
        yield Problem("Stalled", f"the epoch after {status.epoch} does not end")
    if status is not None:
        yield from (Problem(problem.reason, problem.text) for problem in (*status.problems, *status.notices))
    if status is not None and not status.journal_up:
        yield Problem("JournalDown", "the driver does not reach its journal: groups cannot change, epochs go on")
    for name, why in view.lost.items():
        yield Problem("PodLost", f"{name}: {why}")
    for pod in view.seen.pods:
        yield from pod.problems
        if pod.phase == "Pending" and pod.node and not pod.problems and view.seen.now - pod.created > STUCK_SECONDS:
            yield Problem("PodStuck", f"{pod.name}: its containers do not start: see the events of the pod")


def _ready(view: JobView, problems: Sequence[Problem]) -> UntimedCondition:
    if view.seen.deleting:
        return UntimedCondition("Ready", "False", "Deleting")
    if view.stage in (Stage.SUSPENDED, Stage.OVER):
        return UntimedCondition("Ready", "False", "Suspended", _suspended(view))
    if view.lifecycle.end is not None:
        return UntimedCondition(
            "Ready", "False", view.lifecycle.end, view.lifecycle.problem.message if view.lifecycle.problem else ""
        )
    if ready(view):
        status = view.seen.status
        assert status is not None
        return UntimedCondition("Ready", "True", "Running", f"generation {status.generation} leads all virtual nodes")
    if view.stage is Stage.GOING and not problems:
        return UntimedCondition("Ready", "False", "Suspending", WAITS)
    for problem in problems:
        if problem.reason == NO_TRANSPORT_REASON:
            return UntimedCondition("Ready", "False", problem.reason, problem.message)
    if view.seen.status is not None:
        return UntimedCondition("Ready", "False", "Recovering", f"the driver is in phase {view.seen.status.phase}")
    if problems:
        return UntimedCondition("Ready", "False", problems[0].reason, problems[0].message)
    return UntimedCondition("Ready", "False", "Starting", "no driver answers yet")


def _suspended(view: JobView) -> str:
    last = view.seen.before.checkpoint
    known = f"; the last checkpoint in the status is {last.number}, of epoch {last.epoch}" if last is not None else ""
    return f"a resume starts from the latest durable checkpoint{known}"


def _progressing(view: JobView, steps: Sequence[Step]) -> UntimedCondition:
    if view.seen.deleting:
        return UntimedCondition("Progressing", "True", "Deleting")
    if view.seen.paused:
        return UntimedCondition("Progressing", "False", "Paused", "the annotation ferry.dev/paused is 'true'")
    if view.stage is Stage.SUSPENDED:
        return UntimedCondition("Progressing", "False", "Suspended")
    if view.lifecycle.end is not None:
        return UntimedCondition("Progressing", "False", view.lifecycle.end)
    if view.suspending:
        return UntimedCondition(
            "Progressing", "True", "Suspending", WAITS if view.stage is Stage.GOING else "its pods are being deleted"
        )
    if any(not isinstance(step, BOOKKEEPING) for step in steps):
        return UntimedCondition("Progressing", "True", "Acting", intended(steps) or "")
    rolling = view.rolling
    if rolling.leaving:
        which = ", ".join(str(k) for k in rolling.leaving)
        return UntimedCondition(
            "Progressing", "True", "Replacing", f"workers {which} are drained, and their pods are replaced"
        )
    if given_up(view):
        return UntimedCondition("Progressing", "True", "Waiting", "for a retry of moves that were given up")
    if moving(view):
        return UntimedCondition("Progressing", "True", "Moving", "virtual nodes are on their way")
    observed = view.observed
    if observed is not None and view.seen.status is not None:
        if (
            not any(pod.deleting or pod.role == names.PLACEHOLDER_ROLE for pod in view.seen.pods)
            and not observed.missing
        ):
            if len(view.seen.workers) == observed.wanted.size.workers:
                return UntimedCondition("Progressing", "False", "Settled")
    return UntimedCondition("Progressing", "True", "Waiting", "for pods to start or to end")


def _handover(view: JobView) -> UntimedCondition:
    count = moving(view)
    if view.stage in (Stage.SUSPENDED, Stage.OVER):
        return UntimedCondition("Handover", "False", "Suspended")
    if view.seen.status is None:
        # A handover counts as going on until a driver reports its end.
        before = view.seen.before.condition("Handover")
        going = before is not None and before.status == "True" and view.lifecycle.end is None and not view.seen.deleting
        return UntimedCondition("Handover", "True" if going else "False", "NoDriver")
    if count == 0 and (why := view.seen.status.moves.rolled_back) and not view.seen.status.moves.prepared:
        return UntimedCondition("Handover", "False", "RolledBack", f"plan {view.seen.status.desired}: {why}")
    if count == 0:
        text = view.seen.status.moves.prepared
        return UntimedCondition("Handover", "False", "Prepared" if text else "Settled", text)
    total = len(view.seen.status.groups)
    if (left := given_up(view)) > 0:
        text = f"{left} copies were given up, and will be retried; {count} of {total} virtual nodes wait"
        return UntimedCondition("Handover", "False", "GivenUp", text)
    begun, steps = view.seen.status.moves.steps
    at = f", step {begun} of {steps}" if steps else ""
    text = f"{count} of {total} virtual nodes are on their way{at}{_at_windows(view, view.seen.status)}"
    return UntimedCondition("Handover", "True", "Moving", text)


def _at_windows(view: JobView, status: Status) -> str:
    """The number of virtual nodes that wait for the end of windows, or the reason why pinned ones move with their state."""
    waits = (
        f", {len(status.moves.boundaries)} of them until their windows have ended" if status.moves.boundaries else ""
    )
    wanted = view.observed is not None and view.observed.at_window
    return waits + (
        f"; pinned ones move with their state: {status.moves.unbounded}" if wanted and status.moves.unbounded else ""
    )


def _degraded(problems: Sequence[Problem]) -> UntimedCondition:
    if not problems:
        return UntimedCondition("Degraded", "False", "AllWell")
    lines = [problem.message for problem in problems[:PROBLEMS_MAX]]
    more = [f"and {len(problems) - PROBLEMS_MAX} more"] if len(problems) > PROBLEMS_MAX else []
    return UntimedCondition("Degraded", "True", problems[0].reason, "; ".join([*lines, *more]))


def _in_sync(view: JobView) -> UntimedCondition:
    status, effective = view.seen.status, view.effective
    if status is None or effective.job is None:
        rests = view.stage in (Stage.SUSPENDED, Stage.OVER)
        return UntimedCondition("ReplicasInSync", "Unknown", "Suspended" if rests else "NoDriver")
    wanted, workers = effective.job.spec.state.replicas, effective.job.spec.workers
    alive = frozenset(status.alive)
    copies = [sum(i in alive for i in in_sync) for in_sync, _ in status.groups]
    short = sum(count < 1 + wanted for count in copies)
    if not short:
        text = f"{wanted} copies of every virtual node beside the leader"
        if wanted and view.zones_are_unknown:
            text += ", on other nodes; zones are not known (the chart's nodes.read), so copies may share a zone"
        return UntimedCondition("ReplicasInSync", "True", "InSync", text)
    if workers <= wanted:
        text = f"{wanted} copies beside the leader need {wanted + 1} workers, there are {workers}"
        return UntimedCondition("ReplicasInSync", "False", "TooFewWorkers", text)
    return UntimedCondition("ReplicasInSync", "False", "Missing", f"{short} of {len(copies)} virtual nodes lack copies")


def _autoscaler(advice: ScalingAdvice) -> UntimedCondition:
    """The message has no measured numbers: they change all the time, and are in `status.autoscale`."""
    reason = advice.report.reason
    if reason == "Waiting":
        why = "Overruled" if advice.overruled else reason
        return UntimedCondition(AUTOSCALER_ACTIVE, "False", why, advice.report.message)
    known: Truth = "False" if reason == "NotMeasured" else "True"
    return UntimedCondition(AUTOSCALER_ACTIVE, known, reason, f"{advice.target} workers x instances")


def moving(view: JobView) -> int:
    """Number of virtual nodes that differ from the placement in force, or have copies on their way."""
    status, submitted = view.seen.status, view.seen.submitted
    if status is None:
        return 0
    planned = submitted.plan.placements if submitted is not None and submitted.generation == status.generation else ()
    settled = status.settled and submitted is not None and submitted.plan.number == status.desired
    alive, count = frozenset(status.alive), 0
    for vnode, (in_sync, learners) in enumerate(status.groups):
        wanted = [i for i in planned[vnode] if i in alive] if vnode < len(planned) else []
        elsewhere = bool(wanted) and (in_sync[:1] != wanted[:1] or not frozenset(wanted) <= frozenset(in_sync))
        count += bool(learners) or (elsewhere and not settled and not status.moves.prepared)
    return count


def given_up(view: JobView) -> int:
    """Number of copies that were given up, while no other copy is on its way; else 0."""
    status = view.seen.status
    if status is None or any(learners for _, learners in status.groups):
        return 0
    return status.moves.given_up


def intended(steps: Sequence[Step]) -> str | None:
    """The text of the steps, without bookkeeping; None without such steps."""
    return "; ".join(describe(step) for step in steps if not isinstance(step, BOOKKEEPING)) or None
