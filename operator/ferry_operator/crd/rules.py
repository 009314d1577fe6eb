"""The rules of the `StreamJob` resource that a schema alone cannot express, in CEL, each with a change that breaks it.

Pure: one table. The CRD is generated from it, and a test offers `valid` and `broken` of every rule to a real API server.
The models make the same checks for `ferry run`, except checks without a meaning there.

`replicas < workers` has one exception: a job of one worker may ask for one copy, as the defaults do after a scale to 1.
The job has no copy until a second worker comes. With more replicas `kubectl scale` is refused until
`state.replicas` is lowered, so a spec never asks for copies that cannot exist.
"""

from __future__ import annotations

from collections.abc import Iterable

from ferry.contract.rings import PAGE_BYTES as PAGE
from ferry_operator.crd.autoscale_rules import AUTOSCALE
from ferry_operator.crd.derived import bounds, immutables
from ferry_operator.crd.rule import BASE, DATA, HOST_PATH, Document, Reason, Rule, in_kubernetes, in_spec, patched
from ferry_operator.job.models import NAME_MAX, SPARK_OWNED, SPARK_UNUSED
from ferry_operator.job.models_base import PASSWORD_PATTERN, RESERVED

__all__ = ["BASE", "RULES", "Document", "Reason", "Rule", "patched"]


def _on_a_volume(path: str, volumes: str) -> str:
    below = f"{path} == v.mountPath || {path}.startsWith(v.mountPath + '/')"
    return f"!has({path}) || (has({volumes}) && {volumes}.exists(v, !v.readOnly && ({below})))"


def _keeps(name: str) -> str:
    return f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"


def _rests(job: str) -> str:
    return f"{job}.spec.suspend || {job}.spec.workers == 0"


FAILED_AT_ONCE = (
    "(has(self.status) && has(self.status.phase) && self.status.phase == 'Failed' && "
    "(!has(self.status.epoch) || self.status.epoch < 0))"
)
"""A job that failed before its first epoch: a user may still set `restoreFrom`."""


def _no_password(path: str) -> str:
    return f"!has({path}) || !{path}.matches('{PASSWORD_PATTERN}')"


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(f"'{text}'" for text in texts)


READ_ONLY: list[Document] = [{"name": "data", "mountPath": "/data", "claim": "data", "readOnly": True}]
CHECKPOINT_LOCATION: Document = {"checkpoint": {"location": "s3://bucket/ferry"}}
PASSWORD = "may not hold a password: every reader of the job would see it. Name a Secret in kubernetes.envFrom"
MEMORY: Document = {"medium": "memory", "size": "256Mi"}

WRITTEN: tuple[Rule, ...] = (
    Rule(
        "name-length",
        "",
        f"self.metadata.name.size() <= {NAME_MAX}",
        f"metadata.name: at most {NAME_MAX} characters, because names of pods contain it",
        broken={"metadata": {"name": "n" * (NAME_MAX + 1)}},
        valid={"metadata": {"name": "n" * NAME_MAX}},
    ),
    Rule(
        "name-label",
        "",
        "!self.metadata.name.contains('.')",
        "metadata.name: no dots, because names of pods contain it",
        broken={"metadata": {"name": "rules.v2"}},
    ),
    Rule(
        "replicas-below-workers",
        "spec",
        "self.state.replicas < self.workers || self.workers == 0 || (self.workers == 1 && self.state.replicas == 1)",
        "every copy needs a worker of its own beside the leader's: state.replicas must be less than workers",
        broken=in_spec(workers=2, state={"replicas": 2}),
        valid=in_spec(workers=1, state={"replicas": 1}),
        field_path=".workers",
    ),
    Rule(
        "instances-within-virtual-nodes",
        "spec",
        "self.workers * self.instancesPerWorker <= self.state.virtualNodes",
        "more instances (workers x instancesPerWorker) than state.virtualNodes: some instances would lead no virtual "
        "node",
        broken=in_spec(workers=5, instancesPerWorker=2, state={"virtualNodes": 8}),
        valid=in_spec(workers=4, instancesPerWorker=2, state={"virtualNodes": 8}),
        field_path=".workers",
    ),
    Rule(
        "shadow-or-keep",
        "spec.deploy",
        "!has(self.shadow) || !has(self.keep)",
        "choose one of shadow and keep: a shadow leaves the present program in force",
        broken=in_spec(deploy={"shadow": 10, "keep": "10m"}),
        valid=in_spec(deploy={"shadow": 10, "atEpoch": 1200}),
        reason="FieldValueForbidden",
        field_path=".keep",
    ),
    Rule(
        "rewind-alone",
        "spec.deploy",
        "!has(self.rewind) || !self.rewind || !has(self.shadow) && !has(self.keep) && !has(self.atEpoch) && "
        "!has(self.atEventTime)",
        "with rewind the state goes back at once: leave out shadow, keep, atEpoch and atEventTime",
        broken=in_spec(deploy={"rewind": True, "keep": "10m"}),
        reason="FieldValueForbidden",
    ),
    Rule(
        "suspend-has-a-location",
        "spec",
        "!(self.suspend || self.workers == 0) || has(self.state.checkpoint.location)",
        "suspend (and workers 0) needs state.checkpoint.location: without pods only a checkpoint keeps the state",
        broken=in_spec(state={"checkpoint": {"location": None}}),
        valid=in_spec(suspend=True, state=CHECKPOINT_LOCATION),
        reason="FieldValueRequired",
        field_path=".state.checkpoint.location",
    ),
    Rule(
        "restore-from-while-suspended",
        "spec",
        f"({_keeps('spec.restoreFrom')}) || {_rests('self')} || {_rests('oldSelf')} || {FAILED_AT_ONCE}",
        "only a job without state reads restoreFrom: suspend the job first",
        broken=in_spec(restoreFrom="latest"),
        update=True,
        field_path=".restoreFrom",
        sees_status=True,
    ),
    Rule(
        "restore-from-no-password",
        "spec",
        _no_password("self.restoreFrom"),
        f"restoreFrom {PASSWORD}",
        broken=in_spec(restoreFrom="s3://key:secret@bucket/a/manifests/1-1-x.json"),
        valid=in_spec(restoreFrom="s3://bucket/a/manifests/1-1-x.json"),
        field_path=".restoreFrom",
    ),
    Rule(
        "location-no-password",
        "spec.state.checkpoint",
        _no_password("self.location"),
        f"location {PASSWORD}",
        broken=in_spec(state={"checkpoint": {"location": "s3://key:secret@bucket/ferry"}}),
        valid=in_spec(state=CHECKPOINT_LOCATION),
        field_path=".location",
    ),
    Rule(
        "location-on-a-volume",
        "spec",
        "!has(self.state.checkpoint.location) || "
        "(self.state.checkpoint.location.contains('://') && !self.state.checkpoint.location.startsWith('file:')) || "
        f"({_on_a_volume('self.state.checkpoint.location', 'self.kubernetes.volumes')})",
        "state.checkpoint.location must be a URL such as s3://BUCKET/DIRECTORY, or below the mountPath of a writable "
        "volume of kubernetes.volumes",
        broken=in_spec(state={"checkpoint": {"location": "/other/checkpoints"}}),
        valid=in_spec(state={"checkpoint": {"location": "/data/checkpoints"}}, kubernetes={"volumes": DATA}),
        field_path=".state.checkpoint.location",
    ),
    Rule(
        "output-on-a-volume",
        "spec",
        _on_a_volume("self.output", "self.kubernetes.volumes"),
        "output must be below the mountPath of a writable volume of kubernetes.volumes",
        broken=in_spec(output="/other/out"),
        valid=in_spec(output="/data/out", kubernetes={"volumes": DATA}),
        field_path=".output",
    ),
    Rule(
        "dead-letter-on-a-volume",
        "spec",
        _on_a_volume("self.deadLetter.directory", "self.kubernetes.volumes"),
        "deadLetter.directory must be below the mountPath of a writable volume of kubernetes.volumes",
        broken=in_kubernetes(volumes=READ_ONLY),
        valid=in_spec(deadLetter={"directory": "/data/bad"}, kubernetes={"volumes": DATA}),
        field_path=".deadLetter.directory",
    ),
    Rule(
        "rdma-host-network",
        "spec",
        "self.transport.rdma.mode != 'hostNetwork' || self.kubernetes.network == 'host'",
        "transport.rdma.mode hostNetwork needs kubernetes.network host",
        broken=in_kubernetes(network="pod"),
        valid=in_spec(
            transport={"rdma": {"mode": "hostNetwork", "resource": "rdma/hca"}}, kubernetes={"network": "host"}
        ),
        field_path=".kubernetes.network",
    ),
    Rule(
        "pipeline-one-source",
        "spec.pipeline",
        "[has(self.module), has(self.file), has(self.configMap)].filter(given, given).size() == 1",
        "give exactly one of module, file and configMap",
        broken=in_spec(pipeline={"module": "jobs.rules"}),
        valid=in_spec(pipeline={"module": None, "file": "/jobs/rules.py"}),
    ),
    Rule(
        "pipeline-file-absolute",
        "spec.pipeline.file",
        "self.startsWith('/')",
        "on Kubernetes it is an absolute path in the image or on a volume",
        broken=in_spec(pipeline={"file": "rules.py"}),
        valid=in_spec(pipeline={"module": None, "file": "/jobs/rules.py"}),
    ),
    Rule(
        "virtual-nodes-power-of-two",
        "spec.state.virtualNodes",
        f"self in [{', '.join(str(1 << bits) for bits in range(16))}]",
        "must be a power of two, such as 32 or 64",
        broken=in_spec(state={"virtualNodes": 48}),
        valid=in_spec(state={"virtualNodes": 32768}),
    ),
    Rule(
        "no-state-directory",
        "spec.state",
        "!has(self.directory)",
        "directory is for one machine; on Kubernetes state lives in kubernetes.stateVolume",
        broken=in_spec(state={"directory": "/srv/state"}),
        reason="FieldValueForbidden",
        field_path=".directory",
    ),
    Rule(
        "no-standby",
        "spec.driver",
        "!self.standby",
        "standby is for one machine; on Kubernetes a new pod replaces a lost driver's pod",
        broken=in_spec(driver={"standby": True}),
        reason="FieldValueForbidden",
        field_path=".standby",
    ),
    Rule(
        "timeout-two-heartbeats",
        "spec.failure",
        "duration(self.timeout) > duration(self.heartbeat) + duration(self.heartbeat)",
        "timeout must be more than two heartbeats: a heartbeat may get lost",
        broken=in_spec(failure={"timeout": "2s"}),
        valid=in_spec(failure={"heartbeat": "1s", "timeout": "2001ms"}),
        field_path=".timeout",
    ),
    Rule(
        "rdma-resource",
        "spec.transport.rdma",
        "self.mode == 'off' || has(self.resource)",
        "resource is needed unless the mode is off",
        broken=in_spec(transport={"rdma": {"resource": None}}),
        valid=in_spec(transport={"rdma": {"mode": "shared", "resource": "rdma/hca"}}),
        reason="FieldValueRequired",
        field_path=".resource",
    ),
    Rule(
        "rdma-networks",
        "spec.transport.rdma",
        "!has(self.networks) || self.mode == 'sriov'",
        "networks are for the mode sriov",
        broken=in_spec(transport={"rdma": {"mode": "shared"}}),
        valid=in_spec(transport={"rdma": {"mode": "sriov", "resource": "rdma/vf", "networks": "fast"}}),
        reason="FieldValueForbidden",
        field_path=".networks",
    ),
    Rule(
        "rdma-pinned",
        "spec.transport.rdma",
        "quantity(string(self.pinned)).asApproximateFloat() >= "
        f"double(2 * ((self.slots * self.slotBytes + {PAGE - 1}) / {PAGE} * {PAGE} + {PAGE})) + "
        "quantity(string(self.lend)).asApproximateFloat()",
        "pinned is less than the memory that one link pins (2 x slots x slotBytes in whole pages, two more pages, and "
        "lend)",
        broken=in_spec(transport={"rdma": {"pinned": "31Ki"}}),
        valid=in_spec(transport={"rdma": {"slots": 2, "slotBytes": 4096, "pinned": "32Ki", "lend": "8Ki"}}),
        field_path=".pinned",
    ),
    Rule(
        "rdma-has-a-device",
        "spec.transport",
        "self.mode != 'rdma' || self.rdma.mode != 'off'",
        "mode rdma needs a device: set rdma.mode and rdma.resource",
        broken=in_spec(transport={"rdma": {"mode": "off"}}),
        valid=in_spec(transport={"mode": "rdma", "rdma": {"mode": "shared", "resource": "rdma/hca"}}),
        reason="FieldValueRequired",
        field_path=".rdma",
    ),
    Rule(
        "rdma-not-with-tcp",
        "spec.transport",
        "self.mode != 'tcp' || self.rdma.mode == 'off'",
        "rdma.mode asks for a device, and mode tcp would not use it",
        broken=in_spec(transport={"mode": "tcp"}),
        valid=in_spec(transport={"rdma": {"mode": "sriov", "resource": "rdma/hca"}}),
        field_path=".mode",
    ),
    Rule(
        "spark-keys",
        "spec.spark",
        "self.all(key, key.startsWith('spark.'))",
        "keys begin with 'spark.'",
        broken=in_spec(spark={"sql.ansi.enabled": "true"}),
        valid=in_spec(spark={"spark.sql.ansi.enabled": "true"}),
    ),
    Rule(
        "spark-owned-keys",
        "spec.spark",
        f"!self.exists(key, key in [{_quoted(SPARK_OWNED)}])",
        "these keys belong to Ferry: " + "; ".join(f"{key}: {instead}" for key, instead in SPARK_OWNED.items()),
        broken=in_spec(spark={"spark.executor.instances": "3"}),
        reason="FieldValueForbidden",
    ),
    *(
        Rule(
            f"spark-no-{beginning.removeprefix('spark.').rstrip('.').replace('.', '-')}",
            "spec.spark",
            f"!self.exists(key, key.startsWith('{beginning}'))",
            f"{beginning}* does nothing here: {instead}",
            broken=in_spec(spark={f"{beginning}enabled": "true"}),
            reason="FieldValueForbidden",
        )
        for beginning, instead in SPARK_UNUSED.items()
    ),
    Rule(
        "checkpoint-on-a-volume",
        "spec.kubernetes",
        _on_a_volume("self.checkpoint", "self.volumes"),
        "checkpoint must be below the mountPath of a writable volume of volumes",
        broken=in_kubernetes(volumes=READ_ONLY),
        valid=in_kubernetes(volumes=DATA, checkpoint="/data/checkpoint"),
        field_path=".checkpoint",
    ),
    Rule(
        "memory-fits-sidecar",
        "spec.kubernetes",
        "self.stateVolume.medium != 'memory' || !has(self.stateVolume.size) || "
        "quantity(string(self.stateVolume.size)).compareTo(quantity(string(self.sidecar.memory))) <= 0",
        "stateVolume.size of the medium memory counts as memory of the sidecar, and sidecar.memory is smaller",
        broken=in_kubernetes(sidecar={"memory": "128Mi"}),
        valid=in_kubernetes(stateVolume=MEMORY, sidecar={"memory": "256Mi"}),
        field_path=".stateVolume.size",
    ),
    Rule(
        "host-path-has-path",
        "spec.kubernetes.stateVolume",
        "(self.medium == 'hostPath') == has(self.path)",
        "path belongs to the medium hostPath, and to no other",
        broken=in_kubernetes(stateVolume={"path": None}),
        valid=in_kubernetes(stateVolume=HOST_PATH),
        field_path=".path",
    ),
    Rule(
        "memory-has-size",
        "spec.kubernetes.stateVolume",
        "self.medium != 'memory' || has(self.size)",
        "size is needed for the medium memory",
        broken=in_kubernetes(stateVolume={"size": None}),
        valid=in_kubernetes(stateVolume=MEMORY),
        reason="FieldValueRequired",
        field_path=".size",
    ),
    Rule(
        "host-path-has-no-size",
        "spec.kubernetes.stateVolume",
        "self.medium != 'hostPath' || !has(self.size)",
        "size cannot be enforced for the medium hostPath",
        broken=in_kubernetes(stateVolume={"size": "1Gi"}),
        valid=in_kubernetes(stateVolume=HOST_PATH),
        reason="FieldValueForbidden",
        field_path=".size",
    ),
    Rule(
        "mount-paths-differ",
        "spec.kubernetes.volumes",
        "self.all(v, self.exists_one(w, w.mountPath == v.mountPath))",
        "two volumes have the same mountPath",
        broken=in_kubernetes(volumes=[*DATA, {"name": "more", "mountPath": "/data", "claim": "more"}]),
        valid=in_kubernetes(volumes=[*DATA, {"name": "more", "mountPath": "/data/more", "claim": "more"}]),
    ),
    Rule(
        "volume-one-source",
        "spec.kubernetes.volumes[]",
        "has(self.claim) != has(self.hostPath)",
        "give exactly one of claim and hostPath",
        broken=in_kubernetes(volumes=[{"name": "data", "mountPath": "/data"}]),
        valid=in_kubernetes(volumes=[{"name": "data", "mountPath": "/data", "hostPath": "/srv/data"}]),
    ),
    Rule(
        "volume-not-over-ferry",
        "spec.kubernetes.volumes[]",
        f"![{_quoted(RESERVED)}].exists(own, self.mountPath == own || self.mountPath.startsWith(own + '/') || "
        "own.startsWith(self.mountPath + '/'))",
        f"mountPath may not contain or be below {' or '.join(RESERVED)}: Ferry mounts its own files there",
        broken=in_kubernetes(volumes=[{"name": "data", "mountPath": "/var/lib", "claim": "data"}]),
        valid=in_kubernetes(volumes=[{"name": "data", "mountPath": "/var/library", "claim": "data"}]),
        reason="FieldValueForbidden",
        field_path=".mountPath",
    ),
)
"""The rules that are written by hand."""

RULES: tuple[Rule, ...] = (*WRITTEN, *AUTOSCALE, *immutables(), *bounds())
"""All rules of the custom resource."""
