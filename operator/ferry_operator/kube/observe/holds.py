"""Why pods stay where they are although a node or a client wants them to leave. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ferry_operator.kube.api import names
from ferry_operator.kube.observe.lifecycle import AGAIN

PAUSED = f"the job is paused, so nothing moves its state: it leaves once {names.PAUSED} is no longer 'true'"

FAILED = f"the job has failed, so no driver moves its state: {AGAIN}, or delete the job"

NO_NODE = "every node is cordoned, or not ready: the pods stay where they are; uncordon a node, or add one"


def reason(paused: bool, failed: bool) -> str | None:
    """Why no pod of the job is emptied; None: pods are."""
    return PAUSED if paused else FAILED if failed else None


def staying(pods: Iterable[str], why: str) -> str:
    """The text for pods that cannot leave."""
    return f"{', '.join(sorted(pods))}: {why}"
