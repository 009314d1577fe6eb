"""The program of a job in its status, condition and problems. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ferry_operator.job.status import MESSAGE_MAX, ProgramReport
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.program import SHADOW, kept, refusal, under_way
from ferry_operator.kube.observe.view import JobView

HASH_MAX = 64

AGAIN = "change the program, or try the same one again by another spec.restartNonce"


def program_report(view: JobView) -> ProgramReport | None:
    """The program in force, and the deploy; None: the driver does not answer, or cannot deploy."""
    status, program = view.seen.status, view.seen.program
    if status is None or not status.programs:
        return None
    phase: Literal["InForce", "Deploying", "Refused", "Waiting"] = "InForce"
    now, before = status.programs[0], kept(status)
    message = f"as a shadow, {now.compared}" if now.compared else ""
    if (no := refusal(program, status)) is not None:
        phase, message = "Refused", f"program {no.number}: {no.refused}"
    elif (coming := under_way(status)) is not None:
        compared = f"; {coming.compared}" if coming.compared and coming.state == SHADOW else ""
        phase, message = "Deploying", f"program {coming.number}: {coming.state}{compared}"
    elif program is None:
        phase, message = "Waiting", "the program of the spec cannot be read"
    elif (
        program.identity != now.identity
        and before is not None
        and (before.identity != program.identity or program.how.rewind)
    ):
        ends = f"program {before.number} is kept beside program {now.number}"
        phase, message = "Waiting", f"{ends}: the program of the spec is deployed once its time is over"
    elif program.identity != now.identity:
        phase, message = "Waiting", "the operator asks the driver to deploy the program of the spec"
    elif before is not None:
        message = f"program {before.number} is kept: a spec that names it again takes back everything but written rows"
    return ProgramReport(
        number=now.number,
        hash=now.identity[:HASH_MAX],
        since=now.since,
        phase=phase,
        message=message[:MESSAGE_MAX],
        again=now.again,
    )


def program_problems(view: JobView) -> Iterator[Problem]:
    """The refusal of the wanted program."""
    if (no := refusal(view.seen.program, view.seen.status)) is not None and view.seen.status is not None:
        now = view.seen.status.programs[0].number
        yield Problem(
            "ProgramRefused",
            f"program {no.number} is refused: {no.refused}. The job goes on with program {now}; {AGAIN}",
        )
