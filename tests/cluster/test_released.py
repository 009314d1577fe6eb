"""A job of the present goes on from a checkpoint that a release has frozen, and ends as if it had run from the beginning."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from ferry.system.user_module import load
from tests.cluster import runner
from tests.released import make

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(300)]

RELEASES = sorted(folder for folder in make.HERE.glob("v*") if folder.is_dir())

EXPECTED = {
    "counts": """SELECT user, begin AS window_start, count(*) AS n, sum(amount) AS total, max(amount) AS top, avg(amount) AS mean
        FROM records, unnest([time_bucket(INTERVAL 5 seconds, ts), time_bucket(INTERVAL 5 seconds, ts) - INTERVAL 5 seconds]) AS w(begin)
        GROUP BY ALL HAVING epoch_ms(begin) + 10000 > {counts}""",
    "totals": "SELECT name, count(*) AS n, min(number) AS first FROM records GROUP BY name",
    "latest": "SELECT user, arg_max(amount, number) AS value FROM records GROUP BY user",
}
"""What sinks get after the restore; of `totals`, the last of each key. `{name}`: the operator's watermark at the checkpoint."""


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_a_job_goes_on_from_a_checkpoint_of_the_release(release: Path, tmp_path: Path) -> None:
    store = shutil.copytree(release / "checkpoints", tmp_path / "store")
    program: Any = load(None, str(release / "program.py"))
    spec = {
        "pipeline": {"file": str(release / "program.py"), "args": {"whole": True}},
        "workers": 1,
        "restoreFrom": release.name,
        "state": {"virtualNodes": 8, "replicas": 0, "checkpoint": {"location": str(store)}},
        "epoch": {"maxRows": 2000, "interval": "0s"},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": make.JOB}, "spec": spec}
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(document))
    manifest = json.loads(max((store / make.JOB / "manifests").iterdir()).read_text())
    marks = {one["name"]: result[2] for one, result in zip(manifest["operators"], manifest["results"], strict=True)}
    result = runner.run(job, tmp_path)
    assert result.code == 0, result.story()
    database = duckdb.connect()
    records = program.records(0, program.LAST)
    database.register("records", records)
    for name, text in EXPECTED.items():
        database.execute(f"CREATE VIEW found AS SELECT * FROM '{result.output}/{name}/*/*.parquet'")
        last = "QUALIFY row_number() OVER (PARTITION BY name ORDER BY n DESC) = 1" if name == "totals" else ""
        expected = database.execute(text.format(**marks))
        columns = [column for column, *_ in expected.description]
        right = sorted(expected.fetchall())
        found = sorted(database.execute(f"SELECT {', '.join(columns)} FROM found {last}").fetchall())
        assert found == right and len(right) >= 40, name
        database.execute("DROP VIEW found")
