"""The parts of images/ that decide: what is pinned, when nothing is to build, Spark's class path, the copied kernels."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.utils import canonicalize_name

from ferry.kernels.aggregates import FUNCTIONS
from images import classpath, pin, sbom, warm_kernels
from tests.unit.charts import ROOT

IMAGES = ROOT / "images"


def pinned(image: str) -> dict[str, str]:
    lines = (IMAGES / f"requirements-{image}.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("image", pin.IMAGES)
def test_pins_are_within_the_bounds_of_the_project(image: str) -> None:
    found, wanted = pinned(image), pin.wanted(image)
    missing = [str(one) for one in wanted if canonicalize_name(one.name) not in found]
    wrong = [str(one) for one in wanted if not one.specifier.contains(found.get(canonicalize_name(one.name), "0"))]
    assert not missing and not wrong, "run: .venv/bin/python images/pin.py"


def digest(root: Path, target: str, **more: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(root / "home"), **more}
    code = f"source images/build; digest {target}"
    done = subprocess.run(["bash", "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def test_what_an_image_holds_decides_whether_it_is_built(tmp_path: Path) -> None:
    files = [
        *(f.relative_to(ROOT) for folder in (IMAGES, IMAGES / "verbs") for f in folder.iterdir() if f.is_file()),
        *map(Path, ("runtime/ferry/__init__.py", "runtime/ferry/contract/names.py", "runtime/ferry/driver/job.py")),
        Path("operator/ferry_operator/control/decide.py"),
        Path("runtime/ferry/system/files.py"),
        Path("bench/workloads/ferry_workloads/ranges.py"),
    ]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    before = {target: digest(tmp_path, target) for target in ("operator", "runtime", "verbs")}
    assert len(set(before.values())) == 3
    (tmp_path / "runtime/ferry/driver/__pycache__").mkdir()
    (tmp_path / "runtime/ferry/driver/__pycache__/job.cpython-311.pyc").touch()
    (tmp_path / "images/README.md").write_text("other words")
    assert before == {target: digest(tmp_path, target) for target in before}
    (tmp_path / "operator/ferry_operator/control/decide.py").write_text("changed")
    assert digest(tmp_path, "operator") != before["operator"] and digest(tmp_path, "runtime") == before["runtime"]
    assert digest(tmp_path, "verbs") == before["verbs"]
    after = digest(tmp_path, "operator")
    (tmp_path / "images/verbs/main.go").write_text("changed")
    assert digest(tmp_path, "verbs") != before["verbs"] and digest(tmp_path, "operator") == after
    (tmp_path / "runtime/ferry/driver/job.py").write_text("changed")
    assert digest(tmp_path, "operator") == after and digest(tmp_path, "runtime") != before["runtime"]
    before = {"runtime": digest(tmp_path, "runtime")}
    (tmp_path / "bench/workloads/ferry_workloads/ranges.py").write_text("changed")
    assert digest(tmp_path, "operator") == after and digest(tmp_path, "runtime") != before["runtime"]
    (tmp_path / "runtime/ferry/contract/names.py").write_text("changed")
    assert digest(tmp_path, "operator") != after
    assert digest(tmp_path, "runtime", SLIM="safe") != digest(tmp_path, "runtime")


LOADED = """
import sys
import ferry_operator.kube.__main__
for name, module in sys.modules.items():
    if name.partition(".")[0] in ("ferry", "ferry_operator"):
        print(module.__file__)
"""
"""Prints the files of the project that the operator loads."""


def test_the_operators_image_has_every_library_that_the_operator_imports() -> None:
    """Also a library of the runtime, which this image has not, and an import within a function."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    files = [Path(line) for line in done.stdout.split()]
    modules = {name.partition(".")[0] for file in files for name in imported(file)}
    distributions = metadata.packages_distributions()
    libraries = {canonicalize_name(distributions[name][0]) for name in modules if name in distributions}
    missing = libraries - {"ferry-stream"} - pinned("operator").keys()
    assert len(files) > 50 and {"cryptography", "httpx", "kopf", "kubernetes", "pydantic"} <= libraries
    assert not missing, "add it to the extra `operator`, and run: .venv/bin/python images/pin.py"


def imported(file: Path) -> set[str]:
    """Modules that a file imports anywhere, also within functions."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_the_operators_image_has_the_rooms_of_ferry_that_the_operator_may_import() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    allowed = next(c["ignore_imports"] for c in contracts if c["name"].startswith("The operator knows of ferry only"))
    # The command line, which reads checkpoints itself, is for people's machines.
    mine = [arrow for arrow in allowed if not arrow.startswith("ferry_operator.cli.")]
    rooms = {arrow.split(" -> ferry.")[1].partition(".")[0] for arrow in mine}
    stage = (IMAGES / "Containerfile").read_text().partition(" AS operator\n")[2].partition("\nFROM ")[0]
    assert set(re.findall(r"^COPY runtime/ferry/(\w+) ", stage, re.MULTILINE)) == rooms
    parts = re.search(r"operator\) parts\+=\((.*)\)", (IMAGES / "build").read_text())
    assert parts and set(re.findall(r"runtime/ferry/(\w+)(?= |$)", parts[1])) - {"__init__"} == rooms


def test_kernels_are_compiled_beside_every_room_that_the_compiling_imports() -> None:
    loaded = "import sys, images.warm_kernels; print(*{n.split('.')[1] for n in sys.modules if n.startswith('ferry.')})"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    stage = (IMAGES / "Containerfile").read_text().partition(" AS kernels\n")[2].partition("\nFROM ")[0]
    copied = set(re.findall(r"COPY runtime/ferry/(\w+) ", stage))
    rooms = {name for name in done.stdout.split() if (ROOT / "runtime" / "ferry" / name).is_dir()}
    assert "kernels" in rooms and not rooms - copied


def test_spark_gets_one_jar_that_names_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1748736000")
    home = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark"
    names = [f"a-jar-with-a-rather-long-name-{n}.jar" for n in range(40)] + ["spark-core_2.13-4.3.0.jar", "zstd.jar"]
    (home / "jars").mkdir(parents=True)
    for name in reversed(names):
        (home / "jars" / name).write_text(name)
    classpath.main(tmp_path)
    assert [file.name for file in (home / "jars").iterdir()] == ["spark-core_2.13-4.3.0.jar"]
    with zipfile.ZipFile(home / "jars" / "spark-core_2.13-4.3.0.jar") as jar:
        manifest = jar.read("META-INF/MANIFEST.MF")
    assert max(map(len, manifest.split(b"\r\n"))) <= 72
    (listed,) = [x for x in manifest.replace(b"\r\n ", b"").decode().split("\r\n") if x.startswith("Class-Path: ")]
    paths = listed.removeprefix("Class-Path: ").split(" ")
    assert paths == [f"../lib/{name}" for name in sorted(names)]
    assert all((home / "jars" / path).read_text() == Path(path).name for path in paths)
    assert {file.stat().st_mtime for file in home.rglob("*.jar")} == {1748736000.0}


KERNEL = """
import numba
@numba.njit(cache=True)
def double(x):
    return 2 * x
assert double(21) == 42
print(sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values()), double.stats.cache_path)
"""


def test_kernels_of_the_image_are_found_in_a_copy(tmp_path: Path) -> None:
    image, temporary, program = tmp_path / "image", tmp_path / "temporary", tmp_path / "kernel.py"
    temporary.mkdir()
    program.write_text(KERNEL)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(IMAGES), "HOME": str(tmp_path)}
    environment |= {"NUMBA_CACHE_DIR": str(image), "TMPDIR": str(temporary)}

    def use(**more: str) -> tuple[int, int, str]:
        command = [sys.executable, str(program)]
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        hits, misses, path = done.stdout.split()
        return int(hits), int(misses), path

    copied = {"NUMBA_CACHE_LOCATOR_CLASSES": "kernel_cache.CopiedCache"}
    assert use()[:2] == (0, 1), "while the image is built"
    before = sorted(image.rglob("*.nb?"))
    hits, misses, path = use(**copied)
    assert (hits, misses) == (1, 0) and Path(path).is_relative_to(temporary)
    assert sorted(image.rglob("*.nb?")) == before
    image.rename(tmp_path / "gone")
    assert use(**copied)[:2] == (1, 0), "the copy is made once"


def test_kernels_of_every_aggregate_function_are_compiled_into_the_image() -> None:
    compiled = {a.function for descriptor in warm_kernels.descriptors() for a in descriptor.aggregates}
    assert compiled == {name for name, function in FUNCTIONS.items() if not function.gathers}


def software(root: Path) -> Path:
    """A root directory with a package of Debian, two distributions, and jars."""
    files = {
        "var/lib/dpkg/status": "Package: tini\nStatus: install ok installed\nVersion: 0.19.0-1+b3\nArchitecture: amd64\n\n"
        "Package: old\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n",
        "opt/venv/lib/python3.11/site-packages/Py_Arrow-1.0.dist-info/METADATA": "Name: Py_Arrow\nVersion: 1.0\n\nText",
        "usr/lib/python3/dist-packages/pyverbs.egg-info": "Name: pyverbs\nVersion: 44.0\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, group in (("guava-14.0.1", "com.google.guava"), ("own", "")):
        with zipfile.ZipFile(root / "opt" / f"{name}.jar", "w") as jar:
            if group:
                jar.writestr(f"META-INF/maven/{group}/guava/pom.properties", "version=14.0.1")
    (root / "opt" / "link.jar").symlink_to("own.jar")
    return root


def test_the_list_of_software_has_packages_distributions_and_jars(tmp_path: Path) -> None:
    found = sbom.document(software(tmp_path), "localhost/ferry/x:dev")
    assert [part["purl"] for part in found["components"]] == [
        "pkg:deb/debian/tini@0.19.0-1%2Bb3?arch=amd64",
        "pkg:generic/own.jar",
        "pkg:maven/com.google.guava/guava@14.0.1",
        "pkg:pypi/py-arrow@1.0",
        "pkg:pypi/pyverbs@44.0",
    ]
    assert found["bomFormat"] == "CycloneDX" and found["specVersion"] == "1.5"
    refs = [part["bom-ref"] for part in found["components"]]
    assert found["dependencies"] == [{"ref": "localhost/ferry/x:dev", "dependsOn": refs}]
    assert all(part.get("hashes") for part in found["components"] if "jar" in str(part.get("properties")))


def go_text(text: bytes) -> bytes:
    """A text as Go's linker writes it."""
    return bytes((128 | len(text) & 127, len(text) >> 7)) + text


def test_the_list_of_software_has_the_modules_of_a_program_in_go(tmp_path: Path) -> None:
    lines = "path\tferry.dev/verbs\nmod\tferry.dev/verbs\t(devel)\t\ndep\tk8s.io/kubelet\tv0.34.10\th1:x=\nbuild\tCGO_ENABLED=0\n"
    mark = b"\xff Go buildinf:".ljust(32, b"\0")
    (tmp_path / "verbs").write_bytes(
        b"ELF" + mark + go_text(b"go1.26.8") + go_text(b"0" * 16 + lines.encode() + b"1" * 16)
    )
    (tmp_path / "other").write_bytes(b"ELF")
    (tmp_path / "etc").mkdir()
    purls = [part["purl"] for part in sbom.document(tmp_path, "localhost/ferry/verbs:dev")["components"]]
    assert purls == ["pkg:golang/k8s.io/kubelet@v0.34.10", "pkg:golang/stdlib@1.26.8"]


def test_the_plugin_has_two_directories_of_the_node_and_no_privilege() -> None:
    namespace, plugin = yaml.safe_load_all((IMAGES / "verbs" / "daemonset.yaml").read_text())
    assert plugin["metadata"]["namespace"] == namespace["metadata"]["name"]
    spec = plugin["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert (
        security["capabilities"] == {"drop": ["ALL"]}
        and not security["privileged"]
        and security["readOnlyRootFilesystem"]
    )
    assert not security["allowPrivilegeEscalation"] and spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {paths[mount["name"]]: (mount["mountPath"], mount.get("readOnly")) for mount in container["volumeMounts"]}
    assert mounts == {
        "/var/lib/kubelet/device-plugins": ("/var/lib/kubelet/device-plugins", None),
        "/dev/infiniband": ("/dev/infiniband", True),
    }
    flags = set(re.findall(r'flag\.\w+\("(\w+)"', (IMAGES / "verbs" / "main.go").read_text()))
    assert {word.removeprefix("-") for word in container["args"] if word.startswith("-")} <= flags


def test_equal_images_have_equal_lists(tmp_path: Path) -> None:
    one = sbom.document(software(tmp_path), "x")
    assert sbom.document(tmp_path, "x") == one and sbom.document(tmp_path, "y")["serialNumber"] != one["serialNumber"]
    (tmp_path / "var/lib/dpkg/status").unlink()
    assert sbom.document(tmp_path, "x")["serialNumber"] != one["serialNumber"]
