"""What Spark is told of its executors: as many task slots as the job says, and a heap that fits into their container."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import first_catalogue
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.driver import standalone
from ferry.driver.announcer import Announcer
from ferry.environment import Environment


def settings(**more: object) -> RunSettings:
    return RunSettings(
        job="j", run="j-1", directory="/d", secret="s" * 16, redis="redis://r", pipeline_module="m", pipeline_file=None,
        pipeline_args={}, virtual_nodes=4, replicas=0, workers=1, instances_per_worker=1, memory_bytes=1 << 20,
        epoch_interval_ms=0, epoch_max_rows=1, cores=3, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param(14 << 30, "10240m", id="40 % of the heap beside it"),
        pytest.param(1344 << 20, "960m", id="where both are the same"),
        pytest.param(1 << 30, "640m", id="at least 384 MiB beside it"),
        pytest.param(256 << 20, "472m", id="less than Spark starts with"),
    ],
)
def test_the_heap_and_what_is_beside_it_fill_the_container(container: int, expected: str) -> None:
    assert standalone.heap(container) == expected


def test_executors_are_what_the_job_says() -> None:
    assert standalone.fixed(settings(), Environment())["spark.executor.cores"] == "3"
    assert standalone.tuned(settings(executor_bytes=14 << 30))["spark.executor.memory"] == "10240m"
    assert standalone.tuned(settings())["spark.executor.memory"] == "512m", "of settings from before it was said"


def test_workers_are_told_how_many_task_slots_to_offer() -> None:
    """Before the generation is claimed, and after."""
    told: list[DriverPlace] = []
    registry: Any = SimpleNamespace(announce=lambda place: told.append(place) or True)
    one = Announcer(registry, SimpleNamespace(read=lambda: None), cores=3)  # type: ignore[arg-type]
    one.starting("spark://x:7077")
    machine: Any = SimpleNamespace(phase=None, generation=1)
    one._started(machine, "http://x:7070")
    assert [(place.claimed, place.cores) for place in told] == [(False, 3), (True, 3)]
    assert DriverPlace.load(told[1].dump()) == told[1]


def test_what_was_said_is_said_again_until_workers_follow_a_newer_driver() -> None:
    told: list[DriverPlace] = []
    published: list[object] = []
    answers = [True, True, False]
    registry: Any = SimpleNamespace(
        announce=lambda place: told.append(place) or answers.pop(0),
        publish=lambda found: published.append(found),
        catalogue=lambda: "of another driver",
    )
    one = Announcer(registry, SimpleNamespace(read=lambda: None), cores=3)  # type: ignore[arg-type]
    one.catalogue = first_catalogue([])
    one.keep()
    assert told == [], "nothing is to be said yet"
    one.starting("spark://x:7077")
    for _ in range(3):
        one.keep()
    assert told == [told[0]] * 3 and answers == [], "it says so itself"
    assert len(published) == 1, "a driver that a newer one follows must not publish its catalogue"


@pytest.mark.parametrize(("host", "spark"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_an_address_as_spark_wants_it(host: str, spark: str) -> None:
    conf = standalone.fixed(settings(), Environment(host=host))
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == spark
