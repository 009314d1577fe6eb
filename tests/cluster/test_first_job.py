"""The first job of the tutorial, as a reader follows it: its files, its commands in two terminals, what it has written."""

from __future__ import annotations

import contextlib
import doctest
import os
import runpy
import socket
import struct
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cluster import runner
from tests.documents import ROOT, WALK, Block, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(300)]


def shell(block: Block, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Begin the commands of a block; the first one that fails ends them."""
    return subprocess.Popen(
        ["bash", "-exc", block.text],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def done(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """The commands of a block have ended well."""
    process = shell(block, folder, environment)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


def spark_ports(pids: list[int]) -> list[int]:
    """Where the JVM of a driver listens for other processes of Spark: its RPC and its blocks, but not the bridge to Python."""
    java = [process for pid in pids if (process := psutil.Process(pid)).name() == "java"]
    listening = [c for process in java for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    return [c.laddr.port for c in listening if rpc_without_secret(c.laddr.port)]


def rpc_without_secret(port: int) -> str:
    """What a server of Spark answers to a request of somebody who shows no secret; empty: it is no such server."""
    body = b"no Java object"
    request = struct.pack(">BqI", 3, 7, len(body)) + body  # RpcRequest of spark-network-common
    with socket.create_connection(("127.0.0.1", port), 5) as peer:
        peer.settimeout(5)
        peer.sendall(struct.pack(">q", 8 + len(request)) + request)
        with contextlib.suppress(OSError):
            return peer.recv(1 << 16).decode(errors="replace")
    return ""


def test_the_first_job_does_what_its_description_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, document, prepare, first, *second = [b for b in blocks(WALK) if not b.session and not b.installs]
    (tmp_path / "sales.py").write_text(python.text)
    (tmp_path / "sales.yaml").write_text(document.text)
    paths = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "FERRY_HOME": str(tmp_path / "home"), "PATH": paths}
    environment["PYTHONPATH"] = f"{ROOT / 'runtime'}:{ROOT / 'operator'}"
    done(prepare, tmp_path, environment)
    job = runner.Running(tmp_path / "home", tmp_path / "out", shell(first, tmp_path, environment))
    try:
        job.await_epoch(0, 200)
        assert job.process.poll() is None and (ports := spark_ports(job.pids("driver")))
        assert all("SaslMessage" in rpc_without_secret(port) for port in ports), "Spark takes requests of any user"
        for number, block in enumerate(second):
            job.await_epoch(number, 200)
            done(block, tmp_path, environment)
        output, _ = job.process.communicate(timeout=60)
        assert job.process.returncode == 0 and not runner.settle(tmp_path / "home"), output
    finally:
        for process in runner.processes_of(tmp_path / "home"):  # none, unless something went wrong
            process.kill()
    monkeypatch.chdir(tmp_path)
    said, names = list[str](), runpy.run_path("sales.py")
    for session in [block for block in blocks(WALK) if block.session]:
        test = doctest.DocTestParser().get_doctest(session.text, names, WALK.name, None, 0)
        doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
