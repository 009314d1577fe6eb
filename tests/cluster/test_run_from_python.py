"""`ferry.run`: a job begun, watched, scaled and read from Python; and what is told of jobs that cannot be run."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ferry
from tests.cluster.runner import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: away
contexts: [{name: away, context: {cluster: away, user: away}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: away, user: {}}]
"""

PROGRAM = """
import ferry
import pyarrow as pa

def sources(spark, args):
    return {"in": ferry.parquet_files(args["directory"], pa.schema([("k", pa.int64()), ("v", pa.int64())]), finite=args["finite"])}

def pipeline(streams, args):
    sums = streams["in"].key_by("k").aggregate("sums", v=ferry.sum("v"), emit=ferry.changes())
    return [sums.sink(ferry.parquet("sums")), streams["in"].sink(ferry.parquet(args["copy"]))]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"k": [1, 1, 2], "v": [10, 20, 30]}), tmp_path / "in" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)  # A job of the same name may run on a cluster: it is another job.
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'runtime'}:{ROOT / 'operator'}")


def args(finite: bool, copy: str = "copy") -> dict[str, object]:
    return {"directory": "in", "finite": finite, "copy": copy}


def test_a_run_is_watched_scaled_and_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ferry.run("job.py", args=args(False), output="out", workers=1, sets={"state.replicas": 0}) as run:
        assert run.status()["spec"]["workers"] == 1, "the first request waits until the run is listed"
        with pytest.raises(ferry.SpecRefused, match=r"no parquet sink has begun yet$"):
            run.result()
        until = time.monotonic() + 120
        while "copy" not in [path.name for path in tmp_path.glob("out/*") if list(path.glob("epoch=*"))]:
            assert run.running and time.monotonic() < until
            time.sleep(0.2)
        assert repr(run) == f"<run of job, running, output {tmp_path / 'out'}>"
        run.scale(workers=2)
        assert run.name == "job" and run.status()["spec"]["workers"] == 2
        with pytest.raises(TimeoutError, match=r"job has not ended within 0\.1 s$"):
            run.wait(0.1)
        with pytest.raises(ferry.SpecRefused, match=r"name one sink; there are: copy, sums$"):
            run.result()
    assert run.wait()["outcome"] == "stopped" and not run.running
    assert sorted(run.result("copy").to_pylist(), key=str) == [{"k": 1, "v": 10}, {"k": 1, "v": 20}, {"k": 2, "v": 30}]
    assert sorted(run.result("sums").to_pylist(), key=str) == [{"k": 1, "v": 30}, {"k": 2, "v": 30}]
    assert "driver ready" in capfd.readouterr().err


def test_what_cannot_be_run_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ferry.RunFailed, match=r"^job: .*both write to"):
        ferry.run("job.py", args=args(True, "sums"), output="out", workers=1, quiet=True).wait(120)
    with pytest.raises(ferry.RunFailed, match=r"^job: spec\.workers"):
        ferry.run("job.py", output="out", workers=-1).wait(60)
    with pytest.raises(ferry.SpecRefused, match=r"nothing\.py does not exist"):
        ferry.run("nothing.py", output="out")
    assert "spec.workers" in capfd.readouterr().err
