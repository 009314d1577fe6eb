"""Whether another writer of `spec.workers` works against the autoscaler, such as a tool that applies a manifest. Pure.

Each time that the size before a decision comes back counts. After REVERSALS_MAX times within a window the autoscaler writes
no more: state would move to and fro for ever. It goes on once `spec.autoscale` is edited, or once no other field manager
owns `spec.workers`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from ferry_operator.job.models import Spec
from ferry_operator.job.status import NAME_MAX, ScalingMemory
from ferry_operator.kube.api.names import FIELD_MANAGER, Doc

REVERSALS_MAX = 3

WINDOW_SECONDS = 3600.0
"""Reversals within this time count together; with a long cooldown, within the time of four decisions for each of them."""


def writers_of_workers(metadata: Doc) -> list[Doc]:
    """The entries of `managedFields` that own `spec.workers`, without the other fields."""
    owned: Doc = {"f:spec": {"f:workers": {}}}
    return [{"manager": manager, "fieldsV1": owned} for manager in _managers(metadata.get("managedFields") or [])]


def _managers(entries: Iterable[Any]) -> Iterable[str]:
    for entry in entries:
        if "f:workers" in ((entry.get("fieldsV1") or {}).get("f:spec") or {}):
            yield str(entry.get("manager") or "")[:NAME_MAX]


def other_writer(metadata: Doc) -> str | None:
    """The field manager that owns `spec.workers` and is not the operator; None: there is none."""
    return next((name for name in _managers(metadata.get("managedFields") or []) if name != FIELD_MANAGER), None)


def noticed(kept: ScalingMemory | None, spec: Spec, metadata: Doc, now: float) -> ScalingMemory | None:
    """The memory after an observation of the spec; equal to `kept` when nothing is to be noted."""
    if kept is None:
        return None
    other = other_writer(metadata)
    if kept.settings != digest(spec) or (is_overruled(kept) and other is None):
        return None
    if other is None or kept.workers in (None, spec.workers) or spec.workers != kept.before:
        return kept
    window = max(WINDOW_SECONDS, 4 * REVERSALS_MAX * spec.autoscale.cooldown.seconds)
    recent = [at for at in kept.reversals if now - at < window]
    return kept.model_copy(update={"workers": None, "reversals": [*recent, int(now)][-REVERSALS_MAX:], "by": other})


def written(kept: ScalingMemory | None, spec: Spec, workers: int) -> ScalingMemory:
    """The memory after the autoscaler has written a size."""
    mine = digest(spec)
    same = kept if kept is not None and kept.settings == mine else ScalingMemory(settings=mine)
    return same.model_copy(update={"workers": workers, "before": spec.workers})


def is_overruled(kept: ScalingMemory | None) -> bool:
    """Whether the autoscaler writes no more."""
    return kept is not None and len(kept.reversals) >= REVERSALS_MAX


def why(kept: ScalingMemory) -> str:
    """The reason, and what to do."""
    return (
        f"{kept.by} has put {kept.before} workers back {len(kept.reversals)} times: remove spec.workers from its manifest, "
        "or have it ignore the difference (ignoreDifferences of Argo CD) and change a field of spec.autoscale"
    )


def digest(spec: Spec) -> str:
    """Equal for equal settings of the autoscaler."""
    return hashlib.sha256(spec.autoscale.model_dump_json().encode()).hexdigest()[:16]
