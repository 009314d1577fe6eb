"""The Secrets, accounts, claims, directories of nodes, networks, devices, images and users that a job may name. Pure.

The operator creates pods for every user with the right to create a StreamJob, and gives them the objects that the job names.
It refuses a name that is not allowed before it creates a pod, and always refuses names of the installation itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ferry_operator.job.models import StreamJob
from ferry_operator.job.models_base import is_below
from ferry_operator.job.pod_template import RESERVED_KEYS

RESERVED_SECRETS = ("ferry-*", "*-run", "sh.helm.release.*")
"""Keys and passwords of an installation, settings of other jobs, and the releases of Helm with their values."""

RESERVED_ACCOUNTS = ("ferry-*",)


class _Names(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True, validate_by_name=True)


class Own(_Names):
    """Names that belong to the installation: no job may use them."""

    secrets: tuple[str, ...] = ()
    service_accounts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()


class Allowed(_Names):
    """Names that jobs may use. In names `*` stands for any text."""

    secrets: tuple[str, ...] = ("for-jobs-*",)
    service_accounts: tuple[str, ...] = ()
    """beside the default account"""
    host_paths: tuple[Annotated[str, Field(pattern="^/")], ...] = ()
    """directories of nodes, with all directories below them"""
    host_network: bool = False
    networks: tuple[str, ...] = ()
    """NetworkAttachmentDefinitions: 'name', or 'namespace/name'"""
    devices: tuple[str, ...] = ("rdma/*",)
    """resources of device plugins"""
    claims: tuple[str, ...] = ("*",)
    config_maps: tuple[str, ...] = ("*",)
    """in spec.pipeline.configMap: the operator reads them for the author of a job; and in templates"""
    taints: tuple[str, ...] = ("*",)
    """keys; a toleration without a key needs '*'"""
    labels: tuple[str, ...] = ()
    """of a StreamJob, copied to its pods, and of templates; Services and policies select pods by labels"""
    annotations: tuple[str, ...] = ()
    """of a StreamJob, copied to its pods, and of templates; programs of the cluster act on annotations"""
    priority_classes: tuple[str, ...] = ()
    runtime_classes: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    token_audiences: tuple[str, ...] = ()
    """of projected tokens; a token for the API server has the rights of the account of the pod"""
    csi_drivers: tuple[str, ...] = ()
    """of volumes that a pod names itself"""
    images: tuple[str, ...] = ("*",)
    """beside the default image; also of containers of templates"""
    users: tuple[int, ...] = ()
    """beside the default user"""
    own: Own = Own()

    @staticmethod
    def read(text: str) -> Allowed:
        """Parse the JSON of the chart; '': the defaults. Raises ValueError."""
        try:
            return Allowed.model_validate_json(text or "{}")
        except ValidationError as error:
            raise ValueError(f"FERRY_JOBS_ALLOW is invalid: {error}") from None


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default image, account and user of jobs; a job may also name them itself."""

    image: str
    service_account: str | None
    user: int | None


def refusals(job: StreamJob, allowed: Allowed, defaults: Defaults) -> list[str]:
    """All names of the job that are not allowed, but for names in templates and variables."""
    wrong = [f"spec.kubernetes.{text}" for text in _wrong(job, allowed, defaults)]
    wrong += [f"spec.transport.rdma.{text}" for text in _wrong_rdma(job, allowed)]
    source = job.spec.pipeline.config_map
    if source is not None and not matches(source.name, allowed.config_maps):
        wrong.append(
            f"spec.pipeline.configMap: no job may read {source.name!r}; {remedy('configMaps', allowed.config_maps)}"
        )
    return wrong


def _wrong(job: StreamJob, allowed: Allowed, defaults: Defaults) -> Iterator[str]:
    kubernetes, own = job.spec.kubernetes, allowed.own
    for name in kubernetes.env_from:
        yield from (f"envFrom: {text}" for text in wrong_secret(name, allowed))
    account = kubernetes.service_account
    if account not in (None, defaults.service_account):
        if matches(account, own.service_accounts) or (
            matches(account, RESERVED_ACCOUNTS) and account not in allowed.service_accounts
        ):
            yield f"serviceAccount: {account!r} belongs to Ferry: no job may run under it"
        elif not matches(account, allowed.service_accounts):
            yield f"serviceAccount: no job may run under {account!r}; {remedy('serviceAccounts', allowed.service_accounts)}"
    if kubernetes.image not in (None, defaults.image) and not matches(kubernetes.image, allowed.images):
        yield f"image: no job may run {kubernetes.image!r}; {remedy('images', allowed.images)}"
    if kubernetes.user not in (None, defaults.user, *allowed.users):
        yield f"user: no job may run as {kubernetes.user}; {remedy('users', [str(user) for user in allowed.users])}"
    if kubernetes.network == "host" and not allowed.host_network:
        yield "network: no job may use the host's network; an administrator can allow it with jobs.allow.hostNetwork"
    directories = [(f"volumes.{volume.name}.hostPath", volume.host_path) for volume in kubernetes.volumes]
    for field, path in (("stateVolume.path", kubernetes.state_volume.path), *directories):
        if path is not None:
            yield from (f"{field}: {text}" for text in wrong_directory(path, allowed))
    for volume in kubernetes.volumes:
        if volume.claim is not None:
            yield from (f"volumes.{volume.name}.claim: {text}" for text in wrong_claim(volume.claim, allowed))
    for toleration in kubernetes.tolerations:
        yield from (f"tolerations: {text}" for text in wrong_taint(toleration, allowed))
    if of_other_namespaces(kubernetes.affinity):
        yield "affinity: no job may select pods of other namespaces"


def wrong_secret(name: str, allowed: Allowed) -> Iterator[str]:
    """Why no job may use a Secret."""
    if matches(name, (*RESERVED_SECRETS, *allowed.own.secrets)):
        yield f"the Secret {name!r} belongs to Ferry or to another job: no job may read it"
    elif not matches(name, allowed.secrets):
        yield f"no job may read the Secret {name!r}; {remedy('secrets', allowed.secrets)}"


def wrong_claim(name: str, allowed: Allowed) -> Iterator[str]:
    """Why no job may mount a claim."""
    if name in allowed.own.claims:
        yield f"{name!r} belongs to Ferry: no job may mount it"
    elif not matches(name, allowed.claims):
        yield f"no job may mount {name!r}; {remedy('claims', allowed.claims)}"


def wrong_directory(path: str, allowed: Allowed) -> Iterator[str]:
    """Why no job may use a directory of a node."""
    if not any(is_below(path, root) for root in allowed.host_paths):
        yield f"no job may use {path!r} of a node; {remedy('hostPaths', allowed.host_paths)}"


def wrong_taint(toleration: dict[str, Any], allowed: Allowed) -> Iterator[str]:
    """Why no job may have a toleration."""
    key = str(toleration.get("key") or "")
    if not matches(key, allowed.taints):
        which = f"the taint {key!r}" if key else "every taint"
        yield f"no job may tolerate {which}; {remedy('taints', allowed.taints)}"


def _wrong_rdma(job: StreamJob, allowed: Allowed) -> Iterator[str]:
    rdma = job.spec.transport.rdma
    if rdma.mode != "off" and not matches(rdma.resource, allowed.devices):
        yield f"resource: no job may have {rdma.resource!r}; {remedy('devices', allowed.devices)}"
    for word in rdma.networks.split(",") if rdma.networks is not None else ():
        network = word.strip().partition("@")[0]
        if not matches(network, allowed.networks):
            yield f"networks: no job may join {network!r}; {remedy('networks', allowed.networks)}"


def of_other_namespaces(term: Any) -> bool:
    """Whether an affinity selects pods of other namespaces: by anti-affinity a job could keep them off nodes."""
    if isinstance(term, list):
        return any(map(of_other_namespaces, term))
    if not isinstance(term, dict):
        return False
    if term.keys() & {"namespaces", "namespaceSelector"}:
        return True
    return any(of_other_namespaces(part) for key, part in term.items() if key != "labelSelector")


def labels(job: StreamJob, allowed: Allowed) -> dict[str, str]:
    """Labels of the StreamJob for its pods, without the labels by which programs select their own pods."""
    return _inherited(job.metadata.labels, allowed.labels)


def inherited_annotations(job: StreamJob, allowed: Allowed) -> dict[str, str]:
    """Annotations of the StreamJob for its pods."""
    return _inherited(job.metadata.annotations, allowed.annotations)


def _inherited(pairs: dict[str, str], patterns: Sequence[str]) -> dict[str, str]:
    return {key: value for key, value in pairs.items() if matches(key, patterns) and not key.startswith(RESERVED_KEYS)}


def remedy(value: str, patterns: Sequence[str]) -> str:
    """What is allowed instead of a refused name."""
    return f"allowed: {', '.join(patterns) or 'no name'}; an administrator can add it to jobs.allow.{value}"


def matches(name: str | None, patterns: Sequence[str]) -> bool:
    """Whether a name is one of these, in which `*` stands for any text."""
    return name is not None and any(_like(name, pattern) for pattern in patterns)


def _like(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
