"""The cluster that tests run on: a lab of this machine (`tests/kube/lab`), or one that KUBECONFIG names.

    FERRY_KUBE_EXISTING=1 KUBECONFIG=...   any cluster, by an administrator; tests that need a lab's nodes are skipped. Its nodes
                                           have the images of `make images`, its default storage class gives volumes that many
                                           nodes can mount. The quick start needs no volume, but a namespace `streams` that is
                                           free; with IMAGES=REGISTRY/FOLDER its nodes pull the images from there
    FERRY_LAB=NAME                         the lab of this name if it is up, and it stays up
    neither                                a lab of the tests' own, which ends with them, however they end

Knows processes and files only, nothing of Ferry.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.kube.kubectl import Kubectl

LAB = Path(__file__).parent / "lab" / "lab"

COMMAND_SECONDS = 120.0


class NoCluster(Exception):
    """There is no cluster to test on; says what to do."""


def existing() -> Kubectl | None:
    """The cluster the caller wants to be used."""
    if os.environ.get("FERRY_KUBE_EXISTING") != "1":
        return None
    kubeconfig, program = os.environ.get("KUBECONFIG"), shutil.which("kubectl")
    if not kubeconfig:
        raise NoCluster("FERRY_KUBE_EXISTING=1 needs KUBECONFIG, the file that names the cluster")
    if program is None:
        raise NoCluster("FERRY_KUBE_EXISTING=1 needs kubectl on PATH")
    return Kubectl(program, Path(kubeconfig).resolve())


@dataclass(frozen=True)
class Lab:
    """One lab of this machine."""

    name: str
    owner: int = field(default_factory=os.getpid)
    """process with which it ends"""

    @staticmethod
    def setup(what: str) -> None:
        """Install and compile what is missing, telling so on the terminal; NoCluster when that cannot be done."""
        if subprocess.run([LAB, "setup", what], stdin=subprocess.DEVNULL).returncode != 0:
            raise NoCluster(f"the lab is not ready: see above, and {LAB.parent / 'README.md'}")

    def run(self, *arguments: str, timeout: float = COMMAND_SECONDS) -> str:
        """Standard output of a command of `lab`; NoCluster with what it said when it fails."""
        environment = {**os.environ, "FERRY_LAB": self.name, "FERRY_LAB_OWNER": str(self.owner)}
        done = subprocess.run(
            [LAB, *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env=environment,
        )
        if done.returncode != 0:
            raise NoCluster(f"lab {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    @property
    def directory(self) -> Path:
        """Its logs, keys and data."""
        return Path(self.run("directory").strip())

    def is_up(self) -> bool:
        """Does it run, with nodes?"""
        return (self.directory / "n1").is_dir()

    def kubectl(self) -> Kubectl:
        """The kubectl that was compiled with it, as administrator."""
        return Kubectl(self.run("program", "kubectl").strip(), self.directory / "admin.kubeconfig")

    def is_alive(self, node: int) -> bool:
        """Does this node run?"""
        try:
            self.on(node, "true")
        except NoCluster:
            return False
        return True

    def control_plane(self) -> tuple[str, list[str]]:
        """Its address, which pods reach, and what a command begins with that is to be there: this process has no way to it."""
        lines = (self.directory / "settings").read_text().splitlines()
        known = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
        return known["CP_ADDR"], ["nsenter", f"--net=/run/netns/{known['CP_NETNS']}"]

    # --- what happens to nodes: numbers from 1

    def kill(self, node: int) -> None:
        """Power cut: every process of the node ends at once."""
        self.run("node-kill", str(node))

    def boot(self, node: int) -> None:
        """The node again, from its disk."""
        self.run("node-up", str(node))

    def cut(self, node: int, other: str = "all") -> None:
        """The node is silent: to all, to another node (its number), or to the control plane ('cp')."""
        self.run("node-cut", str(node), other)

    def heal(self, node: int) -> None:
        """Undo every cut."""
        self.run("node-heal", str(node))

    def freeze(self, node: int) -> None:
        """The node's pods stand still."""
        self.run("node-freeze", str(node))

    def thaw(self, node: int) -> None:
        """They go on."""
        self.run("node-thaw", str(node))

    def freeze_api(self) -> None:
        """The API server answers nothing."""
        self.run("api-freeze")

    def thaw_api(self) -> None:
        """It goes on."""
        self.run("api-thaw")

    def on(self, node: int, *command: str) -> str:
        """What a command prints on the node."""
        return self.run("node-exec", str(node), *command)


@dataclass(frozen=True)
class Cluster:
    """Nodes that run pods."""

    kubectl: Kubectl
    lab: Lab | None
    """None: somebody's cluster, whose nodes are left alone"""
    nodes: tuple[str, ...]
