"""Documents survive their files and the wire, also those of another version."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferry.contract.latency import LatencyQuantiles
from ferry.contract.plans import Boundary
from ferry.contract.run_directory import DriverAddress
from ferry.contract.settings import RunSettings, TransportSettings
from ferry.contract.status import CheckpointStatus, Links, LoadStatus, MovesStatus, ReportedProblem, Status

RELEASED = Path(__file__).parents[2] / "released" / "v0.1.0"

STATUS = Status(
    "j", 1, "idle", 5, (1, 1), [(["0.0"], ["1.0"])], True, 1, ["0.0"], True, False,
    (ReportedProblem("SinkFailing", "no room", 12.5),),
    load=LoadStatus([(1.0, 1.0)], latency=LatencyQuantiles(10, 0.01, 0.02, 0.03, 0.04, 0.05)),
    moves=MovesStatus(replica_lag=2, boundaries=(Boundary(1, "0.0", "1.0", None),)),
    transport=Links(1, 2, "why"), checkpoint=CheckpointStatus(7),
)  # fmt: skip


def settings(directory: Path) -> RunSettings:
    return RunSettings(
        job="j", run="j-1", directory=str(directory), secret="s" * 16, redis="unix:///none.sock", pipeline_module="m",
        pipeline_file=None, pipeline_args={}, virtual_nodes=4, replicas=0, workers=1, instances_per_worker=1,
        memory_bytes=1 << 20, epoch_interval_ms=0, epoch_max_rows=1, cores=1, stops=((3, "commit"),),
    )  # fmt: skip


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    one = replace(settings(tmp_path), transport=TransportSettings("rdma", True, "mlx5_0", 3, 4, 4096, "imm", 1 << 20))
    assert RunSettings.read(one.write()) == one


def test_settings_of_a_run_from_before_there_was_a_choice(tmp_path: Path) -> None:
    file = settings(tmp_path).write()
    document = json.loads(file.read_text())
    del document["transport"]
    file.write_text(json.dumps(document))
    assert RunSettings.read(file).transport == TransportSettings() == TransportSettings(mode="auto", expected=False)


def test_an_address_of_a_driver_is_read_as_it_was_written() -> None:
    one = DriverAddress("http://[::1]:7070", 42, 3)
    assert DriverAddress.load(one.dump()) == one
    assert DriverAddress.load('{"url": "u", "pid": 1, "generation": 2, "of_a_later_release": 1}') == DriverAddress(
        "u", 1, 2
    )
    for broken in ("", "{", "[]", "{}", '{"url": "u", "pid": null, "generation": 2}'):
        with pytest.raises((ValueError, TypeError, KeyError)):
            DriverAddress.load(broken)


def test_a_status_of_another_version_is_understood() -> None:
    wire = json.loads(json.dumps(STATUS.to_wire()))
    assert Status.from_wire(wire) == STATUS
    assert Status.from_wire({**wire, "novelty": 1, "moves": {**wire["moves"], "novelty": 1}}) == STATUS
    del wire["transport"], wire["problems"], wire["load"]["latency"]
    assert Status.from_wire(wire) == replace(STATUS, transport=Links(), problems=(), load=LoadStatus([(1.0, 1.0)]))


@pytest.mark.parametrize(
    "wrong", [{"version": [1]}, {"groups": [["0.0"]]}, {"moves": 3}, {"transport": []}, {"groups": 1}], ids=str
)
def test_a_status_of_another_form_is_no_status(wrong: dict[str, Any]) -> None:
    wire = json.loads(json.dumps(STATUS.to_wire()))
    with pytest.raises((TypeError, ValueError)):
        Status.from_wire({**wire, **wrong})


@pytest.mark.parametrize(("rdma", "tcp", "kind"), [(0, 0, ""), (2, 0, "rdma"), (0, 2, "tcp"), (1, 1, "mixed")])
def test_what_links_are_in_one_word(rdma: int, tcp: int, kind: str) -> None:
    assert Links(rdma, tcp).kind == kind


def _novel(doc: Any) -> Any:
    """The document as a later version might write it: something new in every map that has fields."""
    nested = {key: _novel(value) for key, value in doc.items() if key in ("transport", "progress", "load", "moves")}
    return {**doc, **nested, "novelty": {"deep": [1]}}


def test_settings_of_a_later_version_are_read(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(_novel(json.loads((RELEASED / "run.json").read_text()))))
    assert RunSettings.read(file) == RunSettings.read(RELEASED / "run.json")


def test_a_status_of_a_later_version_is_read() -> None:
    wire = json.loads((RELEASED / "status.json").read_text())
    assert Status.from_wire(_novel(wire)) == Status.from_wire(wire)
