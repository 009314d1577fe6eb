"""What a change of a field does: the table has every field, and a comparison finds exactly what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from ferry_operator.crd import fields_page
from ferry_operator.crd.rules import BASE, Document, patched
from ferry_operator.job import spec
from ferry_operator.job.changes import TABLE, Change, ChangeKind, classify, entries
from ferry_operator.job.models import Spec

ROOT = Path(__file__).resolve().parents[3]
DATA = [{"name": "data", "mountPath": "/data", "claim": "data"}]

CHANGED: dict[str, tuple[Any, ChangeKind]] = {
    "spec.pipeline.module": ("jobs.other", ChangeKind.SWITCH),
    "spec.pipeline.file": ("/jobs/rules.py", ChangeKind.SWITCH),
    "spec.pipeline.args": ({"seed": 7}, ChangeKind.SWITCH),
    "spec.pipeline.configMap": ({"name": "jobs", "key": "b.py"}, ChangeKind.SWITCH),
    "spec.pipeline.version": ("2", ChangeKind.LIVE),
    "spec.deploy.shadow": (100, ChangeKind.LIVE),
    "spec.deploy.keep": ("10m", ChangeKind.LIVE),
    "spec.deploy.atEpoch": (1200, ChangeKind.LIVE),
    "spec.deploy.atEventTime": (90_000, ChangeKind.LIVE),
    "spec.deploy.probation": ("5m", ChangeKind.LIVE),
    "spec.deploy.slower": (4.5, ChangeKind.LIVE),
    "spec.deploy.rewind": (True, ChangeKind.LIVE),
    "spec.workers": (3, ChangeKind.HANDOVER),
    "spec.instancesPerWorker": (2, ChangeKind.HANDOVER),
    "spec.cores": (4, ChangeKind.RESTART),
    "spec.output": ("/data/out", ChangeKind.RESTART),
    "spec.events": (1000, ChangeKind.RESTART),
    "spec.restartNonce": (1, ChangeKind.RESTART),
    "spec.suspend": (True, ChangeKind.LIVE),
    "spec.ttlAfterFinished": ("1h", ChangeKind.LIVE),
    "spec.restoreFrom": ("latest", ChangeKind.REFUSED),
    "spec.restoreSink": ("keep", ChangeKind.LIVE),
    "spec.state.virtualNodes": (128, ChangeKind.REFUSED),
    "spec.state.replicas": (0, ChangeKind.HANDOVER),
    "spec.state.directory": ("/srv/state", ChangeKind.REFUSED),
    "spec.state.memory": ("2Gi", ChangeKind.ROLLING),
    "spec.state.checkpoint.location": ("s3://bucket/ferry", ChangeKind.ROLLING),
    "spec.state.checkpoint.every": ("5m", ChangeKind.RESTART),
    "spec.state.checkpoint.keep": (7, ChangeKind.RESTART),
    "spec.autoscale.min": (2, ChangeKind.LIVE),
    "spec.autoscale.max": (4, ChangeKind.LIVE),
    "spec.autoscale.utilisation": ("60%", ChangeKind.LIVE),
    "spec.autoscale.cooldown": ("1m", ChangeKind.LIVE),
    "spec.autoscale.mode": ("auto", ChangeKind.LIVE),
    "spec.epoch.mode": ("micro-batch", ChangeKind.RESTART),
    "spec.epoch.interval": ("1s", ChangeKind.RESTART),
    "spec.epoch.maxRows": (5, ChangeKind.RESTART),
    "spec.driver.standby": (True, ChangeKind.RESTART),
    "spec.balance.mode": ("auto", ChangeKind.LIVE),
    "spec.balance.gain": ("25%", ChangeKind.LIVE),
    "spec.balance.horizon": ("1h", ChangeKind.LIVE),
    "spec.handover.strategy": ("fluid", ChangeKind.LIVE),
    "spec.handover.batch": (2, ChangeKind.LIVE),
    "spec.handover.gap": (2, ChangeKind.LIVE),
    "spec.handover.switchovers": (4, ChangeKind.LIVE),
    "spec.handover.warm": (False, ChangeKind.LIVE),
    "spec.handover.atEpoch": (90, ChangeKind.LIVE),
    "spec.handover.atEventTime": (90_000, ChangeKind.LIVE),
    "spec.handover.atWindow": ("never", ChangeKind.LIVE),
    "spec.handover.bandwidth": ("64Mi", ChangeKind.LIVE),
    "spec.handover.deadline": ("1m", ChangeKind.LIVE),
    "spec.transport.mode": ("tcp", ChangeKind.ROLLING),
    "spec.transport.rdma.mode": ("shared", ChangeKind.ROLLING),
    "spec.transport.rdma.resource": ("rdma/hca", ChangeKind.ROLLING),
    "spec.transport.rdma.networks": ("fast", ChangeKind.ROLLING),
    "spec.transport.rdma.device": ("mlx5_0", ChangeKind.ROLLING),
    "spec.transport.rdma.gidIndex": (3, ChangeKind.ROLLING),
    "spec.transport.rdma.slots": (4, ChangeKind.ROLLING),
    "spec.transport.rdma.slotBytes": (4096, ChangeKind.ROLLING),
    "spec.transport.rdma.notify": ("imm", ChangeKind.ROLLING),
    "spec.transport.rdma.pinned": ("7Mi", ChangeKind.ROLLING),
    "spec.transport.rdma.lend": ("512Ki", ChangeKind.ROLLING),
    "spec.security.tls": ("off", ChangeKind.REFUSED),
    "spec.failure.heartbeat": ("400ms", ChangeKind.ROLLING),
    "spec.failure.timeout": ("3s", ChangeKind.ROLLING),
    "spec.failure.returnDeadline": ("10s", ChangeKind.RESTART),
    "spec.failure.slow": ("2m", ChangeKind.RESTART),
    "spec.failure.progressDeadline": ("1h", ChangeKind.LIVE),
    "spec.failure.stallDeadline": ("1h", ChangeKind.LIVE),
    "spec.sink.patience": ("10m", ChangeKind.RESTART),
    "spec.deadLetter.directory": ("/data/bad", ChangeKind.RESTART),
    "spec.deadLetter.onCrash": ("set-aside", ChangeKind.RESTART),
    "spec.spark": ({"spark.x": "y"}, ChangeKind.RESTART),
    "spec.kubernetes.image": ("jobs:2", ChangeKind.ROLLING),
    "spec.kubernetes.imagePullPolicy": ("Always", ChangeKind.LIVE),
    "spec.kubernetes.network": ("host", ChangeKind.ROLLING),
    "spec.kubernetes.serviceAccount": ("jobs", ChangeKind.ROLLING),
    "spec.kubernetes.nodeSelector": ({"disk": "fast"}, ChangeKind.ROLLING),
    "spec.kubernetes.tolerations": ([{"operator": "Exists"}], ChangeKind.ROLLING),
    "spec.kubernetes.affinity": ({"nodeAffinity": {}}, ChangeKind.ROLLING),
    "spec.kubernetes.disruptionBudget": ("off", ChangeKind.LIVE),
    "spec.kubernetes.envFrom": (["store"], ChangeKind.ROLLING),
    "spec.kubernetes.env": ([{"name": "A", "value": "b"}], ChangeKind.ROLLING),
    "spec.kubernetes.driverPodTemplate": ({"metadata": {"labels": {"team": "a"}}}, ChangeKind.RESTART),
    "spec.kubernetes.workerPodTemplate": ({"metadata": {"labels": {"team": "a"}}}, ChangeKind.ROLLING),
    "spec.kubernetes.driver.cpu": ("1", ChangeKind.RESTART),
    "spec.kubernetes.driver.memory": ("2Gi", ChangeKind.RESTART),
    "spec.kubernetes.user": (2000, ChangeKind.ROLLING),
    "spec.kubernetes.executor.cpu": ("1", ChangeKind.ROLLING),
    "spec.kubernetes.executor.memory": ("2Gi", ChangeKind.ROLLING),
    "spec.kubernetes.sidecar.cpu": ("1", ChangeKind.ROLLING),
    "spec.kubernetes.sidecar.memory": ("2Gi", ChangeKind.ROLLING),
    "spec.kubernetes.sidecar.hugePages": ("4Mi", ChangeKind.ROLLING),
    "spec.kubernetes.stateVolume.medium": ("memory", ChangeKind.REFUSED),
    "spec.kubernetes.stateVolume.path": ("/srv/other", ChangeKind.REFUSED),
    "spec.kubernetes.stateVolume.size": ("64Mi", ChangeKind.REFUSED),
    "spec.kubernetes.volumes": (DATA, ChangeKind.ROLLING),
    "spec.kubernetes.checkpoint": ("/data/checkpoint", ChangeKind.REFUSED),
}
"""Another value for every field, and what the change does."""

BEFORE: dict[str, Document] = {
    "spec.pipeline.file": {"spec": {"pipeline": {"module": None, "file": "/jobs/old.py"}}},
    "spec.pipeline.configMap": {"spec": {"pipeline": {"module": None, "configMap": {"name": "jobs", "key": "a.py"}}}},
    "spec.suspend": {"spec": {"state": {"checkpoint": {"location": "s3://bucket/ferry"}}}},
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
    assert str(change).startswith("spec.workers: 2 -> 3 (handover: New workers are started")
    (change,) = classify(job(), job({"spec": {"kubernetes": {"image": "jobs:2"}}}))
    assert str(change).startswith("spec.kubernetes.image: null -> jobs:2 (rolling: ")


def test_what_is_replaced() -> None:
    """Only a rolling change replaces worker pods, and no mild one restarts the driver."""
    for entry in TABLE:
        assert entry.workers == (entry.kind is ChangeKind.ROLLING)
        assert entry.driver == (entry.kind is ChangeKind.RESTART) or entry.kind is ChangeKind.ROLLING
    restarting = {c.path for c in changes_of("spec.failure.timeout", "spec.failure.heartbeat") if c.entry.driver}
    assert restarting == {"spec.failure.timeout"}


def changes_of(*paths: str) -> list[Change]:
    return classify(job(), job(*(at(path, CHANGED[path][0]) for path in paths)))


def test_only_kubernetes_uses_its_section() -> None:
    more = {
        "spec.pipeline.configMap",
        "spec.pipeline.version",
        "spec.deploy.shadow",
        "spec.deploy.keep",
        "spec.deploy.atEpoch",
        "spec.deploy.atEventTime",
        "spec.deploy.probation",
        "spec.deploy.slower",
        "spec.deploy.rewind",
        "spec.suspend",
        "spec.ttlAfterFinished",
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
