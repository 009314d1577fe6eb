"""The installation's image, Redis and key for every job, and the settings of a job's run made from these.

Pure. The secret of a run is derived from the key and the job's uid, so that no operator ever has to read a Secret.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import RunSettings
from ferry_operator.job.models import StreamJob
from ferry_operator.job.settings import Options, settings_for
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.manifests.allowed import Allowed, Usual

USER = 10001
"""User and group of the runtime image."""

DIRECTORY = Path("/var/lib/ferry")
"""Directory of the run in every pod of it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation of the operator."""

    namespace: str
    image: str
    """of jobs that name none"""
    redis: str
    """URL, with the password"""
    key: str
    """what the secrets of runs are derived from"""
    service_account: str | None = None
    """of jobs that name none; one without rights"""
    user: int | None = USER
    """of jobs that name none; None: as the cluster chooses"""
    read_nodes: bool = True
    """nodes may be listed"""
    metrics_secret: str | None = None
    """a Secret whose `token` is asked of whoever scrapes jobs; none: they serve no metrics"""
    allow: Allowed = field(default_factory=Allowed)
    """what jobs may name beside it"""

    @property
    def usual(self) -> Usual:
        """Image, account and user of jobs that name none."""
        return Usual(self.image, self.service_account, self.user)


@dataclass(frozen=True, slots=True)
class _Place:
    run: str
    path: Path


def redis_url(url: str, password: str) -> str:
    """The URL with a password, if it has none yet."""
    parts = urlsplit(url)
    if not password or "@" in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f":{quote(password, safe='')}@{parts.netloc}"))


def run_key(release: Installation, uid: str) -> str:
    """The secret of a run."""
    text = f"ferry run {release.namespace} {uid}".encode()
    return hmac.new(release.key.encode(), text, hashlib.sha256).hexdigest()[:48]


def settings_of(job: StreamJob, memory: JobMemory, release: Installation) -> RunSettings:
    """The settings of the run's processes. Raises SpecRefused for a path that means nothing in a pod."""
    one = job.spec
    paths = {
        "pipeline.file": one.pipeline.file,
        "output": one.output,
        "deadLetter.directory": one.dead_letter.directory,
    }
    for where, path in paths.items():
        if path is not None and not path.startswith("/"):
            raise SpecRefused(f"spec.{where}: {path!r}: on Kubernetes, an absolute path in the image or on a volume")
    if one.kubernetes.state_volume.medium == "hostPath" and one.kubernetes.user is None and release.user is None:
        raise SpecRefused(
            "spec.kubernetes.stateVolume: a directory of the node is given to a user: set kubernetes.user"
        )
    place = _Place(names.run_name(job.metadata.name, memory.uid, memory.run), DIRECTORY)
    settings = settings_for(job, Path("/job.yaml"), place, Options().over(one.output or _output(job), one.events))
    lasting, begins = one.kubernetes.state_volume.lasting, memory.restore_from(one.restore_from)
    return replace(
        settings, secret=run_key(release, memory.uid), redis=release.redis, lasting=lasting, restore_from=begins
    )


def _output(job: StreamJob) -> str:
    """Where Parquet goes when the job does not say: to its first volume, else into the driver's pod, with which it goes."""
    shared = [volume.mount_path for volume in job.spec.kubernetes.volumes if not volume.read_only]
    return f"{shared[0]}/{job.metadata.name}/out" if shared else str(DIRECTORY / "out")


def seal(release: Installation, text: str) -> str:
    """A keyed digest: equal for equal texts, and no help in guessing them."""
    return hmac.new(release.key.encode(), text.encode(), hashlib.sha256).hexdigest()[:16]
