"""What Spark is told of its executors: as many task slots as the job says, and a heap that fits into their container."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import first_catalogue
from ferry.contract.errors import SpecRefused
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.driver import cluster
from ferry.driver.announcer import Announcer
from ferry.environment import Environment
from ferry.spark import private


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
    assert cluster.heap(container) == expected


def test_executors_are_what_the_job_says() -> None:
    assert cluster.fixed(settings(), Environment())["spark.executor.cores"] == "3"
    assert cluster.tuned(settings(executor_bytes=14 << 30))["spark.executor.memory"] == "10240m"
    assert cluster.tuned(settings())["spark.executor.memory"] == "512m", "of settings from before it was said"


@pytest.mark.parametrize(("timeout_ms", "hangs_ms"), [(2500, 10_000), (200, 10_000), (60_000, 240_000)])
def test_an_executor_hangs_after_the_same_time_as_an_instance(timeout_ms: int, hangs_ms: int) -> None:
    """Neither Spark's driver nor the executor gives up sooner; a heartbeat waits for one interval at most."""
    conf = cluster.tuned(settings(timeout_ms=timeout_ms))
    assert conf["spark.storage.blockManagerHeartbeatTimeoutMs"] == str(hangs_ms)
    interval = int(conf["spark.executor.heartbeatInterval"].removesuffix("ms"))
    assert int(conf["spark.executor.heartbeat.maxFailures"]) * interval >= hangs_ms


def test_workers_are_told_how_many_task_slots_to_offer() -> None:
    """Before the generation is claimed, and after."""
    told: list[DriverPlace] = []
    registry: Any = SimpleNamespace(announce=lambda place: told.append(place) or True)
    one = Announcer(registry, SimpleNamespace(read=lambda: None), cores=3)  # type: ignore[arg-type]
    one.starting("spark://x:7078", "sealed")
    machine: Any = SimpleNamespace(phase=None, generation=1)
    one._started(machine, "http://x:7070")
    assert [(place.claimed, place.cores, place.executor) for place in told] == [
        (False, 3, "sealed"),
        (True, 3, "sealed"),
    ]
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
    one.starting("spark://x:7078", "sealed")
    for _ in range(3):
        one.keep()
    assert told == [told[0]] * 3 and answers == [], "it says so itself"
    assert len(published) == 1, "a driver that a newer one follows must not publish its catalogue"


@pytest.mark.parametrize(("host", "spark"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_an_address_as_spark_wants_it(host: str, spark: str) -> None:
    conf = cluster.fixed(settings(), Environment(host=host))
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == spark


def session(monkeypatch: pytest.MonkeyPatch, **conf: str) -> Any:
    """A session of Spark with these settings."""
    monkeypatch.setattr(private, "executor_memory", lambda spark: 512)
    found = {f"spark.{key}": value for key, value in conf.items()}
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=found.items), sparkUser=lambda: "me")
    return SimpleNamespace(sparkContext=context)


def test_workers_are_told_what_the_job_sets_for_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {
        "executor.defaultJavaOptions": "-Dours=1", "executor.extraJavaOptions": """-Da="b c" -Dof={{APP_ID}}""",
        "executor.extraClassPath": "/jars/a.jar", "executor.extraLibraryPath": "/lib/a",
        "executorEnv.TOKEN": "x=y z", "executorEnv.LD_LIBRARY_PATH": "/lib/b",
        "authenticate": "true", "authenticate.secret": "s", "authenticate.secret.file": "/f", "blockManager.port": "7079",
        "executor.heartbeatInterval": "1s",
    }  # fmt: skip
    start = cluster.start_of_executors(session(monkeypatch, **conf))
    assert start.memory_mb == 512 and start.class_path == "/jars/a.jar"
    assert start.java == ["-Dours=1", "-Da=b c", "-Dof={{APP_ID}}"]
    assert start.settings == {"spark.authenticate": "true", "spark.blockManager.port": "7079"}, (
        "secrets are no settings"
    )
    assert start.variables == {"SPARK_USER": "me", "TOKEN": "x=y z", "LD_LIBRARY_PATH": "/lib/a:/lib/b"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("executorEnv.A=B", "c", "spark.executorEnv.A=B: 'A=B' is no name of a variable"),
        ("executorEnv.", "c", "'' is no name of a variable"),
        ("executor.extraJavaOptions", '-Da="b', "spark.executor.extraJavaOptions: No closing quotation"),
    ],
)
def test_what_no_executor_can_start_with_is_refused(
    key: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker would fail again and again, and the job would only say that it has no executor."""
    with pytest.raises(SpecRefused, match=re.escape(words)):
        cluster.start_of_executors(session(monkeypatch, **{key: value}))
