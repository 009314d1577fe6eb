"""Freezes what a release promises to read again: `python -m tests.released.make v0.1.0` writes `tests/released/v0.1.0`.

| file | what | from |
|---|---|---|
| `crds/` | the resource definitions | `crds/` |
| `chart/values.yaml`, `chart/rendered.yaml` | the chart's defaults, and its objects with everything on | `charts/ferry` |
| `program.py`, `checkpoints/`, `state.json` | a program, a checkpoint of its job, and the state in it | a run |
| `run.json` | settings of a run | the run |
| `plan.json` | a plan file | `ferry plan` of the run |
| `journal.json` | the journal in Redis, its operators, the journal in the API server | the run, and a table with plans |
| `messages.json` | each message of the channel: its bytes and its fields | `tests.released.samples` |
| `status.json` | what a driver says of itself | `tests.released.samples` |
| `revisions.json` | jobs that differ in one field each, with the revisions of their pods | the operator's rules |
| `DIGESTS` | SHA-256 of all others, for `sha256sum -c` | |

`--only NAME ...` writes these again, before the release is cut; afterwards no file changes (`tests/unit/test_released.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml

import ferry
from ferry.contract import journals, messages, places
from ferry.contract.errors import SpecRefused
from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan, PlanStep
from ferry.contract.routing import Table
from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry.registry.connection import connected
from ferry_operator.crd.rules import BASE, patched
from ferry_operator.job import spec
from ferry_operator.kube.manifests.release import Installation
from ferry_operator.kube.observe import effective_spec
from tests.cluster import runner
from tests.released import program
from tests.released.samples import Samples, as_json
from tests.unit.charts import CHART
from tests.unit.charts import run as helm
from tests.unit.job.test_changes import BEFORE, CHANGED, at

HERE = Path(__file__).parent
DIGESTS = "DIGESTS"
JOB = "released"
EPOCH = 400
"""Records of an epoch."""

TABLES = {"counts": None, "totals": None, "pairs": None, "visits": "sessions", "latest": "latest"}
"""Operators of the program, and the table of each that is a process."""

INSTALLATION = Installation("streams", "ferry-runtime:frozen", "redis://redis:6379/0", "key", "ferry-job")
"""Of the operator whose revisions are frozen."""

EVERYTHING = """
nodes: {read: true}
monitoring: {podMonitor: true, serviceMonitor: true, rules: true, dashboards: true}
redis: {persistence: {enabled: true}}
"""

COMMAND = [sys.executable, "-m", "ferry_operator.cli"]


def files(folder: Path) -> list[str]:
    """All files of a release but the digests, by their names."""
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file() and one.name != DIGESTS)


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_json(file: Path, document: Any) -> None:
    """In lines that can be compared by eye."""
    file.write_text(json.dumps(document, indent=1) + "\n")


def state_of(location: Path) -> dict[str, list[Any]]:
    """What `ferry.read_state` reads of each operator, its rows in an order of their own."""
    found = {name: ferry.read_state(str(location), name, job=JOB, table=table) for name, table in TABLES.items()}
    return {name: sorted(table.to_pylist(), key=repr) for name, table in found.items()}


def freeze_definitions(folder: Path) -> None:
    """`crds/`."""
    for file in (runner.ROOT / "crds").glob("*.yaml"):
        (folder / "crds").mkdir(exist_ok=True)
        shutil.copy(file, folder / "crds" / file.name)


def rendered(values: Path | None = None) -> list[dict[str, Any]]:
    """The chart's objects with everything on, over these defaults; what the chart reads from files is cut to its digest."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as more:
        more.write(EVERYTHING)
        more.flush()
        options = [part for file in (values, more.name) if file is not None for part in ("--values", str(file))]
        text = helm("template", "release", str(CHART), "--namespace", "streams", *options)
    found = [document for document in yaml.safe_load_all(text) if document]
    for document in found:
        for name, value in document.get("data", {}).items():
            document["data"][name] = hashlib.sha256(value.encode()).hexdigest()
    return found


def freeze_chart(folder: Path) -> None:
    """`chart/`."""
    (folder / "chart").mkdir(exist_ok=True)
    shutil.copy(CHART / "values.yaml", folder / "chart")
    (folder / "chart" / "rendered.yaml").write_text(yaml.safe_dump_all(rendered(), sort_keys=False, width=120))


def freeze_messages(folder: Path) -> None:
    """`messages.json`."""
    samples, found = Samples(), {}
    for code, kind in messages.KINDS.items():
        message = samples.of(kind)
        found[kind.__name__] = {"code": code, "bytes": messages.encode(message).hex(), "fields": as_json(message)}
    write_json(folder / "messages.json", found)


def freeze_status(folder: Path) -> None:
    """`status.json`."""
    write_json(folder / "status.json", Samples().of(Status).to_wire())


def journal_of(settings: RunSettings) -> dict[str, Any]:
    """The journal of a run, and the same table with plans as the API server holds it."""
    redis = connected(settings.redis, settings.secret, 5.0)
    text, operators = (cast("str", redis.get(key(settings.run))) for key in (places.journal, places.pipeline))
    table = Table.from_wire(json.loads(text))
    placements = tuple(group.in_sync for group in table.groups)
    swapped = tuple((*one[1:], one[0]) for one in placements)
    plan = Plan(1, swapped, (PlanStep((0,), (0, 1)), PlanStep((), (2,))), before=placements, reached=1)
    later = Plan(2, placements, at_epoch=900, token=1, basis={"usable": ["0.0"]}, at_window=(3,))
    waiting = ((3, InstanceId("0.0")),)
    planned = replace(table, plan=plan, prepared=later, at_window=waiting)
    return {
        "redis": text,
        "operators": operators,
        "table": table.to_journal(),
        "object": journals.packed(planned),
        "planned": planned.to_journal(),
    }


def freeze_run(folder: Path) -> None:
    """All that a run leaves: `program.py`, `checkpoints/`, `state.json`, `run.json`, `plan.json`, `journal.json`."""
    shutil.copy(HERE / "program.py", folder)
    with tempfile.TemporaryDirectory(prefix="ferry-release-") as base:
        _freeze_run(folder, Path(base))


def _freeze_run(folder: Path, base: Path) -> None:
    store, job = base / "checkpoints", base / "job.yaml"
    wanted = {
        "pipeline": {"file": str(folder / "program.py")},
        "workers": 2,
        "state": {"virtualNodes": 8, "replicas": 1, "checkpoint": {"location": str(store)}},
        "epoch": {"maxRows": EPOCH, "interval": "500ms"},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": JOB}, "spec": wanted}
    job.write_text(json.dumps(document))
    running = runner.start(job, base, at=["epoch=3 workers=3"])

    def ferry_command(*arguments: str) -> None:
        environment = {**os.environ, "FERRY_HOME": str(running.home)}
        subprocess.run([*COMMAND, *arguments], env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)

    try:
        # Leaders that took over begin with a scan; the second checkpoint adds changes to it.
        running.await_epoch(5)
        ferry_command("checkpoint", JOB)
        running.await_epoch(program.FROZEN // EPOCH - 1)
        ferry_command("checkpoint", JOB, "--name", folder.name)
        ferry_command("plan", JOB, "--set", "workers=4", "-o", str(folder / "plan.json"))
        assert running.directory is not None
        settings = RunSettings.read(running.directory / "run.json")
        write_json(folder / "journal.json", journal_of(settings))
        text = (running.directory / "run.json").read_text()
        runner.stop(running)
        assert runner.finish(running).code == 0, (base / "stderr").read_text()[-3000:]
    finally:
        if running.process.poll() is None:
            runner.lose_everything(running)
    for secret, neutral in (
        (str(folder), "/released"),
        (str(base), "/released"),
        (settings.secret, "0123456789abcdef"),
    ):
        text = text.replace(secret, neutral)
    (folder / "run.json").write_text(text + "\n")
    shutil.copytree(store, folder / "checkpoints", ignore=shutil.ignore_patterns("pins"), dirs_exist_ok=True)
    write_json(folder / "state.json", state_of(folder / "checkpoints"))


def freeze_revisions(folder: Path) -> None:
    """`revisions.json`: pods with these revisions are there when a later operator begins."""
    values = {path: value for path, (value, _) in CHANGED.items()}
    jobs = {"default": BASE} | {
        path: patched(patched(BASE, BEFORE.get(path, {})), at(path, values[path])) for path in values
    }
    found = {}
    for name, document in jobs.items():
        try:
            mine = effective_spec.revisions(spec.check(document), "u", INSTALLATION)
        except SpecRefused:
            continue  # a field of jobs on one machine
        found[name] = {"spec": document["spec"], "driver": mine.driver, "worker": mine.worker}
    write_json(folder / "revisions.json", found)


PARTS: dict[str, Callable[[Path], None]] = {
    "crds": freeze_definitions,
    "chart": freeze_chart,
    "messages": freeze_messages,
    "status": freeze_status,
    "run": freeze_run,
    "revisions": freeze_revisions,
}


def main() -> None:
    """Write a folder, or parts of it again."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("release", help="such as v0.1.0")
    p.add_argument("--only", nargs="+", choices=PARTS, help="write these parts of a folder again")
    a = p.parse_args()
    folder = HERE / a.release
    if a.only is None and folder.exists():
        p.error(f"{folder} is there: a release is frozen once; --only writes parts again before it is cut")
    folder.mkdir(exist_ok=True)
    for name in a.only or PARTS:
        PARTS[name](folder)
    (folder / DIGESTS).write_text("".join(f"{digest(folder / name)}  {name}\n" for name in files(folder)))


if __name__ == "__main__":
    main()
