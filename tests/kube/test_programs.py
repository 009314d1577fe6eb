"""The operator has the program of the spec deployed: real API server, stand-ins for kubelets and for the driver."""

from __future__ import annotations

import time

import pytest

from ferry.contract.program_text import identity
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.operators import Operators, Running, job, stand_in

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

MODULE = "jobs.rules"


def config_map(kubectl: Kubectl, text: str) -> None:
    kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rules"}, "data": {"rules.py": text}})


@pytest.fixture
def deploying(running: Running) -> Running:
    """A job whose driver can deploy programs."""
    running.driver.programs = [
        {"number": 1, "state": "in force", "since": 0, "identity": identity(MODULE, None, "", {})}
    ]
    wait_until(lambda: running.status().get("program", {}).get("phase") == "InForce", "a program", 20)
    return running


def uids(running: Running) -> list[str]:
    return [pod["metadata"]["uid"] for pod in running.kubectl.items("pods")]


def events(running: Running) -> dict[str, str]:
    return {event["reason"]: event["message"] for event in running.kubectl.items("events")}


def phase(running: Running, number: int, wanted: str) -> None:
    def there() -> bool:
        program = running.status().get("program", {})
        return (program.get("number"), program.get("phase")) == (number, wanted)

    wait_until(there, f"program {number} {wanted}", 30)


def test_a_changed_argument_is_deployed_once_and_restarts_no_pod(deploying: Running) -> None:
    before, driver = uids(deploying), deploying.driver
    deploying.kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 3}}}})
    phase(deploying, 2, "InForce")
    (asked,) = driver.asked
    assert (asked["module"], asked["file"], asked["arguments"], asked["text"]) == (MODULE, None, {"least": 3}, "")
    assert deploying.condition("Deploying")["status"] == "False" and "ProgramDeployed" in events(deploying)
    deploying.kubectl.run("annotate", "sj/a", "ferry.dev/deploy-at-epoch=1000")
    deploying.kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 4}}}})
    phase(deploying, 3, "InForce")
    assert [one["at"] for one in driver.asked] == [0, 1000]
    time.sleep(2.0)
    assert len(driver.asked) == 2 and uids(deploying) == before and len(deploying.kubelets.lives) == 1


def test_an_edited_configmap_is_deployed_and_a_refusal_is_an_answer(deploying: Running) -> None:
    kubectl, driver, before = deploying.kubectl, deploying.driver, uids(deploying)
    config_map(kubectl, "one")
    source = {"name": "rules", "key": "rules.py"}
    kubectl.patch("sj/a", {"spec": {"pipeline": {"module": None, "configMap": source}}})
    phase(deploying, 2, "InForce")
    driver.refusal = "rules.py:1: no pipeline"
    config_map(kubectl, "two")
    phase(deploying, 2, "Refused")
    condition = deploying.condition("Deploying")
    assert condition["reason"] == "Refused" and "no pipeline" in condition["message"]
    assert deploying.condition("Ready")["status"] == "True"
    assert "The job goes on with program 2" in events(deploying)["ProgramRefused"]
    first = deploying.operators.running[0]
    first.process.kill()
    deploying.operators.start()
    deploying.operators.leader()
    time.sleep(3.0)
    assert [one["text"] for one in driver.asked] == ["one", "two"], "another operator knows of the refusal"
    driver.refusal = ""
    config_map(kubectl, "three")
    phase(deploying, 4, "InForce")
    kubectl.run("delete", "configmap", "rules")
    wait_until(lambda: deploying.condition("Degraded").get("reason") == "ProgramMissing", "a condition", 20)
    assert "create it, or name another one" in deploying.condition("Degraded")["message"]
    assert deploying.condition("Ready")["status"] == "True" and uids(deploying) == before
    config_map(kubectl, "three")
    wait_until(lambda: deploying.condition("Degraded")["status"] == "False", "no problem", 20)
    assert len(driver.asked) == 3


def test_a_job_whose_configmap_is_missing_begins_once_it_is_there(operators: Operators) -> None:
    operators.start()
    source = {"name": "rules", "key": "rules.py"}
    operators.kubectl.apply(job(pipeline={"module": None, "configMap": source}))
    driver, kubelets = stand_in(operators)
    found = Running(operators.kubectl, operators, driver, kubelets)
    try:
        wait_until(lambda: found.condition("Degraded").get("reason") == "ProgramMissing", "a condition", 30)
        assert not kubelets.lives
        config_map(operators.kubectl, "one")
        found.wait_settled(2)
    finally:
        kubelets.close()
        driver.close()


def test_a_driver_that_deploys_nothing_is_replaced(running: Running) -> None:
    """The image of a job may have an older release, whose driver begins with the program of the spec."""
    running.kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 3}}}})
    wait_until(lambda: len(running.kubelets.lives) == 2, "second driver", 60)
    running.wait_settled(2)
    time.sleep(2.0)
    assert len(running.kubelets.lives) == 2
