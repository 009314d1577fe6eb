"""One release for a list of namespaces, or for those that a selector chooses: each on its own, whatever the others do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ferry_operator.kube.__main__ import highest_token
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import ACCOUNTS, JOBS, NAMESPACES, PODS, POLICIES, ROLE_BINDINGS, ApiError, Kind
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.process import leader as leading
from ferry_operator.kube.process.leader import FAILURES_MIN, Leader
from ferry_operator.kube.process.namespaces import NamespaceChoice
from tests.unit.charts import environment, of_kind, pods, render
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, job
from tests.unit.kube.test_isolation import NoWatch, taken

SELECTED: Doc = {"namespaces.selector": {"matchLabels": {"ferry": "yes"}}}


class FakeCluster(FakeApi):
    """Namespaces with an API each, and the objects of the cluster."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0, "")
        self.spaces: dict[str, FakeApi] = {}

    def within(self, namespace: str) -> FakeApi:
        if not namespace:
            return Everywhere(self)
        return self.spaces.setdefault(namespace, FakeApi(lambda: 0.0, namespace))

    def add(self, name: str, **labels: str) -> FakeApi:
        self.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        return self.within(name)


class Everywhere(FakeApi):
    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(lambda: 0.0, "")
        for name, space in cluster.spaces.items():
            for (kind, object_name), document in space.objects.items():
                self.objects[kind, f"{name}/{object_name}"] = document


def objects() -> str:
    """The objects of a namespace, as the chart gives them to the operator."""
    ((_, spec),) = pods(of_kind(render(SELECTED), "Deployment", "-operator"))
    return str(environment(spec["containers"][0])["FERRY_NAMESPACE_OBJECTS"])


def leader_of(cluster: FakeCluster, choice: NamespaceChoice, monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(leading, "JobWatches", NoWatch)
    return Leader(cluster, RELEASE, 1, lambda: True, Metrics(), choice)


def refusing(verb: str, kind: Kind, name: str) -> None:
    raise ApiError(403, "Forbidden", "no role yet")


def created(api: FakeApi) -> list[tuple[Kind, str]]:
    return [(kind, name) for kind, name in api.objects if kind in (ROLE_BINDINGS, ACCOUNTS, POLICIES)]


# --- a list


def test_jobs_of_listed_namespaces_are_reconciled_each_in_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    for name in ("left", "right"):
        cluster.within(name).create(JOBS, job("a"))
    leader = leader_of(cluster, NamespaceChoice(("left", "right")), monkeypatch)
    leader._list_all()
    due = taken(leader.queue)
    assert due == [("left", "a"), ("right", "a")]
    for key in due:
        leader._reconcile(key)
    for name in ("left", "right"):
        assert "a-driver" in [pod for _, pod in cluster.within(name).objects]
    assert cluster.objects == {}, "nothing in the namespace of the release"
    secrets = [leader._reconcilers[name].release.namespace for name in ("left", "right")]
    assert secrets == ["left", "right"]


def test_a_namespace_without_rights_is_left_out_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()
    for name in ("left", "right"):
        cluster.within(name).create(JOBS, job("a"))
    cluster.within("left").before = refusing
    leader = leader_of(cluster, NamespaceChoice(("left", "right")), monkeypatch)
    for _ in range(FAILURES_MIN + 3):
        leader._list_all()
        assert taken(leader.queue) == [("right", "a")]
    warnings = [record.getMessage() for record in caplog.records if "are not managed" in record.getMessage()]
    assert len(warnings) == 1 and "namespace left" in warnings[0] and "no role yet" in warnings[0]
    assert len(leader.failing) == 1
    cluster.within("left").before = lambda *_: None
    leader._list_all()
    assert taken(leader.queue) == [("left", "a"), ("right", "a")]
    assert not leader.failing


def test_a_leader_without_any_rights_is_not_well_and_a_server_that_is_down_is_nobodys_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    leader = leader_of(cluster, NamespaceChoice(("left", "right")), monkeypatch)
    for name in ("left", "right"):
        cluster.within(name).before = refusing
    for everything in (True, False, False):
        with pytest.raises(ApiError, match="no role yet"):
            leader._list_all(everything)

    def down(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(503, "Down", "down")

    for name in ("left", "right"):
        cluster.within(name).before = down
    failing = dict(leader.failing)
    with pytest.raises(ApiError, match="down"):
        leader._list_all()
    assert leader.failing == failing


def test_a_namespace_that_cannot_be_listed_keeps_no_other_from_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one with so many pods that the answer comes too late: the first one by name, at every look."""
    cluster = FakeCluster()

    def late(verb: str, kind: Kind, name: str) -> None:
        if kind == PODS:
            raise ApiError(0, "Unreachable", "no answer within 8 s")

    cluster.within("a").before = late
    leader = leader_of(cluster, NamespaceChoice(("a", "b")), monkeypatch)
    for number in range(3):
        cluster.within("b").create(JOBS, job(f"job-{number}"))
        leader._list_all()
        assert ("b", f"job-{number}") in taken(leader.queue)
    silent = [f"n{number}" for number in range(9)]
    for name in silent:
        cluster.within(name).before = late
    leader = leader_of(cluster, NamespaceChoice((*silent, "z")), monkeypatch)
    with pytest.raises(ApiError, match="no answer"):
        leader._list_all()
    assert not cluster.within("n3").calls, "a server that is down is not asked about each namespace"


def test_tokens_are_read_where_there_are_rights() -> None:
    cluster = FakeCluster()
    cluster.within("right").create(JOBS, job("a"))
    cluster.within("right").set_status(JOBS, "a", token=7)
    cluster.within("left").before = refusing
    assert highest_token(cluster.within("left"), cluster.within("right")) == 7


@pytest.mark.parametrize(
    "token", ["\N{SUPERSCRIPT TWO}", pytest.param("9" * 5000, id="long"), str(2**31 - 1), str(2**62), "-1", "1e9"]
)
def test_a_token_that_a_tenant_writes_on_a_pod_keeps_no_operator_from_leading(token: str) -> None:
    cluster = FakeCluster()
    cluster.within("mine").create(JOBS, job("a"))
    cluster.within("mine").set_status(JOBS, "a", token=7)
    metadata = {"name": "evil", "labels": {names.MANAGED: names.MANAGER}, "annotations": {names.TOKEN: token}}
    cluster.within("theirs").create(PODS, {"metadata": metadata})
    assert highest_token(cluster.within("theirs"), cluster.within("mine")) == 7


# --- a selector


def choice() -> NamespaceChoice:
    return NamespaceChoice.read("", "ferry=yes", objects())


def test_a_chosen_namespace_is_prepared_and_cleared_when_it_has_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    team, other = cluster.add("team", ferry="yes"), cluster.add("other")
    leader = leader_of(cluster, choice(), monkeypatch)
    leader._list_all()
    assert created(team)[0] == (ROLE_BINDINGS, "x-ferry-operator"), "first the rights"
    assert {name for _, name in created(team)} == {"x-ferry-operator", "x-ferry-driver", "x-ferry-job", "x-ferry-jobs"}
    assert created(other) == [] and leader.managed == 1
    (driver,) = team.objects[ROLE_BINDINGS, "x-ferry-driver"]["subjects"]
    assert driver == {"kind": "ServiceAccount", "name": "x-ferry-job", "namespace": "team"}
    (operator,) = team.objects[ROLE_BINDINGS, "x-ferry-operator"]["subjects"]
    assert operator["namespace"] == "streams", "the operator's own account"
    calls = len([call for call in team.calls if call[0] in ("create", "patch")])
    leader._list_all()
    assert len([call for call in team.calls if call[0] in ("create", "patch")]) == calls, "once"
    team.create(JOBS, job("a"))
    cluster.edit(NAMESPACES, "team", {"metadata": {"labels": {"ferry": "no"}}})
    leader._list_all()
    assert leader.managed == 1 and len(created(team)) == 4, "its job is still there"
    assert ("team", "a") in taken(leader.queue)
    team.remove(JOBS, "a")
    leader._list_all()
    assert leader.managed == 0 and created(team) == [] and leader.stores.jobs() == []
    deleted = [name for verb, _, name in team.calls if verb == "delete"]
    assert deleted[-1] == "x-ferry-operator", "the rights go last"
    cluster.edit(NAMESPACES, "team", {"metadata": {"labels": {"ferry": "yes"}}})
    leader._list_all()
    assert len(created(team)) == 4 and leader.managed == 1


def test_another_leader_finds_namespaces_that_were_prepared_and_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    team = cluster.add("team", ferry="yes")
    leader_of(cluster, choice(), monkeypatch)._list_all()
    cluster.edit(NAMESPACES, "team", {"metadata": {"labels": {"ferry": "no"}}})
    second = leader_of(cluster, choice(), monkeypatch)
    second._list_all()
    assert created(team) == [] and second.managed == 0
    team.before, calls = refusing, len(team.calls)
    second._list_all()
    assert second.managed == 0 and len(team.calls) == calls, "a cleared namespace is not asked again"


def test_a_tenant_that_binds_a_role_of_the_same_name_chooses_no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    theirs = cluster.add("theirs")
    binding = json.loads(objects())[0]
    theirs.create(ROLE_BINDINGS, binding | {"metadata": {**binding["metadata"], "namespace": "theirs"}})
    leader = leader_of(cluster, choice(), monkeypatch)
    assert leader._namespaces.left() == {"theirs"}, "it was chosen once"
    theirs.edit(ROLE_BINDINGS, binding["metadata"]["name"], {"roleRef": {"kind": "Role"}})
    assert leader_of(cluster, choice(), monkeypatch)._namespaces.left() == frozenset()


def test_a_namespace_whose_rights_were_taken_away_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    team = cluster.add("team", ferry="yes")
    cluster.add("second", ferry="yes")
    leader = leader_of(cluster, choice(), monkeypatch)
    leader._list_all()
    team.remove(ROLE_BINDINGS, "x-ferry-operator")

    def without(verb: str, kind: Kind, name: str) -> None:
        if (ROLE_BINDINGS, "x-ferry-operator") not in team.objects and kind != ROLE_BINDINGS:
            raise ApiError(403, "Forbidden", "no binding")

    team.before = without
    leader._list_all()
    assert list(leader.failing) == ["team"]
    leader._list_all()
    assert not leader.failing and (ROLE_BINDINGS, "x-ferry-operator") in team.objects


def test_a_namespace_that_is_deleted_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    team = cluster.add("team", ferry="yes")
    cluster.add("second", ferry="yes")
    leader = leader_of(cluster, choice(), monkeypatch)
    team.create(JOBS, job("a"))
    leader._list_all()
    cluster.edit(NAMESPACES, "team", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    leader._list_all()
    assert leader.managed == 2, "its job is being deleted"
    cluster.remove(NAMESPACES, "team")
    team.objects.clear()
    team.before = refusing
    leader._list_all()
    assert leader.managed == 1 and leader.stores.jobs() == [] and not leader.failing


def test_a_refused_listing_gives_up_no_namespace_that_is_still_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that has just started refuses requests until it knows the RoleBindings."""
    cluster = FakeCluster()
    team = cluster.add("team", ferry="yes")
    cluster.add("second", ferry="yes")
    leader = leader_of(cluster, choice(), monkeypatch)
    team.create(JOBS, job("a"))
    leader._list_all()
    cluster.edit(NAMESPACES, "team", {"metadata": {"labels": {"ferry": "no"}}})
    team.before = refusing
    leader._list_all()
    assert leader.managed == 2 and list(leader.failing) == ["team"]
    team.before = lambda *_: None
    taken(leader.queue)
    leader._list_all()
    assert not leader.failing and ("team", "a") in taken(leader.queue)


@pytest.mark.parametrize("error", [ApiError(0, "Unreachable", "no answer within 8 s"), ValueError("no pod")])
def test_a_new_leader_clears_no_namespace_whose_jobs_it_has_not_seen(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its RoleBinding a driver cannot write its journal."""
    cluster = FakeCluster()
    team = cluster.add("team", ferry="yes")
    cluster.add("second", ferry="yes")
    leader_of(cluster, choice(), monkeypatch)._list_all()
    team.create(JOBS, job("a"))
    cluster.edit(NAMESPACES, "team", {"metadata": {"labels": {"ferry": "no"}}})
    second = leader_of(cluster, choice(), monkeypatch)

    def failing(namespace: str, api: FakeApi, listed: Any = second._list) -> None:
        if namespace == "team":
            raise error
        listed(namespace, api)

    with monkeypatch.context() as patch:
        patch.setattr(second, "_list", failing)
        second._list_all()
    assert len(created(team)) == 4 and second.managed == 2
    second._list_all()
    assert len(created(team)) == 4 and ("team", "a") in taken(second.queue)


def test_all_namespaces_are_all_but_those_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    for name in ("kube-system", "team", "other"):
        cluster.add(name)
    leader = leader_of(cluster, NamespaceChoice.read("", "", objects()), monkeypatch)
    leader._list_all()
    assert sorted(leader._apis) == ["other", "team"]


def test_nothing_chosen_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = leader_of(FakeCluster(), choice(), monkeypatch)
    leader._list_all()
    assert leader.managed == 0


# --- jobs elsewhere than the release


def test_the_token_of_metrics_reaches_jobs_of_other_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    home = replace(RELEASE, home="jobs/x", metrics_secret="x-metrics", metrics_token="secret")
    for name in ("jobs", "team"):
        cluster.within(name).create(JOBS, job("a"))
    monkeypatch.setattr(leading, "JobWatches", NoWatch)
    leader = Leader(cluster, home, 1, lambda: True, Metrics(), NamespaceChoice(("jobs", "team")))
    leader._list_all()
    for key in taken(leader.queue):
        leader._reconcile(key)
    for name, secret in (("jobs", "x-metrics"), ("team", "a-run")):
        objects = {object_name: document for (_, object_name), document in cluster.within(name).objects.items()}
        environments = json.dumps(objects["a-driver"]["spec"])
        assert f'"name": "{secret}", "key": "token"' in environments
        assert ("token" in objects["a-run"]["data"]) == (name == "team")
    assert names.METRICS_TOKEN == "token"
