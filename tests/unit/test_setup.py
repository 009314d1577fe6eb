"""The parts of scripts/setup that decide: which Java and which Redis fit, links that are mended, when nothing is to do."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "setup"
GUEST = ROOT / "tests" / "rdma" / "settings.sh"


def shell(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with the functions of the script defined."""
    full = {"PATH": os.environ["PATH"], **env}
    return subprocess.run(["bash", "-c", f"source '{SCRIPT}'; {code}"], capture_output=True, text=True, env=full)


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def java(home: Path, version: str, module: str = "jdk.incubator.vector@17", before: str = "") -> Path:
    lines = f'printf \'{before}openjdk version "{version}" 2025-04-15\\nOpenJDK "Server" VM\\n\' >&2'
    program(
        home / "bin" / "java", f"if [ $1 = --list-modules ]; then echo java.base@17; echo {module}; else {lines}; fi"
    )
    return home


def test_a_python_is_taken_that_can_make_environments(tmp_path: Path) -> None:
    fits, makes = "sys.exit(not", "import ensurepip"
    old = program(tmp_path / "old", f'case "$2" in *"{fits}"*) exit 1;; esac')
    bare = program(tmp_path / "bare", f'case "$2" in *"{makes}"*) exit 1;; esac')
    whole = program(tmp_path / "python3.11", "")
    names = f"PATH='{tmp_path}'; /usr/bin/true"
    for named, found in [(old, None), (bare, None), (whole, whole)]:
        done = shell(f"{names}; python_fits '{named}' && makes_environments '{named}' && command -v '{named}'")
        assert (done.stdout.strip() or None) == (str(found) if found else None), named
    assert shell(f"PYTHON='{whole}'; find_python").stdout.strip() == str(whole), "what is named comes first"
    assert shell(f"PYTHON='{bare}'; find_python").stdout.strip() != str(bare)


def test_no_process_compiles_the_libraries_again() -> None:
    """Nor does Spark name archives of sources to its Python processes, in place of what is installed here."""
    assert Path(importlib.util.cache_from_source(pyspark.__file__)).exists()
    assert not [*Path(pyspark.__file__).parent.glob("python/lib/*.zip")]


@pytest.mark.parametrize(
    ("version", "module", "before", "fits"),
    [
        ("17.0.15", "jdk.incubator.vector@17", "", True),
        ("21", "jdk.incubator.vector@21", "", True),
        ("17.0.15", "jdk.incubator.vector@17", "Picked up JAVA_TOOL_OPTIONS: -Da=1\\n", True),
        ("17.0.15", "java.sql@17", "", False),
        ("11.0.2", "jdk.incubator.vector@17", "", False),
        ("1.8.0_17", "jdk.incubator.vector@17", "", False),
        ("25", "jdk.incubator.vector@25", "", False),
    ],
)
def test_java_must_be_17_or_21_with_vectors(tmp_path: Path, version: str, module: str, before: str, fits: bool) -> None:
    home = java(tmp_path / "java", version, module, before)
    assert (shell(f"java_fits '{home}'").returncode == 0) is fits


def test_links_into_the_system_become_copies(tmp_path: Path) -> None:
    root = tmp_path / "java"
    conf = root / "usr/lib/jvm/java-17/conf"
    conf.mkdir(parents=True)
    (root / "etc/java-17-openjdk").mkdir(parents=True)
    (root / "etc/java-17-openjdk/net.properties").write_text("proxies=none\n")
    (conf / "net.properties").symlink_to("/etc/java-17-openjdk/net.properties")
    (conf / "elsewhere").symlink_to("/nowhere/at/all")
    assert shell(f"mend_links '{root}'").returncode == 0
    assert not (conf / "net.properties").is_symlink()
    assert (conf / "net.properties").read_text() == "proxies=none\n"
    assert (conf / "elsewhere").is_symlink(), "a link whose target was not unpacked stays as it is"


def test_what_was_recorded_is_trusted_until_it_is_gone(tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17.0.1")
    other = java(tmp_path / "other", "21.0.1")
    record, stamp = tmp_path / "ferry.env", tmp_path / "ferry.stamp"
    stamp.touch()
    os.utime(stamp, (1, 1))
    record.write_text(f"JAVA_HOME={home}\n")
    code = f"ENV_FILE='{record}'; STAMP='{stamp}'; recorded"
    assert shell(code).returncode == 0
    assert shell(code, JAVA_HOME=str(home)).returncode == 0
    assert shell(code, JAVA_HOME="/nowhere").returncode == 0, "a JAVA_HOME that does not fit changes nothing"
    assert shell(code, JAVA_HOME=str(other)).returncode != 0, "a JAVA_HOME that fits is preferred"
    (home / "bin" / "java").unlink()
    assert shell(code).returncode != 0


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("A worker that leaves gives back its memory\n", ""),
        ("A worker that leaves gives back its memory\n\nIt was kept until the run's end.\n# a comment\n", ""),
        ("Merge branch 'x' of somewhere that has a long name into another branch with a long name\n", ""),
        ("\n\nwhy\n", "is empty"),
        ("x" * 73 + "\n", "has 73 characters"),
        ("A worker that leaves gives back its memory.\n", "full stop"),
        ("A worker that leaves\ngives back its memory\n", "second line"),
    ],
)
def test_a_commit_says_one_change_in_one_line(tmp_path: Path, message: str, complaint: str) -> None:
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([SCRIPT.parent / "hooks" / "commit-msg", file], capture_output=True, text=True)
    assert (done.returncode != 0) == bool(complaint) and complaint in done.stderr


def test_set_up_has_git_check_messages_unless_told_otherwise(tmp_path: Path) -> None:
    def hooks() -> str:
        found = shell(f"cd '{tmp_path}' && ensure_hooks && git config core.hooksPath", HOME=str(tmp_path))
        return found.stdout.strip()

    assert hooks() == "", "no clone"
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert hooks() == "scripts/hooks"
    subprocess.run(["git", "-C", tmp_path, "config", "core.hooksPath", "mine"], check=True)
    assert hooks() == "mine"


LOADED = (
    "import sys, ferry.sidecar.node; print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('ferry.')))"
)


def test_a_guest_has_every_library_that_a_sidecar_imports() -> None:
    """What its modules name outside of functions; libraries of libraries come with them."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    trees = (ast.parse(Path(file).read_text()) for file in done.stdout.split())
    nodes = [node for tree in trees for node in tree.body]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"ferry"}
    listed = subprocess.run(
        ["bash", "-c", f"ROOT=.; source '{GUEST}'; echo $LIBRARIES"], capture_output=True, text=True, check=True
    )
    installed = {name.replace("-", "_") for name in listed.stdout.split()}
    assert "numba" in roots and not roots - installed


def test_tests_of_one_group_run_on_one_worker(tmp_path: Path) -> None:
    """A release of pytest has made pytest-xdist forget groups, and nothing said so: clusters were started side by side."""
    lines = [
        "import os, pytest",
        '@pytest.mark.xdist_group("clusters")',
        '@pytest.mark.parametrize("number", range(8))',
        "def test_one(number):",
        '    open(f"worker-{os.environ[\'PYTEST_XDIST_WORKER\']}", "w").close()',
    ]
    (tmp_path / "test_group.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "test_group.py"]
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True)
    assert len(list(tmp_path.glob("worker-*"))) == 1


def test_the_client_asks_for_what_the_whole_asks_for() -> None:
    """In the same bounds: both distributions hold the same packages."""
    whole, client = (
        tomllib.loads((ROOT / file).read_text())["project"]
        for file in ("pyproject.toml", "operator/client/pyproject.toml")
    )
    bounds = {*whole["dependencies"], *whole["optional-dependencies"]["client"]}
    assert {*client["dependencies"]} <= bounds
    for field in ("version", "license", "requires-python", "scripts"):
        assert client[field] == whole[field]
