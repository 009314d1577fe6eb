"""Pods have Spark's labels: some from the start, and those of a driver's life once the driver names them."""

from __future__ import annotations

from dataclasses import replace

from ferry.contract.status import SparkStatus, Status
from ferry_operator.kube import steps as s
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import JOBS
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.facts import Ended, Pod
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.timers import AbsenceTimers
from ferry_operator.kube.observe.view import look
from ferry_operator.kube.plan import plan
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_decisions import NODES, NOW, RELEASE, document, driver, revise, status, worker

SPARK = SparkStatus("nbq5-1-life", ((0, "1000042"), (1, "1001043")))
OLD = {names.SPARK_APPLICATION: "nbq5-1-before", names.SPARK_EXECUTOR: "1"}


def labelled(spark: SparkStatus, *pods: Pod) -> dict[str, dict[str, str | None]]:
    of = document()
    answer: Status = replace(status(0, 1), spark=spark)
    effective = effective_spec.in_force(of, RELEASE)
    assert effective.job is not None
    view = look(Seen(of, pods, NODES, True, answer, None, NOW), effective, revise(effective.job), AbsenceTimers())
    return {step.pod.name: dict(step.labels) for step in plan(view, 0) if isinstance(step, s.LabelPod)}


def test_pods_are_labelled_with_what_the_driver_says() -> None:
    found = labelled(SPARK, driver(), worker(0), worker(1, labels=OLD))
    application = {names.SPARK_APPLICATION: "nbq5-1-life"}
    assert found == {
        "nbq5-driver": application,
        "nbq5-worker-0": {**application, names.SPARK_EXECUTOR: "1000042"},
        "nbq5-worker-1": {**application, names.SPARK_EXECUTOR: "1001043"},
    }


def test_labels_that_are_right_cost_no_call() -> None:
    right = {names.SPARK_APPLICATION: "nbq5-1-life", names.SPARK_EXECUTOR: "1000042"}
    pods = driver(labels={names.SPARK_APPLICATION: "nbq5-1-life"}), worker(0, labels=right)
    assert labelled(SPARK, *pods) == {}
    (gone,) = labelled(replace(SPARK, executors=()), *pods).values()
    assert gone[names.SPARK_EXECUTOR] is None, "the executor is lost"


def test_a_driver_that_names_no_application_changes_nothing() -> None:
    assert labelled(SparkStatus(), driver(), worker(0, labels=OLD)) == {}
    assert labelled(SPARK, driver(Ended(1, "", "", NOW))) == {}


def test_an_id_that_is_no_label_stops_no_job() -> None:
    """The API server refuses such a patch, and all later steps would wait for it."""
    life = "-0123abcd-0123456789abcdef"
    assert len("j" * 52 + life) > names.LABEL_MAX, "the application of a job with a long name"
    for application, expected in (("j" * 52 + life, "j" * 37 + life), ("j" + "-" * 40 + life[1:], life[1:])):
        (found,) = labelled(replace(SPARK, application=application), driver()).values()
        assert found == {names.SPARK_APPLICATION: expected} and len(expected) <= names.LABEL_MAX
    assert labelled(replace(SPARK, application="no label!"), driver(), worker(0)) == {}
    (found,) = labelled(replace(SPARK, executors=((0, "no label!"),)), worker(0)).values()
    assert found == {names.SPARK_APPLICATION: "nbq5-1-life", names.SPARK_EXECUTOR: None}


def test_a_pod_in_the_cluster_gets_them() -> None:
    world = World()
    world.api.create(JOBS, job())
    world.until(settled)
    assert {world.pod(name)["metadata"]["labels"]["spark-role"] for name in world.pods()} == {"driver", "executor"}
    world.spark = SparkStatus("nbq5-1-life", ((0, "1000042"),))
    world.until(lambda world: "spark-exec-id" in world.pod("nbq5-worker-0")["metadata"]["labels"])
    labels = world.pod("nbq5-worker-0")["metadata"]["labels"]
    assert (labels["spark-app-selector"], labels["spark-exec-id"]) == ("nbq5-1-life", "1000042")
    assert "spark-exec-id" not in world.pod("nbq5-worker-1")["metadata"]["labels"]
