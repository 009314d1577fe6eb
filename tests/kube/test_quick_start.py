"""The quick start for Kubernetes, line by line as `docs/operating` has it, on a cluster without anything of Ferry.

Only the cluster is another one: `kind` is a script that loads an archive into the nodes of the lab.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.documents import KUBERNETES, PLUGIN, blocks
from tests.kube.clusters import LAB, Cluster
from tests.kube.conftest import TEST_LABEL
from tests.kube.installation import ROOT, Installation
from tests.kube.kubectl import Kubectl, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

NAMESPACE = "streams"

WATCHED_SECONDS = 5
"""A command that watches (-w) does not end by itself."""

KIND = f"""#!/bin/sh
[ "$1 $2" = "load image-archive" ] && exec {LAB} image-load "$3"
exit 2
"""


def commands() -> list[str]:
    """The lines of the two pages, in the order in which a reader runs them: the job is deleted at the end."""
    first, second = (next(b for b in blocks(page) if b.language == "sh") for page in (KUBERNETES, PLUGIN))
    *lines, last = first.text.strip().splitlines()
    return [*lines, *second.text.strip().splitlines(), last]


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A shell's that has the cluster; what the commands leave there is removed, also when one fails."""
    if cluster.lab is None:
        pytest.skip("an existing cluster has its own images")
    kubectl = cluster.kubectl
    assert not kubectl.find("namespace", NAMESPACE), f"the namespace {NAMESPACE} belongs to somebody else"
    definition = "crd/streamjobs.ferry.dev"
    had = kubectl.find(definition)
    kind = tmp_path / "kind"
    kind.write_text(KIND)
    kind.chmod(0o755)
    programs = (str(tmp_path), str(Path(kubectl.program).parent), str(Path(sys.executable).parent), os.environ["PATH"])
    with ExitStack() as left:
        if had is None:
            left.callback(kubectl.run, "delete", definition, "--wait=false", "--ignore-not-found")
        left.callback(kubectl.run, "delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
        left.callback(remove, kubectl)
        yield {**kubectl.environment(), "FERRY_LAB": cluster.lab.name, "PATH": ":".join(programs)}


def remove(kubectl: Kubectl) -> None:
    """The jobs and the chart, if they are there."""
    if kubectl.find("namespace", NAMESPACE):
        kubectl.run("label", "namespace", NAMESPACE, TEST_LABEL)
        kubectl.run("delete", "streamjobs", "--all", "-n", NAMESPACE, timeout=90)
        Installation(kubectl.within(NAMESPACE)).helm("uninstall", "ferry", "--wait", "--timeout=60s")


def test_every_command_of_the_quick_start_runs_as_it_stands(cluster: Cluster, environment: dict[str, str]) -> None:
    kubectl, lines = cluster.kubectl.within(NAMESPACE), commands()
    assert {line.split()[0] for line in lines} == {"make", "kind", "helm", "kubectl"} and len(lines) == 12, lines
    for line in lines:
        watches = "-w" in line.split()
        limit = f"timeout {WATCHED_SECONDS} " if watches else ""
        done = subprocess.run(
            ["bash", "-c", limit + line], cwd=ROOT, env=environment, text=True, timeout=330,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(f"$ {line}\n{done.stdout}")
        assert done.returncode == (124 if watches else 0), f"{line}: exit code {done.returncode}\n{done.stdout}"
        if " watch " in line:
            status = kubectl.get("streamjob", "nbq5")["status"]
            assert (status["phase"], status["workers"]) == ("Running", 2), status
    left = "pods,secrets,poddisruptionbudgets"
    wait_until(lambda: not kubectl.items(left, "-l", "ferry.dev/job=nbq5"), "end of the job", 60.0)
    assert not kubectl.items("pvc"), "no volume is needed, not for the journal either"
    Installation(kubectl).assert_clean()
