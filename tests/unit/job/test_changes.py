"""What a change of a field does: the table has every field, and a comparison finds exactly what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ferry_operator.crd import fields_page
from ferry_operator.crd.rules import BASE, Document, patched
from ferry_operator.job import spec
from ferry_operator.job.changes import TABLE, Change, Kind, classify, entries
from ferry_operator.job.models import Spec

ROOT = Path(__file__).resolve().parents[3]
DATA = [{"name": "data", "mountPath": "/data", "claim": "data"}]

CHANGED: dict[str, tuple[Any, Kind]] = {
    "spec.pipeline.module": ("jobs.other", Kind.RESTART),
    "spec.pipeline.file": ("/jobs/rules.py", Kind.RESTART),
    "spec.pipeline.args": ({"seed": 7}, Kind.RESTART),
    "spec.pipeline.version": ("2", Kind.LIVE),
    "spec.workers": (3, Kind.HANDOVER),
    "spec.instancesPerWorker": (2, Kind.HANDOVER),
    "spec.cores": (4, Kind.RESTART),
    "spec.output": ("/data/out", Kind.RESTART),
    "spec.events": (1000, Kind.RESTART),
    "spec.restartNonce": (1, Kind.RESTART),
    "spec.state.virtualNodes": (128, Kind.REFUSED),
    "spec.state.replicas": (0, Kind.HANDOVER),
    "spec.state.directory": ("/srv/state", Kind.REFUSED),
    "spec.state.memory": ("2Gi", Kind.ROLLING),
    "spec.epoch.interval": ("1s", Kind.RESTART),
    "spec.epoch.maxRows": (5, Kind.RESTART),
    "spec.handover.strategy": ("fluid", Kind.RESTART),
    "spec.handover.batch": (2, Kind.RESTART),
    "spec.handover.gap": (2, Kind.RESTART),
    "spec.handover.bandwidth": ("64Mi", Kind.ROLLING),
    "spec.handover.deadline": ("1m", Kind.RESTART),
    "spec.transport.mode": ("tcp", Kind.ROLLING),
    "spec.transport.rdma.mode": ("shared", Kind.ROLLING),
    "spec.transport.rdma.resource": ("rdma/hca", Kind.ROLLING),
    "spec.transport.rdma.networks": ("fast", Kind.ROLLING),
    "spec.transport.rdma.device": ("mlx5_0", Kind.ROLLING),
    "spec.transport.rdma.gidIndex": (3, Kind.ROLLING),
    "spec.transport.rdma.slots": (4, Kind.ROLLING),
    "spec.transport.rdma.slotBytes": (4096, Kind.ROLLING),
    "spec.transport.rdma.notify": ("imm", Kind.ROLLING),
    "spec.transport.rdma.pinned": ("7Mi", Kind.ROLLING),
    "spec.transport.rdma.lend": ("512Ki", Kind.ROLLING),
    "spec.security.tls": ("off", Kind.REFUSED),
    "spec.failure.heartbeat": ("400ms", Kind.ROLLING),
    "spec.failure.timeout": ("3s", Kind.ROLLING),
    "spec.failure.returnDeadline": ("10s", Kind.RESTART),
    "spec.failure.progressDeadline": ("1h", Kind.LIVE),
    "spec.failure.stallDeadline": ("1h", Kind.LIVE),
    "spec.sink.patience": ("10m", Kind.RESTART),
    "spec.deadLetter.directory": ("/data/bad", Kind.RESTART),
    "spec.spark": ({"spark.x": "y"}, Kind.RESTART),
    "spec.kubernetes.image": ("jobs:2", Kind.ROLLING),
    "spec.kubernetes.imagePullPolicy": ("Always", Kind.LIVE),
    "spec.kubernetes.network": ("host", Kind.ROLLING),
    "spec.kubernetes.serviceAccount": ("jobs", Kind.ROLLING),
    "spec.kubernetes.nodeSelector": ({"disk": "fast"}, Kind.ROLLING),
    "spec.kubernetes.tolerations": ([{"operator": "Exists"}], Kind.ROLLING),
    "spec.kubernetes.affinity": ({"nodeAffinity": {}}, Kind.ROLLING),
    "spec.kubernetes.driver.cpu": ("1", Kind.RESTART),
    "spec.kubernetes.driver.memory": ("2Gi", Kind.RESTART),
    "spec.kubernetes.user": (2000, Kind.ROLLING),
    "spec.kubernetes.executor.cpu": ("1", Kind.ROLLING),
    "spec.kubernetes.executor.memory": ("2Gi", Kind.ROLLING),
    "spec.kubernetes.sidecar.cpu": ("1", Kind.ROLLING),
    "spec.kubernetes.sidecar.memory": ("2Gi", Kind.ROLLING),
    "spec.kubernetes.stateVolume.medium": ("memory", Kind.REFUSED),
    "spec.kubernetes.stateVolume.path": ("/srv/other", Kind.REFUSED),
    "spec.kubernetes.stateVolume.size": ("64Mi", Kind.REFUSED),
    "spec.kubernetes.volumes": (DATA, Kind.ROLLING),
    "spec.kubernetes.checkpoint": ("/data/checkpoint", Kind.REFUSED),
}
"""Another value for every field, and what the change does."""

BEFORE: dict[str, Document] = {
    "spec.pipeline.file": {"spec": {"pipeline": {"module": None, "file": "/jobs/old.py"}}},
    "spec.transport.rdma.mode": {"spec": {"transport": {"rdma": {"resource": "rdma/hca"}}}},
    "spec.transport.rdma.networks": {"spec": {"transport": {"rdma": {"mode": "sriov", "resource": "rdma/vf"}}}},
    "spec.kubernetes.stateVolume.medium": {"spec": {"kubernetes": {"stateVolume": {"size": "32Mi"}}}},
    "spec.kubernetes.stateVolume.path": {
        "spec": {"kubernetes": {"stateVolume": {"medium": "hostPath", "path": "/srv/ferry"}}}
    },
    "spec.kubernetes.checkpoint": {"spec": {"kubernetes": {"volumes": DATA}}},
}
"""What a job must say for the change to be possible."""


def at(path: str, value: Any) -> Document:
    """The patch that sets one field."""
    out: Any = value
    for part in reversed(path.split(".")):
        out = {part: out}
    return dict(out)


def job(*patches: Document) -> Spec:
    document = BASE
    for patch in patches:
        document = patched(document, patch)
    return spec.check(document).spec


def test_every_field_is_tried() -> None:
    """A new field says what a change of it does (models) and is tried here."""
    assert [entry.path for entry in TABLE] and sorted(CHANGED) == sorted(entry.path for entry in TABLE)


@pytest.mark.parametrize("path", CHANGED)
def test_a_change_is_found_and_is_what_the_table_says(path: str) -> None:
    value, kind = CHANGED[path]
    before = BEFORE.get(path, {})
    old, new = job(before), job(before, at(path, value))
    (change,) = classify(old, new)
    assert (change.path, change.kind) == (path, kind)
    assert change.entry.what and "\n" not in change.entry.what
    assert classify(old, old) == [] and classify(new, new) == []


def test_a_field_without_a_mark_is_an_error() -> None:
    class Part(BaseModel):
        fine: int = Field(default=1)

    class Whole(BaseModel):
        part: Part = Field(default_factory=Part)

    with pytest.raises(AssertionError, match=r"spec\.part\.fine does not say"):
        list(entries(Whole))


def test_another_spelling_is_no_change() -> None:
    old = job({"spec": {"epoch": {"interval": "1s"}, "kubernetes": {"driver": {"cpu": "500m"}}}})
    new = job(
        {"spec": {"epoch": {"interval": "1000ms"}, "kubernetes": {"driver": {"cpu": "0.5", "memory": "1572864Ki"}}}}
    )
    assert classify(old, new) == []
    assert classify(job({"spec": {"state": {"memory": 2**30}}}), job()) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": [1]}, {"a": [1, 1]}, False),
        ({"a": None}, {}, False),
    ],
)
def test_arguments_are_compared_as_a_pipeline_would_see_them(one: Document, other: Document, same: bool) -> None:
    def with_args(args: Document) -> Spec:
        return spec.check({**BASE, "spec": {"pipeline": {"module": "m", "args": args}}}).spec

    found = classify(with_args(one), with_args(other))
    assert (found == []) is same


def test_a_change_in_words() -> None:
    (change,) = classify(job(), job({"spec": {"workers": 3}}))
    assert str(change).startswith("spec.workers: 2 -> 3 (handover: Workers are started")
    (change,) = classify(job(), job({"spec": {"kubernetes": {"image": "jobs:2"}}}))
    assert str(change).startswith("spec.kubernetes.image: null -> jobs:2 (rolling: ")


def test_what_is_replaced() -> None:
    """Only a rolling change replaces worker pods, and no mild one restarts the driver."""
    for entry in TABLE:
        assert entry.workers == (entry.kind is Kind.ROLLING)
        assert entry.driver == (entry.kind is Kind.RESTART) or entry.kind is Kind.ROLLING
    restarting = {c.path for c in changes_of("spec.failure.timeout", "spec.failure.heartbeat") if c.entry.driver}
    assert restarting == {"spec.failure.timeout"}


def changes_of(*paths: str) -> list[Change]:
    return classify(job(), job(*(at(path, CHANGED[path][0]) for path in paths)))


def test_only_kubernetes_uses_its_section() -> None:
    more = {
        "spec.pipeline.version",
        "spec.restartNonce",
        "spec.failure.progressDeadline",
        "spec.failure.stallDeadline",
        "spec.transport.rdma.resource",
        "spec.transport.rdma.networks",
    }
    for entry in TABLE:
        assert (entry.used == "kubernetes") == (entry.path.startswith("spec.kubernetes.") or entry.path in more)


def test_the_page_is_what_the_table_says() -> None:
    written = (ROOT / "docs" / "fields.md").read_text("utf-8")
    assert written == fields_page.page(), "out of date: make crds"
