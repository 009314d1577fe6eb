"""Which job a command means: a run of this machine, or a job on a cluster, and on which.

`ferry` means a run of this machine of that name, else the cluster of the kubeconfig if there is one; with an option
that names a cluster, and as `kubectl streamjob`, it means the cluster. What was looked at is in every refusal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ferry.contract.errors import Refusal, Unreachable
from ferry_operator.cli.client import Local
from ferry_operator.cli.terminal import say
from ferry_operator.kube.api.port import ApiError
from ferry_operator.local import environment
from ferry_operator.local.registry import NoSuchJob, Registry
from ferry_operator.local.run_command import RunCommand

if TYPE_CHECKING:
    from ferry_operator.cli.remote.port import UserApi
    from ferry_operator.cli.remote.remote import Namespace, RemoteJob

KUBECONFIG = "~/.kube/config"

OPTIONS = ("--context", "--namespace", "-n", "--kubeconfig")
"""Take a value each, and may stand anywhere on the line, as with kubectl."""


@dataclass(frozen=True, slots=True)
class Target:
    """The options of the command line that say where jobs are."""

    plugin: bool = False
    """it is `kubectl streamjob`"""
    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None

    @property
    def program(self) -> str:
        """How it was called."""
        return "kubectl streamjob" if self.plugin else "ferry"

    @property
    def cluster(self) -> bool:
        """Only a cluster is meant."""
        return self.plugin or any((self.context, self.namespace, self.kubeconfig))


def hoist(argv: list[str]) -> list[str]:
    """The command line with `OPTIONS` in front, wherever they were; what follows '--' stays as it is."""
    front, rest, words = list[str](), list[str](), iter(argv)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word in OPTIONS:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        elif word.startswith(tuple(f"{option}=" for option in OPTIONS if option != "-n")):
            front.append(word)
        elif word.startswith("-n") and not word.startswith("--") and len(word) > 2:
            front += ["-n", word[2:].removeprefix("=")]
        else:
            rest.append(word)
    return front + rest


def find(target: Target, name: str) -> Local | RemoteJob:
    """The job of this name. Raises NoSuchJob, Refusal, Unreachable."""
    if target.cluster:
        return remote(target, name)
    registry = Registry(environment.home())
    try:
        return Local(registry.find(name), registry)
    except NoSuchJob as missing:
        here = str(missing)
    if not _somewhere(target):
        raise NoSuchJob(f"{here}; and there is no cluster to look at: {_looked_at(target)}")
    try:
        return remote(target, name)
    except NoSuchJob as missing:
        raise NoSuchJob(f"{here}; {missing}") from None
    except ApiError as error:
        raise Unreachable(f"{here}; {error}") from None


def directory(target: Target, name: str) -> tuple[Path, Callable[[], bool]] | None:
    """Where the files of a run of this machine are, and what says whether it goes on: of one that runs, else of the last
    one that has ended. None: there is none, or a cluster is meant. Raises SpecRefused when several runs fit."""
    if target.cluster:
        return None
    registry = Registry(environment.home())
    try:
        run = Local(registry.find(name), registry)
    except NoSuchJob:
        if (kept := registry.kept(name)) is None:
            return None
        say(f"of a run of this machine that has {kept.how} (for a job of that name on a cluster: --namespace)")
        if registry.begun(name) > kept.ended:
            say(f"a later run of {name} has left no files: `ferry run --keep` leaves them")
        return kept.directory, lambda: False
    return Path(run.entry.directory), run.there


def on_cluster(target: Target, name: str) -> RemoteJob:
    """The job, for a command that only jobs on a cluster know. Raises as `find` does."""
    job = find(target, name)
    if isinstance(job, Local):
        raise Refusal(f"{name} runs on this machine; this is for jobs on a cluster (for one of that name: --namespace)")
    return job


def remote(target: Target, name: str) -> RemoteJob:
    """The job on the cluster; it is there."""
    # The client of Kubernetes is large, and imported only for a cluster.
    from ferry_operator.cli.remote.remote import RemoteJob

    job = RemoteJob(connect(target), name)
    job.object()
    return job


def namespace(target: Target) -> Namespace:
    """All jobs of the namespace. Raises Refusal."""
    from ferry_operator.cli.remote.remote import Namespace

    return Namespace(connect(target))


def run(command: RunCommand) -> int:
    """Run a job on this machine to its end; returns the exit code. Raises Refusal where only the client is installed."""
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed: jobs run on this machine with `pip install ferry-stream`")
    from ferry_operator.local.run import run as run_job

    return run_job(command)


def connect(target: Target) -> UserApi:
    """The cluster that is meant. Raises Refusal."""
    if not _somewhere(target):
        raise Refusal(f"there is no cluster to look at: {_looked_at(target)}")
    try:
        from ferry_operator.kube.api.client import UserClient
    except ImportError as error:
        raise Refusal(f"{error}; for jobs on a cluster: pip install 'ferry-stream[client]'") from None
    return UserClient(_kubeconfig(target), target.context, target.namespace)


def _somewhere(target: Target) -> bool:
    return _kubeconfig(target) is not None or _in_a_pod(target)


def _kubeconfig(target: Target) -> str | None:
    """The files of the configuration, as KUBECONFIG names them; None when there is none."""
    files = _named(target)
    there = any(Path(one).expanduser().is_file() for one in files.split(os.pathsep) if one)
    return files if there else None


def _named(target: Target) -> str:
    return target.kubeconfig or os.environ.get("KUBECONFIG") or KUBECONFIG


def _in_a_pod(target: Target) -> bool:
    """Whether only the service account of this pod can be used, as by kubectl."""
    named = target.kubeconfig or target.context or os.environ.get("KUBECONFIG")
    return not named and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _looked_at(target: Target) -> str:
    by = "--kubeconfig" if target.kubeconfig else "KUBECONFIG" if os.environ.get("KUBECONFIG") else "the default"
    return f"no file {_named(target)} ({by})"
