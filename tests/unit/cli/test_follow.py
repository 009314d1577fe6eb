"""A handover that is followed: when it is over, how it ended, and what was said on the way."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.cli.remote.follow import FollowState, Line, follow, judge
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, ApiError, Kind
from tests.unit.cli.fakes.fake_user import FakeUser, user

STAMP = "2026-01-01T00:00:00Z"
REST = {"Ready": ("True", "Running"), "Progressing": ("False", "Settled"), "Handover": ("False", "Settled")}


def job(conditions: dict[str, tuple[str, str]] | None = None, generation: int = 3, **status: Any) -> Doc:
    found = {**REST, "Degraded": ("False", "AllWell"), **(conditions or {})}
    wire = [
        {"type": kind, "status": truth, "reason": reason, "message": f"because {reason}", "lastTransitionTime": STAMP}
        for kind, (truth, reason) in found.items()
    ]
    return {
        "metadata": {"name": "a", "generation": generation, "annotations": {}},
        "spec": {"workers": 2},
        "status": {"observedGeneration": 3, "phase": "Running", "workers": 2, "conditions": wire, **status},
    }


PAUSED = job({"Progressing": ("False", "Paused")})
PAUSED["metadata"]["annotations"] = {"ferry.dev/paused": "true"}
GOING = job()
GOING["metadata"]["deletionTimestamp"] = STAMP


@pytest.mark.parametrize(
    ("document", "state", "text"),
    [
        (job(), FollowState.REST, "at rest with 2 workers"),
        (job(generation=4), FollowState.UNSEEN, "waiting for the operator"),
        ({"metadata": {"generation": 1}, "spec": {}}, FollowState.UNSEEN, "waiting for the operator"),
        (job({"Handover": ("True", "Moving")}, moving=5), FollowState.GOING, "virtual nodes on their way: 5"),
        (job({"Progressing": ("True", "Acting")}, intended="start worker 2"), FollowState.GOING, "start worker 2"),
        (
            job({"Degraded": ("True", "Unschedulable"), "Ready": ("False", "Starting")}),
            FollowState.GOING,
            "because Unsched",
        ),
        (job({"Degraded": ("True", "PodStuck")}), FollowState.REST, "at rest"),
        (job({"Degraded": ("True", "SpecRefused")}), FollowState.REFUSED, "because SpecRefused"),
        (job({"Degraded": ("True", "DriverHalted")}, phase="Failed"), FollowState.FAILED, "because DriverHalted"),
        (job(phase="Failed"), FollowState.FAILED, "because AllWell"),
        (job(phase="Finished"), FollowState.FINISHED, "finished"),
        (job({"Ready": ("False", "Suspended")}, phase="Suspended"), FollowState.REST, "it has no pods"),
        (PAUSED, FollowState.PAUSED, "until `resume`"),
        (GOING, FollowState.FAILED, "is being deleted"),
    ],
)
def test_what_a_look_means(document: Doc, state: FollowState, text: str) -> None:
    look = judge(document)
    assert look.state is state and text in look.text


def followed(api: FakeUser, timeout: float = 0.0) -> list[Line]:
    """While the world goes on by a second for each look."""
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += 1.0
        api.world.round()

    return list(follow(RemoteJob(api, "nbq5"), timeout, lambda: clock[0], sleep))


def test_a_scale_is_followed_to_its_end() -> None:
    api = user()
    api.world.rounds(15)  # what was said lately is not said again
    RemoteJob(api, "nbq5").scale(4, None)
    lines = followed(api)
    assert lines[0].look.state is FollowState.UNSEEN and lines[-1].look.state is FollowState.REST
    assert lines[-1].text.startswith("at rest with 4 workers; the handover took ")
    said = [line.text for line in lines if line.kind == "event"]
    assert any(text.startswith("HandoverStarted") for text in said)
    assert any(text.startswith("HandoverFinished") for text in said)
    assert len(said) == len(dict.fromkeys(said)) and any("on their way: 3" in line.text for line in lines)


def test_a_drain_that_the_operator_has_not_seen_is_waited_for() -> None:
    api = user(workers=3)
    RemoteJob(api, "nbq5").drain(1)
    assert followed(api)[-1].look.state is FollowState.REST
    assert api.world.used() == [0, 2]


def test_a_job_at_rest_is_done_soon() -> None:
    assert [line.kind for line in followed(user())] == ["end"]


def test_a_refusal_ends_it() -> None:
    api = user()
    api.api.edit(JOBS, "nbq5", {"spec": {"state": {"virtualNodes": 16}}})
    last = followed(api)[-1]
    assert last.look.state is FollowState.REFUSED and "virtualNodes" in last.text


def test_it_ends_at_its_timeout_and_without_an_operator() -> None:
    api = user()
    RemoteJob(api, "nbq5").scale(4, None)
    assert followed(api, 2.0)[-1].text.startswith("not at rest after 2 s")
    silent = user()
    RemoteJob(silent, "nbq5").scale(4, None)
    silent.world.operate = lambda: None  # type: ignore[method-assign]
    last = followed(silent)[-1]
    assert last.look.state is FollowState.FAILED and "no operator" in last.text


def test_without_the_right_to_read_events_the_rest_is_followed() -> None:
    api = user()
    api.forbidden = [EVENTS]
    lines = followed(api)
    assert lines[-1].look.state is FollowState.REST and "events may not be read" in lines[0].text


@pytest.mark.parametrize("kind", [JOBS, EVENTS])
@pytest.mark.parametrize("status", [0, 429, 500])
def test_an_api_server_that_is_away_for_a_while_ends_nothing(kind: Kind, status: int) -> None:
    api = user()
    api.world.rounds(15)
    RemoteJob(api, "nbq5").scale(4, None)
    calls = 0

    def away(asked: Kind) -> ApiError | None:
        nonlocal calls
        calls += asked is kind
        return ApiError(status, "Busy", "no answer") if asked is kind and calls % 3 else None

    api.away = away
    lines = followed(api)
    assert lines[-1].look.state is FollowState.REST and lines[-1].look.workers == 4
    said = [line.text for line in lines]
    assert "no answer" in said
    assert any(text.startswith("HandoverFinished") for text in said), "what was said meanwhile is said, too"
    api.away = lambda asked: ApiError(status, "Busy", "no answer")
    with pytest.raises(ApiError, match="no answer"):
        followed(api)


def test_what_the_api_server_refuses_ends_it() -> None:
    api = user()
    api.away = lambda asked: ApiError(403, "Forbidden", "not for you")
    with pytest.raises(Refusal, match="not for you"):
        followed(api)
