"""The installation: image, Redis and key for every job; and the settings of a job's run, which depend on these. Pure.

The secret of a run is derived from a key and the job's uid, so no operator needs the right to read the Secrets of jobs.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import JOURNAL, RunSettings
from ferry.contract.tickets import derived
from ferry_operator.job.models import StreamJob
from ferry_operator.job.settings import Options, settings_for
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.redis_connection import CA
from ferry_operator.kube.api.redis_users import user_name
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
    redis_ca: str = field(default="", kw_only=True)
    """certificate that Redis's certificate has to lead to, as PEM; empty: a public one"""
    redis_tls_port: int = field(default=0, kw_only=True)
    """port for TLS of the chart's Redis, beside the port in the URL; 0: the URL says all"""
    redis_seal: str | None = field(default=None, kw_only=True)
    """seal of the URL from which the pods of a job have their revision; None: of `redis`"""
    key: str
    """key from which the secrets of runs are derived: the newest key, or the key of a run (`of_run`)"""
    service_account: str | None = None
    """default account of jobs; has no rights"""
    user: int | None = USER
    """default user of jobs; None: the cluster chooses"""
    read_nodes: bool = True
    """whether the operator may list nodes"""
    leaving_taints: tuple[str, ...] = names.LEAVING
    """taints of nodes that will be removed: KEY, or KEY=VALUE"""
    eviction_webhook: str | None = None
    """name of the ValidatingWebhookConfiguration for evictions; None: the operator serves no webhook"""
    eviction_address: str = ""
    """name of the service of the webhook, and the port at which this process serves it: HOST:PORT"""
    metrics_secret: str | None = None
    """Secret with the `token` that a scrape of a job presents; None: jobs serve no metrics"""
    roll_jobs: int = 3
    """jobs whose pods are replaced at a time, because a default has changed"""
    roll_seconds: float = 900.0
    """after this time without a replaced pod, no other job begins its roll"""
    metrics_token: str | None = None
    """the token, for the Secrets of jobs in other namespaces than the release's"""
    allow: Allowed = field(default_factory=Allowed)
    """names that jobs may use beside the defaults"""
    home: str = ""
    """namespace and name of the release, which tell it from others at one Redis; empty: its namespace"""
    key_secret: str | None = None
    """Secret with the keys, which the operator reads; None: `key` is the only one"""
    keys: Mapping[int, str] = field(default_factory=dict)
    """all keys by number; empty: `key` is the only one"""

    @property
    def defaults(self) -> Defaults:
        """Default image, account and user of jobs."""
        return Defaults(self.image, self.service_account, self.user)

    @property
    def is_home(self) -> bool:
        """Whether this is the namespace of the release, with its Secrets."""
        return self.home.partition("/")[0] in ("", self.namespace)

    @property
    def newest_key(self) -> int:
        """Number of the key that new runs take."""
        return max(self.keys, default=1)

    def with_keys(self, keys: Mapping[int, str]) -> Installation:
        """The installation with these keys."""
        return replace(self, keys=keys, key=keys[max(keys)])

    def of_run(self, number: int) -> Installation | None:
        """The installation with the key of this number as its key; None without this key."""
        key = self.keys.get(number) if self.keys else self.key if number == 1 else None
        return None if key is None else replace(self, key=key)


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


def redis_address(release: Installation) -> str:
    """The URL by TLS with the certificate to trust. `Installation.redis`, from which pods have their revision, is without
    both: another certificate, or TLS, replaces no pod."""
    parts = urlsplit(release.redis)
    if release.redis_tls_port:
        netloc = f"{parts.netloc.removesuffix(f':{parts.port}')}:{release.redis_tls_port}"
        parts = parts._replace(scheme="rediss", netloc=netloc)
    if parts.scheme != "rediss" or not release.redis_ca:
        return urlunsplit(parts)
    trust = f"{CA}={quote(release.redis_ca, safe='')}"
    return urlunsplit(parts._replace(query=f"{parts.query}&{trust}".removeprefix("&")))


def clear_port(release: Installation) -> int:
    """The port for clear text of the chart's Redis, which the operator opens for runs that know no other port; else 0."""
    return urlsplit(release.redis).port or 0 if release.redis_tls_port else 0


def run_key(release: Installation, uid: str) -> str:
    """The secret of a run."""
    text = f"ferry run {release.namespace} {uid}".encode()
    return hmac.new(release.key.encode(), text, hashlib.sha256).hexdigest()[:48]


def redis_tag(release: Installation) -> str:
    """The tag of the users that this installation makes in Redis."""
    return hashlib.sha256(f"users of Redis {release.home or release.namespace}".encode()).hexdigest()[:8]


def redis_password(release: Installation, run: str, uid: str) -> str:
    """The password of a run in Redis."""
    return derived(run_key(release, uid), f"redis {run}")


def run_redis(release: Installation, run: str, uid: str) -> str:
    """The URL of Redis with the user and the password of a run."""
    parts = urlsplit(redis_address(release))
    if parts.scheme == "unix":
        return release.redis
    user = f"{user_name(redis_tag(release), run)}:{redis_password(release, run, uid)}"
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


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
        redis=run_redis(release, place.run, memory.uid),
        lasting=lasting,
        transport=replace(settings.transport, huge_bytes=spec.kubernetes.sidecar.huge_pages.bytes),
        restore_from=begins,
        pipeline_file=settings.pipeline_file if source is None else source.file,
        pipeline_text=text,
        begins_with=begins_with,
    )


def _output(job: StreamJob) -> str:
    """The default directory of Parquet output: on the first writable volume, else in the driver's pod, and lost with it."""
    shared = [volume.mount_path for volume in job.spec.kubernetes.volumes if not volume.read_only]
    return f"{shared[0]}/{job.metadata.name}/out" if shared else str(DIRECTORY / "out")


def redis_seal(release: Installation) -> str:
    """The seal of the URL of Redis from which pods have their revision."""
    return release.redis_seal or seal(release, release.redis)


def seal(release: Installation, text: str) -> str:
    """A keyed digest: equal for equal texts, and useless for guesses without the key."""
    return hmac.new(release.key.encode(), text.encode(), hashlib.sha256).hexdigest()[:16]
