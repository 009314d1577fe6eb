"""The target of a command: a run on this machine, or a job on a cluster.

`ferry` looks for a run on this machine, then on the cluster of the kubeconfig if there is one. With an option that names
a cluster, and as `kubectl streamjob`, it looks only on the cluster. A refusal names the places that were searched.
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
"""Options with a value that may stand anywhere in the command line, as in kubectl."""


@dataclass(frozen=True, slots=True)
class Target:
    """The options of the command line that select a cluster."""

    plugin: bool = False
    """called as `kubectl streamjob`"""
    context: str | None = None
    namespace: str | None = None
    kubeconfig: str | None = None

    @property
    def program(self) -> str:
        """The name of the program, for messages."""
        return "kubectl streamjob" if self.plugin else "ferry"

    @property
    def cluster(self) -> bool:
        """Whether the command is only for a cluster."""
        return self.plugin or any((self.context, self.namespace, self.kubeconfig))


def hoist(argv: list[str]) -> list[str]:
    """The command line with `OPTIONS` in front; words after '--' keep their places."""
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
    """The directory of the live run on this machine, else of the last ended run; and a function that returns whether the
    run is alive. None: there is no run, or the command is for a cluster. Raises SpecRefused if several runs match."""
    if target.cluster:
        return None
    registry = Registry(environment.home())
    try:
        run = Local(registry.find(name), registry)
    except NoSuchJob:
        if (kept := registry.kept(name)) is None:
            return None
        say(f"log of a run on this machine that has {kept.how} (for a job of this name on a cluster: --namespace)")
        if registry.begun(name) > kept.ended:
            say(f"a later run of {name} has left no files: `ferry run --keep` leaves them")
        return kept.directory, lambda: False
    return Path(run.entry.directory), run.exists


def on_cluster(target: Target, name: str) -> RemoteJob:
    """The job, for a command that needs a cluster. Raises the errors of `find`."""
    job = find(target, name)
    if isinstance(job, Local):
        raise Refusal(
            f"{name} runs on this machine; this command is for jobs on a cluster (to select one: --namespace)"
        )
    return job


def remote(target: Target, name: str) -> RemoteJob:
    """The job on the cluster. Raises NoSuchJob."""
    # The client of Kubernetes is large, so it is imported only for a cluster.
    from ferry_operator.cli.remote.remote import RemoteJob

    job = RemoteJob(connect(target), name)
    job.object()
    return job


def namespace(target: Target) -> Namespace:
    """All jobs of the namespace. Raises Refusal."""
    from ferry_operator.cli.remote.remote import Namespace

    return Namespace(connect(target))


def run(command: RunCommand) -> int:
    """Run a job on this machine to its end. Returns the exit code. Raises Refusal if only the client is installed."""
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed; to run jobs on this machine: `pip install ferry-stream`")
    from ferry_operator.local.run import run as run_job

    return run_job(command)


def connect(target: Target) -> UserApi:
    """The client of the selected cluster. Raises Refusal."""
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
    """The kubeconfig files, in the form of KUBECONFIG; None if no file exists."""
    files = _named(target)
    exists = any(Path(path).expanduser().is_file() for path in files.split(os.pathsep) if path)
    return files if exists else None


def _named(target: Target) -> str:
    return target.kubeconfig or os.environ.get("KUBECONFIG") or KUBECONFIG


def _in_a_pod(target: Target) -> bool:
    """Whether to use the service account of this pod, by the rules of kubectl."""
    named = target.kubeconfig or target.context or os.environ.get("KUBECONFIG")
    return not named and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _looked_at(target: Target) -> str:
    by = "--kubeconfig" if target.kubeconfig else "KUBECONFIG" if os.environ.get("KUBECONFIG") else "the default"
    return f"no file {_named(target)} ({by})"
