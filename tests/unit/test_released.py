"""Each release stays as it was frozen (`tests/released`), and the present code reads all of it.

A test that fails here says that an upgrade would break something: mend the code, not the fixture.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from ferry.contract import journals, messages, places
from ferry.contract.manifest import Manifest
from ferry.contract.program_text import PREFIX
from ferry.contract.routing import Table
from ferry.contract.settings import RunSettings
from ferry.contract.status import Status
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.process.classes import class_of
from ferry.registry.connection import connected
from ferry_operator.control import plan_file
from ferry_operator.crd.rules import BASE
from ferry_operator.job import spec
from ferry_operator.kube.observe import effective_spec
from tests.released import make
from tests.released.samples import as_json, lacking
from tests.unit.crd import compat
from tests.unit.registry.redis_server import RUN, Redis

RELEASES = sorted(folder for folder in make.HERE.glob("v*") if folder.is_dir())

CUT = {"v0.1.0": "5ce9241887d4dcb7fb59216e024f5f9067eaa122d0691a93727a344c591ef98e"}
"""SHA-256 of the digests of every release, from the day on which it was cut."""

CHANGED_VALUES: dict[str, str] = {"redis.resources.limits.memory": "TLS needs more memory; a limit reserves none"}
"""Values of the chart with another default, and why no installation that names no value is the worse for it."""

FIXED = {
    "Deployment": ["spec", "selector"],
    "PersistentVolumeClaim": ["spec", "accessModes"],
    "RoleBinding": ["roleRef"],
    "Service": ["spec", "selector"],
}
"""What an upgrade may not change: the API server refuses it, or pods of the release are not found any more."""

ROOT, VALUES = make.runner.ROOT, make.CHART / "values.yaml"

pytestmark = pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)


def document(file: Path) -> Any:
    return json.loads(file.read_text())


def test_no_file_of_a_release_changes(release: Path) -> None:
    frozen = dict(reversed(line.split("  ")) for line in (release / make.DIGESTS).read_text().splitlines())
    assert {name: make.digest(release / name) for name in make.files(release)} == frozen
    assert make.digest(release / make.DIGESTS) == CUT[release.name]


def test_definitions_take_objects_of_the_release(release: Path) -> None:
    files = sorted((release / "crds").glob("*.yaml"))
    assert len(files) == 2
    for file in files:
        present = make.runner.ROOT / "crds" / file.name
        assert compat.breaks(yaml.safe_load(file.read_text()), yaml.safe_load(present.read_text())) == [], file.name


def test_the_definition_of_the_release_takes_what_the_operator_writes(release: Path) -> None:
    """An operator is upgraded before its definition, or taken back to this release: fields are dropped, never refused."""
    old, new = (
        yaml.safe_load((folder / "crds" / "streamjobs.ferry.dev.yaml").read_text()) for folder in (release, ROOT)
    )
    for one in compat.breaks(new, old):
        assert ": status" not in one or one.endswith(": is gone"), one


def test_pods_of_the_release_are_not_outdated(release: Path) -> None:
    """Another operator with the same installation restarts nothing."""
    frozen = document(release / "revisions.json")
    assert len(frozen) > 50
    for name, one in frozen.items():
        job = spec.check({**BASE, "spec": one["spec"]})
        mine = effective_spec.revisions(job, "u", make.INSTALLATION)
        assert mine.worker == one["worker"], name
        assert one["driver"] in (mine.driver, mine.driver_before), name


def leaves(values: Any, path: str = "") -> dict[str, Any]:
    """The values of a chart that are no groups."""
    if not isinstance(values, dict) or not values:
        return {path: values}
    return {key: leaf for name, value in values.items() for key, leaf in leaves(value, f"{path}.{name}").items()}


def test_defaults_of_the_chart_stay(release: Path) -> None:
    old, new = (leaves(yaml.safe_load(file.read_text())) for file in (release / "chart" / "values.yaml", VALUES))
    changed = {name.removeprefix(".") for name in old if name not in new or new[name] != old[name]}
    assert changed == CHANGED_VALUES.keys()


def test_the_chart_takes_values_of_the_release_and_is_upgraded_in_place(release: Path) -> None:
    present = {(one["kind"], one["metadata"]["name"]): one for one in make.rendered(release / "chart" / "values.yaml")}
    found = set()
    for old in yaml.safe_load_all((release / "chart" / "rendered.yaml").read_text()):
        if (path := FIXED.get(kind := old["kind"])) is not None:
            new = present[kind, old["metadata"]["name"]]
            assert reduce(dict.__getitem__, path, new) == reduce(dict.__getitem__, path, old), old["metadata"]["name"]
            found.add(kind)
    assert found == FIXED.keys()


def test_settings_of_a_run_mean_the_same(release: Path, tmp_path: Path) -> None:
    read = RunSettings.read(release / "run.json")
    written = document(RunSettings.write(make.replace(read, directory=str(tmp_path))))
    assert lacking(document(release / "run.json"), written | {"directory": read.directory}) == []


def test_a_status_means_the_same(release: Path) -> None:
    said = document(release / "status.json")
    assert lacking(said, json.loads(json.dumps(Status.from_wire(said).to_wire()))) == []


def test_messages_have_the_same_bytes_and_mean_the_same(release: Path) -> None:
    frozen = document(release / "messages.json")
    assert len(frozen) > 20
    for name, one in frozen.items():
        message = messages.decode(one["code"], bytes.fromhex(one["bytes"]))
        assert lacking(one["fields"], as_json(message), name) == []
        assert messages.encode(message).hex() == one["bytes"], f"{name}: an older peer reads these bytes only"


def test_a_plan_file_means_the_same(release: Path) -> None:
    text = (release / "plan.json").read_text()
    assert lacking(json.loads(text), json.loads(plan_file.read(text).dump())) == []


def test_the_journal_of_the_api_server_means_the_same(release: Path) -> None:
    journal = document(release / "journal.json")
    assert lacking(journal["planned"], json.loads(json.dumps(journals.unpacked(journal["object"]).to_journal()))) == []


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.end()


def test_the_journal_of_redis_means_the_same(release: Path, redis: Redis) -> None:
    frozen, client = document(release / "journal.json"), connected(f"unix://{redis.socket}", "", 2.0)
    client.set(places.journal(RUN), frozen["redis"])
    client.set(places.pipeline(RUN), frozen["operators"])
    table = redis.journal().read()
    assert isinstance(table, Table) and lacking(frozen["table"], json.loads(json.dumps(table.to_journal()))) == []
    catalogue = redis.journal().catalogue()
    assert catalogue is not None and lacking(json.loads(frozen["operators"]), json.loads(catalogue.dump())) == []


def test_a_manifest_means_the_same(release: Path) -> None:
    files = sorted(release.glob(f"checkpoints/{make.JOB}/manifests/*.json"))
    assert len(files) == 2
    for file in files:
        frozen = {key: value for key, value in document(file).items() if key not in ("format", "digest")}
        assert lacking(frozen, json.loads(Manifest.load(file.read_bytes()).dump())) == []


def test_classes_that_a_checkpoint_names_are_where_they_were(release: Path) -> None:
    names = set[str]()
    for file in release.glob(f"checkpoints/{make.JOB}/manifests/*.json"):
        shapes = [one.process for one in Manifest.load(file.read_bytes()).operators if one.process is not None]
        names |= {name for shape in shapes for name in shape.classes if not name.startswith(PREFIX)}
    assert names and all(isinstance(class_of(name), type) for name in names)


def test_a_checkpoint_holds_the_same_state(release: Path, tmp_path: Path) -> None:
    store = shutil.copytree(release / "checkpoints", tmp_path / "store")  # a reader writes a pin
    newest = CheckpointCatalog(Location(str(store), make.JOB)).find(release.name)
    assert {file.kind for file in newest.files} == {"scan", "changes"}
    assert {one.kind for one in newest.operators} == {"aggregate", "join", "process"}
    assert json.loads(json.dumps(make.state_of(store))) == document(release / "state.json")
