"""What Argo CD and Flux conclude from real statuses, by the files of the chart: Lua for the one, CEL for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import celpy
import lupa
import pytest
import yaml
from celpy.adapter import json_to_cel

from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS
from tests.unit.charts import CHART
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_passes import running
from tests.unit.kube.test_refusals import CHANGED
from tests.unit.kube.test_suspension import begun, suspended

LUA = (CHART / "gitops" / "argocd-health.lua").read_text("utf-8")
(FLUX,) = yaml.safe_load((CHART / "gitops" / "flux-health.yaml").read_text("utf-8"))["healthCheckExprs"]


def argo(document: Doc) -> tuple[str, str]:
    """(status, message), as Argo CD runs the script: with the object as `obj`."""
    lua = lupa.LuaRuntime()
    script = lua.eval("function(text) return load('local obj = ...\\n' .. text) end")(LUA)
    answer = script(lua.table_from(document, recursive=True))
    return answer["status"], answer["message"]


def flux(document: Doc) -> set[str]:
    """Names of the expressions that are true."""
    environment = celpy.Environment()
    values = {key: json_to_cel(document.get(key) or {}) for key in ("metadata", "spec", "status")}
    return {
        kind
        for kind in ("inProgress", "failed", "current")
        if environment.program(environment.compile(FLUX[kind])).evaluate(values)
    }


def seen(world: World) -> Doc:
    return world.api.get(JOBS, "nbq5")


def new() -> Doc:
    world = World()
    return world.api.create(JOBS, job())


def starting() -> Doc:
    world = World()
    world.api.create(JOBS, job())
    world.until(lambda w: w.status.get("phase") in ("Pending", "Starting"))
    return seen(world)


def proven() -> World:
    world = running()
    world.until(lambda w: w.condition("SpecInForce").get("reason") == "Proven")
    return world


def at_rest() -> Doc:
    return seen(proven())


def edited() -> Doc:
    """The operator has not seen the edit yet."""
    world = proven()
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    return seen(world)


def moving() -> Doc:
    world = proven()
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 3}})
    world.until(lambda w: w.status["phase"] == "Moving")
    return seen(world)


def unproven() -> Doc:
    world = proven()
    world.stands = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.lives == 2 and w.condition("Ready").get("status") == "True")
    return seen(world)


def taken_back() -> Doc:
    world = proven()
    world.fails_epochs = True
    world.api.edit(JOBS, "nbq5", {"spec": CHANGED})
    world.until(lambda w: w.condition("SpecInForce")["status"] == "False")
    world.fails_epochs = False
    world.until(lambda w: w.condition("Ready")["status"] == "True")
    return seen(world)


def failed() -> Doc:
    world = proven()
    world.driver_ends(3, "StateUnavailable: no copy of virtual node 3")
    world.until(lambda w: w.status["phase"] == "Failed")
    return seen(world)


def finished() -> Doc:
    world = proven()
    world.driver_ends(0)
    world.until(lambda w: w.status["phase"] == "Finished")
    return seen(world)


def resting() -> Doc:
    world = begun()
    world.api.edit(JOBS, "nbq5", {"spec": {"suspend": True}})
    world.until(suspended)
    return seen(world)


def with_a_problem() -> Doc:
    world = proven()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {"ferry.dev/drain": "all of them"}}})
    world.until(lambda w: w.status["phase"] == "Degraded")
    assert settled(world)
    return seen(world)


def deploying(reason: str) -> Callable[[], Doc]:
    """A job at rest, but for the condition of its deploy."""

    def made() -> Doc:
        document = at_rest()
        going = "True" if reason in ("Deploying", "Waiting") else "False"
        more = {"type": "Deploying", "status": going, "reason": reason, "message": f"program 2: {reason}"}
        document["status"]["conditions"].append(more)
        return document

    return made


@pytest.mark.parametrize(
    ("state", "of_argo", "of_flux", "words"),
    [
        (new, "Progressing", "inProgress", "has not seen"),
        (starting, "Progressing", "inProgress", ""),
        (at_rest, "Healthy", "current", "leads all virtual nodes"),
        (edited, "Progressing", "inProgress", "has not seen"),
        (moving, "Progressing", "inProgress", "virtual nodes are on their way"),
        (unproven, "Progressing", "inProgress", "no epoch was finished under it yet"),
        (taken_back, "Degraded", "failed", "is in force, not generation"),
        (failed, "Degraded", "failed", "StateUnavailable"),
        (finished, "Healthy", "current", "all input was read"),
        (resting, "Suspended", "current", "latest durable checkpoint"),
        (with_a_problem, "Degraded", "current", "ferry.dev/drain"),
        (deploying("InForce"), "Healthy", "current", "leads all virtual nodes"),
        (deploying("Deploying"), "Progressing", "inProgress", "program 2"),
        (deploying("Waiting"), "Progressing", "inProgress", "program 2"),
        (deploying("Refused"), "Degraded", "failed", "program 2"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_both_tools_conclude_what_is_so(state: Callable[[], Doc], of_argo: str, of_flux: str, words: str) -> None:
    document: dict[str, Any] = state()
    status, message = argo(document)
    assert (status, flux(document)) == (of_argo, {of_flux})
    assert words in message


def test_a_status_of_0_1_0_is_judged_too() -> None:
    """It has no SpecInForce."""
    document = at_rest()
    conditions = document["status"]["conditions"]
    document["status"]["conditions"] = [one for one in conditions if one["type"] != "SpecInForce"]
    assert argo(document)[0] == "Healthy" and flux(document) == {"current"}
