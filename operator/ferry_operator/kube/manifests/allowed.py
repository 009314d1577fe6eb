"""The Secrets, accounts, claims, directories of nodes, networks, devices, images and users that a job may name. Pure.

The operator makes pods for everybody who may create a StreamJob, and gives them what the job names. A name that is not
allowed is refused before a pod is made; names that belong to the installation are refused even if they are allowed.
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
"""Keys and passwords of an installation, settings of other jobs, and what Helm keeps of releases, values and all."""

RESERVED_ACCOUNTS = ("ferry-*",)

RESERVED_LABELS = ("app.kubernetes.io/", "ferry.dev/")
"""Services, policies and budgets of a release choose its pods by the first, the operator pods of jobs by the second."""


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
    """beside that of jobs that name none"""
    host_paths: tuple[Annotated[str, Field(pattern="^/")], ...] = ()
    """directories of nodes: these, and all below them"""
    host_network: bool = False
    networks: tuple[str, ...] = ()
    """of the attachments of further networks: 'name', or 'namespace/name'"""
    devices: tuple[str, ...] = ("rdma/*",)
    """resources of device plugins"""
    claims: tuple[str, ...] = ("*",)
    taints: tuple[str, ...] = ("*",)
    """keys; a toleration without a key needs '*'"""
    labels: tuple[str, ...] = ()
    """of a StreamJob that its pods get, too: others choose pods by labels, for Services and policies"""
    images: tuple[str, ...] = ("*",)
    """beside that of jobs that name none"""
    users: tuple[int, ...] = ()
    """beside that of jobs that name none"""
    own: Own = Own()

    @staticmethod
    def read(text: str) -> Allowed:
        """From JSON, as the chart writes it; '': the defaults. Raises ValueError."""
        try:
            return Allowed.model_validate_json(text or "{}")
        except ValidationError as error:
            raise ValueError(f"what jobs may name is not readable: {error}") from None


@dataclass(frozen=True, slots=True)
class Usual:
    """Image, account and user of jobs that name none; a job may name these, too."""

    image: str
    service_account: str | None
    user: int | None


def check(job: StreamJob, allowed: Allowed, usual: Usual) -> None:
    """Raises SpecRefused with all that the job names and may not."""
    wrong = [f"spec.kubernetes.{one}" for one in _wrong(job, allowed, usual)]
    wrong += [f"spec.transport.rdma.{one}" for one in _wrong_rdma(job, allowed)]
    if wrong:
        raise SpecRefused("; ".join(wrong))


def _wrong(job: StreamJob, allowed: Allowed, usual: Usual) -> Iterator[str]:
    one, own = job.spec.kubernetes, allowed.own
    for name in one.env_from:
        if _any(name, (*RESERVED_SECRETS, *own.secrets)):
            yield f"envFrom: the Secret {name!r} belongs to Ferry or to another job: no job may read it"
        elif not _any(name, allowed.secrets):
            yield f"envFrom: no job may read the Secret {name!r}; {_may('secrets', allowed.secrets)}"
    account = one.service_account
    if account not in (None, usual.service_account):
        if _any(account, own.service_accounts) or (
            _any(account, RESERVED_ACCOUNTS) and account not in allowed.service_accounts
        ):
            yield f"serviceAccount: {account!r} belongs to Ferry: no job may run under it"
        elif not _any(account, allowed.service_accounts):
            yield f"serviceAccount: no job may run under {account!r}; {_may('serviceAccounts', allowed.service_accounts)}"
    if one.image not in (None, usual.image) and not _any(one.image, allowed.images):
        yield f"image: no job may run {one.image!r}; {_may('images', allowed.images)}"
    if one.user not in (None, usual.user, *allowed.users):
        yield f"user: no job may run as {one.user}; {_may('users', [str(user) for user in allowed.users])}"
    if one.network == "host" and not allowed.host_network:
        yield "network: no job may use the host's network; who installed Ferry may allow it by jobs.allow.hostNetwork"
    directories = [(f"volumes.{volume.name}.hostPath", volume.host_path) for volume in one.volumes]
    for field, path in (("stateVolume.path", one.state_volume.path), *directories):
        if path is not None and not any(is_below(path, root) for root in allowed.host_paths):
            yield f"{field}: no job may use {path!r} of a node; {_may('hostPaths', allowed.host_paths)}"
    for volume in one.volumes:
        if volume.claim in own.claims:
            yield f"volumes.{volume.name}.claim: {volume.claim!r} belongs to Ferry: no job may mount it"
        elif volume.claim is not None and not _any(volume.claim, allowed.claims):
            yield f"volumes.{volume.name}.claim: no job may mount {volume.claim!r}; {_may('claims', allowed.claims)}"
    for taint in one.tolerations:
        key = str(taint.get("key") or "")
        if not _any(key, allowed.taints):
            which = f"the taint {key!r}" if key else "every taint"
            yield f"tolerations: no job may tolerate {which}; {_may('taints', allowed.taints)}"
    if _of_other_namespaces(one.affinity):
        yield "affinity: a job may say where it runs beside pods of its own namespace alone"


def _wrong_rdma(job: StreamJob, allowed: Allowed) -> Iterator[str]:
    rdma = job.spec.transport.rdma
    if rdma.mode != "off" and not _any(rdma.resource, allowed.devices):
        yield f"resource: no job may have {rdma.resource!r}; {_may('devices', allowed.devices)}"
    for word in rdma.networks.split(",") if rdma.networks is not None else ():
        network = word.strip().partition("@")[0]
        if not _any(network, allowed.networks):
            yield f"networks: no job may join {network!r}; {_may('networks', allowed.networks)}"


def _of_other_namespaces(term: Any) -> bool:
    """Whether an affinity looks at pods of other namespaces: one that keeps those away keeps them from nodes, too."""
    if isinstance(term, list):
        return any(map(_of_other_namespaces, term))
    if not isinstance(term, dict):
        return False
    if term.keys() & {"namespaces", "namespaceSelector"}:
        return True
    return any(_of_other_namespaces(part) for key, part in term.items() if key != "labelSelector")


def labels(job: StreamJob, allowed: Allowed) -> dict[str, str]:
    """Labels of the StreamJob that its pods get: never those by which Ferry chooses its own."""
    given = job.metadata.labels.items()
    return {key: value for key, value in given if _any(key, allowed.labels) and not key.startswith(RESERVED_LABELS)}


def _may(value: str, there: Sequence[str]) -> str:
    known = f"allowed: {', '.join(there)}" if there else "none is allowed"
    return f"{known}; who installed Ferry may add it to jobs.allow.{value}"


def _any(name: str | None, patterns: Sequence[str]) -> bool:
    return name is not None and any(_like(name, pattern) for pattern in patterns)


def _like(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
