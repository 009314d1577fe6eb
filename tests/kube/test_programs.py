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
    deploying.kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 4}}, "deploy": {"atEpoch": 1000}}})
    phase(deploying, 3, "InForce")
    assert [one["at"] for one in driver.asked] == [0, 1000]
    time.sleep(2.0)
    assert len(driver.asked) == 2 and uids(deploying) == before and len(deploying.kubelets.lives) == 1


def another_operator(running: Running) -> None:
    running.operators.running[-1].process.kill()
    running.operators.start()
    running.operators.leader()


def test_a_shadow_is_deployed_once_and_what_it_found_is_the_answer(deploying: Running) -> None:
    kubectl, driver, before = deploying.kubectl, deploying.driver, uids(deploying)
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 3}}, "deploy": {"shadow": 5}}})
    phase(deploying, 1, "Deploying")
    assert "program 2: shadow; 0 %" in deploying.condition("Deploying")["message"]
    assert [(one["shadow"], one["attempt"]) for one in driver.asked] == [(5, "shadow=5")]
    assert "program 2 runs beside program 1" in events(deploying)["ShadowBegun"]
    another_operator(deploying)
    time.sleep(3.0)
    assert len(driver.asked) == 1 and not driver.rollbacks, "another operator lets the shadow run"
    driver.ended(False, "of 30 rows of 5 epochs, 2 are missing, and 1 are more")
    phase(deploying, 3, "Refused")
    condition = deploying.condition("Degraded")
    assert condition["reason"] == "ProgramRefused" and "2 are missing, and 1 are more" in condition["message"]
    another_operator(deploying)
    time.sleep(3.0)
    assert len(driver.asked) == 1, "the difference is the answer to this spec"
    # The user takes the difference as intended.
    kubectl.patch("sj/a", {"spec": {"deploy": None}})
    phase(deploying, 4, "InForce")
    assert len(driver.asked) == 2 and driver.asked[1]["shadow"] == 0
    assert deploying.condition("Degraded")["status"] == "False"
    # A shadow that does the same goes on; one that the spec does not want any more ends.
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 4}}, "deploy": {"shadow": 6}}})
    phase(deploying, 4, "Deploying")
    driver.ended(True, "0 of 30 rows of 6 epochs differ")
    phase(deploying, 6, "InForce")
    assert "as a shadow, 0 of 30 rows of 6 epochs differ" in deploying.condition("Deploying")["message"]
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 5}}}})
    phase(deploying, 6, "Deploying")
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 4}}}})
    phase(deploying, 8, "InForce")
    assert driver.rollbacks == [{"withdraw": 7}] and len(driver.asked) == 4 and uids(deploying) == before


def test_a_spec_that_names_a_kept_program_again_goes_back_to_it(deploying: Running) -> None:
    kubectl, driver = deploying.kubectl, deploying.driver
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 3}}, "deploy": {"keep": "10m"}}})
    phase(deploying, 2, "InForce")
    assert "program 1 is kept" in deploying.condition("Deploying")["message"] and driver.asked[0]["keep"] == 600
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 4}}}})
    phase(deploying, 2, "Waiting")
    assert "once its time is over" in deploying.condition("Deploying")["message"]
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": None}}}})
    phase(deploying, 3, "InForce")
    assert driver.rollbacks == [{"to": 1}] and len(driver.asked) == 1
    assert "it is program 1 again" in events(deploying)["ProgramRolledBack"]


def test_a_rewind_is_asked_once_and_a_refusal_of_it_is_an_answer(deploying: Running) -> None:
    kubectl, driver, before = deploying.kubectl, deploying.driver, uids(deploying)
    kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"least": 3}}}})
    phase(deploying, 2, "InForce")
    assert "with rewind the state goes back at once" in kubectl.refusal(
        "patch", "sj/a", "--type=merge", "-p", '{"spec":{"deploy":{"rewind":true,"keep":"10m"}}}'
    )
    driver.refusal = "no checkpoint of this run is older than epoch 4"
    back = {"pipeline": {"args": {"least": None}}, "deploy": {"rewind": True}}
    kubectl.patch("sj/a", {"spec": back})
    phase(deploying, 2, "Refused")
    assert "no checkpoint of this run is older" in deploying.condition("Degraded")["message"]
    driver.refusal = ""
    kubectl.patch("sj/a", {"spec": {"deploy": {"probation": "0s"}}})  # tries it again
    phase(deploying, 1, "InForce")
    assert [one["rewind"] for one in driver.asked] == [False, True, True] and not driver.rollbacks
    assert deploying.condition("Degraded")["status"] == "False" and uids(deploying) == before


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
