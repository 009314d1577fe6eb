"""Chart and images in a registry that asks who one is, and an installation that has nothing but the registry."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.documents import KUBERNETES, blocks
from tests.kube.clusters import Cluster, Lab
from tests.kube.conftest import installed_crd, own_namespace
from tests.kube.installation import CHART, CLAIM, CLAIMED, HELM, PACE, ROOT, Installation
from tests.kube.kubectl import Kubectl, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

PORT, USER, PASSWORD = 5443, "ferry", "of-the-registry"
CACHE = Path.home() / ".cache" / "ferry" / "images"
PACKAGES = {"docker-registry": "docker-registry", "skopeo": "skopeo", "htpasswd": "apache2-utils"}

CONFIGURATION = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}
http:
  addr: {address}:{port}
  tls: {{certificate: {folder}/tls.crt, key: {folder}/tls.key}}
auth:
  htpasswd: {{realm: ferry, path: {folder}/users}}
"""


@dataclass(frozen=True)
class Registry:
    """Debian's docker-registry beside the control plane, with TLS and one user."""

    address: str
    within: Sequence[str]
    """what a command begins with that reaches it"""
    folder: Path

    @property
    def images(self) -> str:
        """Where images are in it."""
        return f"{self.address}/ferry"

    @property
    def certificate(self) -> Path:
        """The authority that its clients trust."""
        return self.folder / "tls.crt"

    def image(self, name: str) -> str:
        """The name of an image in it."""
        return f"{self.images}/{name}:dev"

    def run(self, *command: str | Path, timeout: float = 240.0, **variables: str) -> str:
        """Standard output of a command beside it."""
        words = [*self.within, *map(str, command)]
        environment = {**os.environ, **variables}
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def answers(self) -> bool:
        """Whether it serves those who say who they are, and nobody else."""
        url, trust = f"https://{self.address}/v2/", ["--cacert", str(self.certificate)]
        codes = []
        for known in ([], ["-u", f"{USER}:{PASSWORD}"]):
            command = [*self.within, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *trust, *known, url]
            codes.append(subprocess.run(command, capture_output=True, text=True, timeout=10).stdout)
        return codes == ["401", "200"]


@contextmanager
def serving(lab: Lab, folder: Path) -> Iterator[Registry]:
    """A registry that the nodes trust."""
    address, within = lab.control_plane()
    registry = Registry(f"{address}:{PORT}", within, folder)
    subject = ["-subj", "/CN=registry", "-addext", f"subjectAltName=IP:{address}"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(registry.certificate)]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    users = subprocess.run(["htpasswd", "-Bbn", USER, PASSWORD], check=True, capture_output=True, text=True).stdout
    (folder / "users").write_text(users)
    (folder / "registry.yaml").write_text(CONFIGURATION.format(folder=folder, address=address, port=PORT))
    trusted = lab.directory / "registries" / registry.address
    trusted.mkdir(parents=True)
    (trusted / "hosts.toml").write_text(
        f'server = "https://{registry.address}"\n[host."https://{registry.address}"]\n  ca = "{registry.certificate}"\n'
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [*within, "docker-registry", "serve", str(folder / "registry.yaml")], stdout=log, stderr=log
        )
        try:
            wait_until(registry.answers, "registry", 30.0)
            yield registry
        finally:
            server.terminate()
            server.wait(20)
            shutil.rmtree(trusted)


@pytest.fixture
def registry(lab: Lab, tmp_path: Path) -> Iterator[Registry]:
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if missing:
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], check=True, timeout=240
        )
    with serving(lab, tmp_path) as found:
        yield found


def push(registry: Registry, folder: Path) -> str:
    """Push both images, by the lines of the page about Kubernetes, and the chart; the address of the chart."""
    make, *lines = next(block for block in blocks(KUBERNETES) if block.language == "sh").text.strip().splitlines()
    known = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    (folder / "known.json").write_text(json.dumps({"auths": {registry.address: {"auth": known}}}))
    variables = {
        "IMAGES": registry.images,
        "REGISTRY_AUTH_FILE": str(folder / "known.json"),
        "SSL_CERT_FILE": str(registry.certificate),
    }
    subprocess.run(["bash", "-c", make], cwd=ROOT, check=True, capture_output=True, timeout=240)
    for line in lines:
        registry.run("bash", "-c", line, **variables)
    subprocess.run([HELM, "package", str(CHART), "--destination", str(folder)], check=True, capture_output=True)
    (package,) = folder.glob("ferry-*.tgz")
    place, ca = f"oci://{registry.address}/charts", ("--ca-file", registry.certificate)
    login = ("registry", "login", registry.address, "-u", USER, "-p", PASSWORD)
    registry.run(HELM, *login, *ca, "--registry-config", folder / "login.json")
    registry.run(HELM, "push", package, place, *ca, "--registry-config", folder / "login.json")
    return f"{place}/ferry"


@contextmanager
def installed(registry: Registry, chart: str, kubectl: Kubectl, folder: Path) -> Iterator[Installation]:
    """The chart from the registry, whose pods pull their images from it."""
    kubectl.apply(CLAIMED)
    wait_until(lambda: kubectl.get("pvc", CLAIM)["status"].get("phase") == "Bound", "volume", 60.0)
    server = f"--docker-server={registry.address}", f"--docker-username={USER}", f"--docker-password={PASSWORD}"
    kubectl.run("create", "secret", "docker-registry", "pulls", *server)
    (folder / "pulled").mkdir()
    registry.run(
        HELM, "pull", chart, "--version", version(), "--ca-file", registry.certificate,
        "--registry-config", folder / "login.json", "--destination", folder / "pulled",
    )  # fmt: skip
    (package,) = (folder / "pulled").glob("ferry-*.tgz")
    made = Installation(kubectl, ("nodes.read=true",))
    images = (f"images.{name}={registry.image(name)}" for name in ("operator", "runtime"))
    sets = [word for value in (*images, "images.pullSecrets={pulls}") for word in ("--set", value)]
    made.helm("install", "ferry", str(package), "--wait", "--timeout=240s", *sets)
    yield made
    made.assert_clean()
    made.helm("uninstall", "ferry", "--wait", "--timeout=60s")


def version() -> str:
    """The version of the chart."""
    lines = (CHART / "Chart.yaml").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("version:"))


@pytest.mark.long
def test_an_installation_has_nothing_but_a_registry(cluster: Cluster, registry: Registry, tmp_path: Path) -> None:
    chart = push(registry, tmp_path)
    with contextmanager(installed_crd)(cluster.kubectl) as known, contextmanager(own_namespace)(known) as kubectl:
        with installed(registry, chart, kubectl, tmp_path) as ferry:
            job = ferry.start(ferry.job("shipped", events=400_000, epoch=PACE))
            job.until_workers(2, 240.0)
            images = {c["image"] for pod in job.pods() for c in pod["spec"]["containers"]}
            assert images == {registry.image("runtime")}
            assert all(one["imageID"].startswith(registry.address) for one in statuses(kubectl))
            job.finish(300.0)
            job.delete()
            assert_refused_without_a_secret(registry, kubectl)


def statuses(kubectl: Kubectl) -> list[dict[str, Any]]:
    """What kubelets say about the containers of the operator."""
    pods = kubectl.items("pods", "-l", "app.kubernetes.io/component=operator")
    return [one for pod in pods for one in pod["status"]["containerStatuses"]]


def assert_refused_without_a_secret(registry: Registry, kubectl: Kubectl) -> None:
    """The secret is what opens the registry."""
    kubectl.run(
        "run", "stranger", f"--image={registry.image('operator')}", "--image-pull-policy=Always", "--restart=Never"
    )

    def refused() -> bool:
        found = kubectl.get("pod", "stranger")["status"].get("containerStatuses") or []
        return any(
            one["state"].get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff") for one in found
        )

    wait_until(refused, "refusal of an image", 60.0)
    kubectl.run("delete", "pod", "stranger", "--now", "--wait=false")


@pytest.mark.parametrize("name", ["operator", "runtime"])
def test_the_list_of_software_is_that_of_the_image(name: str) -> None:
    """Python itself lists the distributions of the image, and a search its jars."""
    listed = json.loads((CACHE / f"{name}.cdx.json").read_text())["components"]
    code = "import importlib.metadata as m, json; print(json.dumps(sorted({d.name for d in m.distributions()})))"
    found = subprocess.run(
        [ROOT / "images" / "run", name, "python3", "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout
    names = {part["name"] for part in listed if part["purl"].startswith("pkg:pypi/")}
    assert set(json.loads(found)) <= names
    jars = subprocess.run(
        [ROOT / "images" / "run", name, "find", "/opt", "/usr", "-name", "*.jar", "-type", "f"],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout.split()  # fmt: skip
    paths = {f"/{one['value']}" for part in listed for one in part.get("properties", ()) if one["name"] == "path"}
    assert set(jars) <= paths and (name == "operator" or len(jars) > 100)
