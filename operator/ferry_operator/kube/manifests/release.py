"""The installation: image, Redis and key for every job; and the settings of a job's run, which depend on these. Pure.

The secret of a run is derived from the key and the job's uid, so no operator needs the right to read Secrets.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import JOURNAL, RunSettings
from ferry_operator.job.models import StreamJob
from ferry_operator.job.settings import Options, settings_for
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.manifests.allowed import Allowed, Defaults

USER = 10001
"""User and group of the runtime image."""

DIRECTORY = Path("/var/lib/ferry")
"""Directory of a run in its pods."""


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation of the operator."""

    namespace: str
    image: str
    """default image of jobs"""
    redis: str
    """URL, with the password"""
    key: str
    """key from which the secrets of runs are derived"""
    service_account: str | None = None
    """default account of jobs; has no rights"""
    user: int | None = USER
    """default user of jobs; None: the cluster chooses"""
    read_nodes: bool = True
    """whether the operator may list nodes"""
    metrics_secret: str | None = None
    """Secret with the `token` that a scrape of a job presents; None: jobs serve no metrics"""
    allow: Allowed = field(default_factory=Allowed)
    """names that jobs may use beside the defaults"""

    @property
    def defaults(self) -> Defaults:
        """Default image, account and user of jobs."""
        return Defaults(self.image, self.service_account, self.user)


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


def settings_of(
    job: StreamJob, memory: JobMemory, release: Installation, text: str = "", begins_with: str = JOURNAL
) -> RunSettings:
    """The settings of the run's processes. Raises SpecRefused for a path that is invalid in a pod.

    `text`: of the program, packed, if a ConfigMap has it.
    """
    spec, source = job.spec, job.spec.pipeline.config_map
    paths = {
        "pipeline.file": spec.pipeline.file,
        "output": spec.output,
        "deadLetter.directory": spec.dead_letter.directory,
    }
    for where, path in paths.items():
        if path is not None and not path.startswith("/"):
            raise SpecRefused(
                f"spec.{where}: {path!r}: on Kubernetes, use an absolute path in the image or on a volume"
            )
    if spec.kubernetes.state_volume.medium == "hostPath" and spec.kubernetes.user is None and release.user is None:
        raise SpecRefused(
            "spec.kubernetes.stateVolume: a directory of the node needs an owner: set spec.kubernetes.user"
        )
    place = _Place(names.run_name(job.metadata.name, memory.uid, memory.run), DIRECTORY)
    settings = settings_for(job, Path("/job.yaml"), place, Options().over(spec.output or _output(job), spec.events))
    lasting, begins = spec.kubernetes.state_volume.lasting, memory.restore_from(spec.restore_from)
    return replace(
        settings,
        secret=run_key(release, memory.uid),
        redis=release.redis,
        lasting=lasting,
        restore_from=begins,
        pipeline_file=settings.pipeline_file if source is None else source.file,
        pipeline_text=text,
        begins_with=begins_with,
    )


def _output(job: StreamJob) -> str:
    """The default directory of Parquet output: on the first writable volume, else in the driver's pod, and lost with it."""
    shared = [volume.mount_path for volume in job.spec.kubernetes.volumes if not volume.read_only]
    return f"{shared[0]}/{job.metadata.name}/out" if shared else str(DIRECTORY / "out")


def seal(release: Installation, text: str) -> str:
    """A keyed digest: equal for equal texts, and useless for guesses without the key."""
    return hmac.new(release.key.encode(), text.encode(), hashlib.sha256).hexdigest()[:16]
