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

from ferry.contract.errors import SpecRefused
from ferry_operator.job.models import StreamJob
from ferry_operator.job.models_base import is_below

RESERVED_SECRETS = ("ferry-*", "*-run", "sh.helm.release.*")
"""Keys and passwords of an installation, settings of other jobs, and the releases of Helm with their values."""

RESERVED_ACCOUNTS = ("ferry-*",)

RESERVED_LABELS = ("app.kubernetes.io/", "ferry.dev/")
"""The first selects pods of a release in Services, policies and budgets; by the second the operator selects pods of jobs."""


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
    """in spec.pipeline.configMap: the operator reads them for the author of a job"""
    taints: tuple[str, ...] = ("*",)
    """keys; a toleration without a key needs '*'"""
    labels: tuple[str, ...] = ()
    """labels of a StreamJob that the operator copies to its pods; Services and policies select pods by labels"""
    images: tuple[str, ...] = ("*",)
    """beside the default image"""
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


def check(job: StreamJob, allowed: Allowed, defaults: Defaults) -> None:
    """Raises SpecRefused with all names of the job that are not allowed."""
    wrong = [f"spec.kubernetes.{text}" for text in _wrong(job, allowed, defaults)]
    wrong += [f"spec.transport.rdma.{text}" for text in _wrong_rdma(job, allowed)]
    source = job.spec.pipeline.config_map
    if source is not None and not _any(source.name, allowed.config_maps):
        wrong.append(
            f"spec.pipeline.configMap: no job may read {source.name!r}; {_may('configMaps', allowed.config_maps)}"
        )
    if wrong:
        raise SpecRefused("; ".join(wrong))


def _wrong(job: StreamJob, allowed: Allowed, defaults: Defaults) -> Iterator[str]:
    kubernetes, own = job.spec.kubernetes, allowed.own
    for name in kubernetes.env_from:
        if _any(name, (*RESERVED_SECRETS, *own.secrets)):
            yield f"envFrom: the Secret {name!r} belongs to Ferry or to another job: no job may read it"
        elif not _any(name, allowed.secrets):
            yield f"envFrom: no job may read the Secret {name!r}; {_may('secrets', allowed.secrets)}"
    account = kubernetes.service_account
    if account not in (None, defaults.service_account):
        if _any(account, own.service_accounts) or (
            _any(account, RESERVED_ACCOUNTS) and account not in allowed.service_accounts
        ):
            yield f"serviceAccount: {account!r} belongs to Ferry: no job may run under it"
        elif not _any(account, allowed.service_accounts):
            yield f"serviceAccount: no job may run under {account!r}; {_may('serviceAccounts', allowed.service_accounts)}"
    if kubernetes.image not in (None, defaults.image) and not _any(kubernetes.image, allowed.images):
        yield f"image: no job may run {kubernetes.image!r}; {_may('images', allowed.images)}"
    if kubernetes.user not in (None, defaults.user, *allowed.users):
        yield f"user: no job may run as {kubernetes.user}; {_may('users', [str(user) for user in allowed.users])}"
    if kubernetes.network == "host" and not allowed.host_network:
        yield "network: no job may use the host's network; an administrator can allow it with jobs.allow.hostNetwork"
    directories = [(f"volumes.{volume.name}.hostPath", volume.host_path) for volume in kubernetes.volumes]
    for field, path in (("stateVolume.path", kubernetes.state_volume.path), *directories):
        if path is not None and not any(is_below(path, root) for root in allowed.host_paths):
            yield f"{field}: no job may use {path!r} of a node; {_may('hostPaths', allowed.host_paths)}"
    for volume in kubernetes.volumes:
        if volume.claim in own.claims:
            yield f"volumes.{volume.name}.claim: {volume.claim!r} belongs to Ferry: no job may mount it"
        elif volume.claim is not None and not _any(volume.claim, allowed.claims):
            yield f"volumes.{volume.name}.claim: no job may mount {volume.claim!r}; {_may('claims', allowed.claims)}"
    for taint in kubernetes.tolerations:
        key = str(taint.get("key") or "")
        if not _any(key, allowed.taints):
            which = f"the taint {key!r}" if key else "every taint"
            yield f"tolerations: no job may tolerate {which}; {_may('taints', allowed.taints)}"
    if _of_other_namespaces(kubernetes.affinity):
        yield "affinity: no job may select pods of other namespaces"


def _wrong_rdma(job: StreamJob, allowed: Allowed) -> Iterator[str]:
    rdma = job.spec.transport.rdma
    if rdma.mode != "off" and not _any(rdma.resource, allowed.devices):
        yield f"resource: no job may have {rdma.resource!r}; {_may('devices', allowed.devices)}"
    for word in rdma.networks.split(",") if rdma.networks is not None else ():
        network = word.strip().partition("@")[0]
        if not _any(network, allowed.networks):
            yield f"networks: no job may join {network!r}; {_may('networks', allowed.networks)}"


def _of_other_namespaces(term: Any) -> bool:
    """Whether an affinity selects pods of other namespaces: by anti-affinity a job could keep them off nodes."""
    if isinstance(term, list):
        return any(map(_of_other_namespaces, term))
    if not isinstance(term, dict):
        return False
    if term.keys() & {"namespaces", "namespaceSelector"}:
        return True
    return any(_of_other_namespaces(part) for key, part in term.items() if key != "labelSelector")


def labels(job: StreamJob, allowed: Allowed) -> dict[str, str]:
    """Labels of the StreamJob for its pods, without the labels by which Ferry selects its own pods."""
    pairs = job.metadata.labels.items()
    return {key: value for key, value in pairs if _any(key, allowed.labels) and not key.startswith(RESERVED_LABELS)}


def _may(value: str, patterns: Sequence[str]) -> str:
    return f"allowed: {', '.join(patterns) or 'no name'}; an administrator can add it to jobs.allow.{value}"


def _any(name: str | None, patterns: Sequence[str]) -> bool:
    return name is not None and any(_like(name, pattern) for pattern in patterns)


def _like(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
