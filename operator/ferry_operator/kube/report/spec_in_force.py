"""The condition that names the spec in force: tools of GitOps ask whether the applied manifest is what runs. Pure."""

from __future__ import annotations

from ferry_operator.job.status import SPEC_IN_FORCE
from ferry_operator.kube.observe.suspension import Stage, asked
from ferry_operator.kube.observe.view import JobView
from ferry_operator.kube.report.untimed import UntimedCondition


def spec_in_force(view: JobView) -> UntimedCondition:
    """True if the spec of `metadata.generation` is in force, else the generation in force and the reason."""
    effective, good = view.effective, view.seen.memory.good
    newest = int(view.seen.job["metadata"].get("generation") or 0)
    problem = effective.problem
    if effective.job is None:
        why = problem.message if problem is not None else "it is not valid"
        reason = problem.reason if problem is not None else "SpecRefused"
        return UntimedCondition(SPEC_IN_FORCE, "False", reason, f"no spec is in force: generation {newest}: {why}")
    if not effective.newest:
        reason = problem.reason if problem is not None else "SpecRefused"
        kept = f"generation {good.generation} is in force" if good is not None else "an earlier spec is in force"
        why = f": {problem.message}" if problem is not None else ""
        return UntimedCondition(SPEC_IN_FORCE, "False", reason, f"{kept}, not generation {newest}{why}")
    if asked(view.seen.job) and view.stage is not Stage.RUNS:
        text = f"generation {newest} is in force: the job is suspended; other changes count from its resume on"
        return UntimedCondition(SPEC_IN_FORCE, "True", "Suspended", text)
    if not effective.good:
        text = f"generation {newest} is in force; no epoch was finished under it yet"
        return UntimedCondition(SPEC_IN_FORCE, "True", "Unproven", text)
    return UntimedCondition(SPEC_IN_FORCE, "True", "Proven", f"generation {newest} is in force")
