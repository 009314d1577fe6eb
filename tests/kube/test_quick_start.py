"""The quick start for Kubernetes, line by line as `docs/operating` has it, on a cluster without anything of Ferry.

The lines know the cluster by KUBECONFIG alone, on the lab as on an existing cluster (`clusters.py` says what this must have).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.documents import KUBERNETES, PLUGIN, blocks
from tests.kube.clusters import Cluster
from tests.kube.conftest import TEST_LABEL
from tests.kube.installation import ROOT, Installation, describe
from tests.kube.kubectl import Kubectl, wait_until
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

NAMESPACE = "streams"

IMAGES = "localhost/ferry"
"""Where the nodes have the images, unless the variable says otherwise."""

WATCHED_SECONDS = 5
"""A command that watches (-w) does not end by itself."""

RESULT_SECONDS = 30.0
"""From `kubectl apply` to rows on the terminal, where nodes have the images and the chart is installed. As the page says."""

IDLE = 0.7
"""Share of a machine's processor time that is free where this limit holds; a busy one, and one of a lab, gets patience."""


def commands() -> list[str]:
    """The lines of the two pages, in the order in which a reader runs them: the job is deleted at the end."""
    _, path, *_ = (block for block in blocks(KUBERNETES) if block.language == "sh")
    plugin = next(block for block in blocks(PLUGIN) if block.language == "sh")
    *lines, last = path.text.strip().splitlines()
    return [*lines, *plugin.text.strip().splitlines(), last]


@pytest.fixture
def environment(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A shell's that has the cluster; what the commands leave there is removed, also when one fails."""
    kubectl = cluster.kubectl
    assert not kubectl.find("namespace", NAMESPACE), f"the namespace {NAMESPACE} belongs to somebody else"
    definition = "crd/streamjobs.ferry.dev"
    had = kubectl.find(definition)
    programs = (str(Path(kubectl.program).parent), str(Path(sys.executable).parent), os.environ["PATH"])
    known = {name: value for name, value in kubectl.environment().items() if not name.startswith("FERRY_")}
    with ExitStack() as left:
        if had is None:
            left.callback(kubectl.run, "delete", definition, "--wait=false", "--ignore-not-found")
        left.callback(kubectl.run, "delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
        left.callback(remove, kubectl)
        yield {"IMAGES": IMAGES, **known, "PATH": ":".join(programs)}


def remove(kubectl: Kubectl) -> None:
    """The jobs and the chart, if they are there."""
    if kubectl.find("namespace", NAMESPACE):
        kubectl.run("label", "namespace", NAMESPACE, TEST_LABEL)
        kubectl.run("delete", "streamjobs", "--all", "-n", NAMESPACE, timeout=90)
        Installation(kubectl.within(NAMESPACE)).helm("uninstall", "ferry", "--wait", "--timeout=60s")


def idle(seconds: float = 2.0) -> float:
    """The share of this machine's processor time that nobody uses now."""
    before = spent()
    time.sleep(seconds)
    passed = [after - then for after, then in zip(spent(), before, strict=True)]
    return (passed[3] + passed[4]) / sum(passed)


def spent() -> list[int]:
    """Ticks of all processors: for user, nice, system, idle, iowait, and what interrupts them."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def test_every_command_of_the_quick_start_runs_as_it_stands(
    cluster: Cluster, environment: dict[str, str], times: Callable[[str, float], None]
) -> None:
    kubectl, lines, applied, limit_seconds = cluster.kubectl.within(NAMESPACE), commands(), 0.0, RESULT_SECONDS
    assert {line.split()[0] for line in lines} == {"helm", "kubectl"} and len(lines) == 11, lines
    for line in lines:
        if " apply " in line:
            free = idle()
            print(f"{free:.0%} of the processor time is free")
            limit_seconds *= 1.0 if cluster.lab is None and free > IDLE else PATIENCE
        watches, begin = "-w" in line.split(), time.monotonic()
        limit = f"timeout {WATCHED_SECONDS} " if watches else ""
        done = subprocess.run(
            ["bash", "-c", limit + line], cwd=ROOT, env=environment, text=True, timeout=330,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(f"$ {line}\n{done.stdout}{time.monotonic() - begin:.1f} s")
        assert done.returncode == (124 if watches else 0), f"{line}: exit code {done.returncode}\n{done.stdout}"
        if " apply " in line:
            applied = begin
        if "read_parquet" in line:
            seconds = time.monotonic() - applied
            times("quick start: from apply to the first rows", seconds)
            head, *rows = done.stdout.strip().splitlines()
            assert head.split() == ["auction", "window_start", "window_end", "num"] and len(rows) == 5, done.stdout
            assert seconds < limit_seconds, describe(kubectl, "nbq5")
        if " watch " in line:
            status = kubectl.get("streamjob", "nbq5")["status"]
            assert (status["phase"], status["workers"]) == ("Running", 2), status
    left = "pods,secrets,poddisruptionbudgets"
    wait_until(lambda: not kubectl.items(left, "-l", "ferry.dev/job=nbq5"), "end of the job", 60.0)
    assert not kubectl.items("pvc"), "no volume is needed, not for the journal either"
    Installation(kubectl).assert_clean()
