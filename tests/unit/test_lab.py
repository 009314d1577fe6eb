"""The lab's settings: its version of Kubernetes, and programs that serve every version."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests" / "kube" / "lab"


def shell(code: str, cache: Path, **env: str) -> str:
    """What `code` prints with settings and build steps of a lab in an empty cache."""
    full = {"PATH": os.environ["PATH"], "HOME": str(cache), "FERRY_LAB_CACHE": str(cache), **env}
    begin = f"set -euo pipefail; HERE='{LAB}'; source '{LAB}/settings.sh'; source '{LAB}/build.sh'; "
    done = subprocess.run(["bash", "-c", begin + code], capture_output=True, text=True, env=full)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_lab_that_is_up_keeps_its_version(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "version").write_text("v1.29.15\n")
    assert shell("echo $BIN", tmp_path, FERRY_LAB="mine") == f"{tmp_path}/v1.29.15/bin"
    assert shell("echo $BIN", tmp_path, FERRY_LAB="mine", FERRY_LAB_KUBE="v1.37.2") == f"{tmp_path}/v1.37.2/bin"
    assert shell("echo $BIN", tmp_path) == f"{tmp_path}/{shell('echo $CLIENT_VERSION', tmp_path)}/bin"


def test_a_lab_that_is_up_keeps_its_family(tmp_path: Path) -> None:
    known = 'echo $FAMILY $(node_ip 1) $(pods_of 1) $(netloc "$(node_ip 1)")'
    six = "ipv6 fd00:10:250::11 fd00:10:244:1::/64 [fd00:10:250::11]"
    assert shell(known, tmp_path) == "ipv4 10.250.0.11 10.244.1.0/24 10.250.0.11"
    assert shell(known, tmp_path, FERRY_LAB_FAMILY="ipv6") == six
    run = tmp_path / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "settings").write_text('FAMILY="ipv6"\n')
    assert shell(known, tmp_path, FERRY_LAB="mine") == six


def test_programs_that_serve_every_version_are_compiled_once(tmp_path: Path) -> None:
    other = tmp_path / "v1.30.0" / "bin"
    other.mkdir(parents=True)
    for name, stamp in (("etcd", shell("echo $ETCD_VERSION", tmp_path)), ("kubernetes", "v1.30.0"), ("krew", "v0.0.1")):
        (other / f".{name}").write_text(f"{stamp}\n")
    (other / "etcd").write_text("a program")
    (other / "kubectl-krew").write_text("of another release")
    tried = "for step in etcd kubernetes krew; do borrow $step && echo $step; done; have_etcd && cat $BIN/etcd"
    assert shell(f"mkdir -p $BIN; {tried}", tmp_path).split("\n") == ["etcd", "a program"]


def test_the_oldest_version_of_the_tests_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "ferry" / "Chart.yaml").read_text())["kubeVersion"]
    (named,) = re.findall(r"VERSIONS:-(v[^}]+)}", (ROOT / "scripts" / "test").read_text())
    minors = [int(version.split(".")[1]) for version in named.split()]
    (oldest,) = re.fullmatch(r">=1\.(\d+)\.0-0", chart).groups()
    assert minors[0] == min(minors) == int(oldest) and len(minors) > 1
