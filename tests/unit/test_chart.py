"""The chart as a real helm renders it: restricted pods, few rights, values that are checked, one copy of everything."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from ferry.contract import journals, ports
from ferry_operator.kube import __main__ as operator
from ferry_operator.kube.api import names
from ferry_operator.kube.api.rbac import DRIVER_RULES, NODE_RULES, RULES, UNCALLED
from ferry_operator.kube.manifests.allowed import Allowed
from ferry_operator.kube.manifests.release import USER
from tests.unit.charts import (
    CHART,
    ROOT,
    Document,
    Refused,
    Right,
    alerts,
    dashboards,
    environment,
    metrics_of,
    of_kind,
    pods,
    queries,
    render,
    rights,
    run,
    variables,
)

INSTANCES_MAX = 64
SPARK_RETRIES = 16

EVERYTHING: Document = {
    "nodes.read": True,
    "monitoring.podMonitor": True,
    "monitoring.serviceMonitor": True,
    "monitoring.rules": True,
    "monitoring.dashboards": True,
    "monitoring.labels": {"release": "prometheus"},
    "images.pullSecrets": ["registry"],
    "operator.nodeSelector": {"pool": "system"},
    "operator.tolerations": [{"operator": "Exists"}],
    "operator.priorityClassName": "high",
    "operator.extraArgs": ["--lease=other"],
    "operator.extraEnv": [{"name": "A", "value": "b"}],
    "redis.persistence.enabled": True,
    "redis.persistence.storageClass": "fast",
    "networkPolicies.jobEgress": [{"ports": [{"port": 443}]}],
}
OWN_REDIS: Document = {
    "redis.enabled": False,
    "redis.url": "rediss://redis.example:6380/2",
    "redis.existingSecret": "mine",
}
MATRIX: dict[str, Document] = {
    "defaults": {},
    "everything": EVERYTHING,
    "own Redis": OWN_REDIS,
    "own Redis without a password": {**OWN_REDIS, "redis.existingSecret": ""},
    "Redis at an address": {"redis.clusterIP": "10.96.0.7"},
    "Redis on a claim": {"redis.persistence.existingClaim": "disk", "redis.existingSecret": "mine", "redis.image": "redis:7"},
    "one operator": {"operator.replicas": 1, "operator.existingSecret": "key", "monitoring.existingSecret": "mine", "networkPolicies.enabled": False},
    "own accounts": {"operator.serviceAccount": {"create": False, "name": "o"}, "jobs.serviceAccount": {"create": False, "name": "j"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Document]]:
    return {name: render(values) for name, values in MATRIX.items()}


def test_lint() -> None:
    assert "0 chart(s) failed" in run("lint", "--strict", str(CHART))


def listed(table: dict[tuple[str, str], tuple[str, ...]]) -> set[Right]:
    """Rights of the operator's own list, one by one."""
    return {(verb, *what) for what, verbs in table.items() for verb in verbs}


def unrestricted(spec: Document) -> list[str]:
    """What the restricted pod security standard, and a read-only root, would complain about."""
    wrong = []
    pod = spec.get("securityContext", {})
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        wrong += [key] if spec.get(key) else []
    wrong += [f"volume {v['name']}" for v in spec.get("volumes", ()) if "hostPath" in v]
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        mine = one.get("securityContext", {})
        checks = {
            "runAsNonRoot": mine.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
            "runAsUser": mine.get("runAsUser", pod.get("runAsUser", 0)) == USER,
            "seccomp": mine.get("seccompProfile", pod.get("seccompProfile")) == {"type": "RuntimeDefault"},
            "escalation": mine.get("allowPrivilegeEscalation") is False,
            "capabilities": mine.get("capabilities") == {"drop": ["ALL"]},
            "root": mine.get("readOnlyRootFilesystem") is True,
            "privileged": not mine.get("privileged"),
            "memory": "memory" in one.get("resources", {}).get("limits", {}),
            "ports": not any("hostPort" in port for port in one.get("ports", ())),
        }
        wrong += [f"{one['name']}: {check}" for check, holds in checks.items() if not holds]
    return wrong


@pytest.mark.parametrize("name", MATRIX)
def test_every_pod_is_restricted(rendered: dict[str, list[Document]], name: str) -> None:
    found = dict(pods(rendered[name]))
    assert "x-ferry-operator" in found
    assert {pod: unrestricted(spec) for pod, spec in found.items()} == {pod: [] for pod in found}


def test_an_address_of_version_6_stands_in_brackets() -> None:
    (operators,) = of_kind(render({"redis.clusterIP": "fd00::7"}), "Deployment", "-operator")
    told = {e["name"]: e.get("value") for e in operators["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert told["FERRY_REDIS_URL"] == "redis://[fd00::7]:6379/0"


def test_a_cluster_may_choose_the_users() -> None:
    """Such as OpenShift, which refuses pods that name one, and owners that hold up deletions without the right to."""
    for _, spec in pods(render({"user": None})):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
        assert spec["securityContext"]["runAsNonRoot"] is True
    (operators,) = of_kind(render({"user": None}), "Deployment", "-operator")
    told = {e["name"]: e.get("value") for e in operators["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert told["FERRY_USER"] == ""
    assert set(UNCALLED) <= rights(render())


def test_a_pod_that_is_not_restricted_is_seen() -> None:
    (_, spec), *_ = pods(render())
    for path, value in [
        (("securityContext", "seccompProfile"), None),
        (("containers", 0, "securityContext", "readOnlyRootFilesystem"), False),
        (("containers", 0, "securityContext", "capabilities"), {"drop": ["ALL"], "add": ["NET_RAW"]}),
        (("hostNetwork",), True),
    ]:
        (_, spec), *_ = pods(render())
        at: Any = spec
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        if path[-1] == "seccompProfile":
            spec["containers"][0]["securityContext"].pop("seccompProfile")
        assert unrestricted(spec), path


@pytest.mark.parametrize("name", MATRIX)
def test_rights_are_few_and_of_the_namespace(rendered: dict[str, list[Document]], name: str) -> None:
    documents = rendered[name]
    assert rights(documents, name="-operator") == listed(RULES)
    assert rights(documents, name="-driver") == listed(DRIVER_RULES)
    assert rights(documents) == listed(RULES) | listed(DRIVER_RULES)
    assert {verb for verb, _, what in rights(documents) if what == "secrets"} == {"create", "patch"}, (
        "nobody reads a Secret"
    )
    cluster = listed(NODE_RULES) if name == "everything" else set()
    assert rights(documents, "ClusterRole") == cluster
    assert bool(of_kind(documents, "ClusterRoleBinding")) == bool(cluster)
    assert "*" not in {word for right in rights(documents) | cluster for word in right}


def test_only_the_operator_has_a_token(rendered: dict[str, list[Document]]) -> None:
    for documents in rendered.values():
        assert all(a["automountServiceAccountToken"] is False for a in of_kind(documents, "ServiceAccount"))
        with_token = {name for name, spec in pods(documents) if spec["automountServiceAccountToken"]}
        assert with_token == {"x-ferry-operator"}
        for binding in of_kind(documents, "RoleBinding", "-operator"):
            (subject,) = binding["subjects"]
            assert subject["name"] in ("x-ferry-operator", "o") and subject["namespace"] == "streams"


def test_drivers_may_touch_journals_and_nothing_else() -> None:
    """Under the account of the jobs, and under those that jobs may name."""
    documents = render({"jobs.driverAccounts": ["cloud"]})
    (binding,) = of_kind(documents, "RoleBinding", "-driver")
    assert [one["name"] for one in binding["subjects"]] == ["x-ferry-job", "cloud"]
    assert binding["roleRef"]["name"] == "x-ferry-driver"
    assert {resource for _, _, resource in rights(documents, name="-driver")} == {journals.PLURAL}
    (policy,) = of_kind(render({"networkPolicies.jobEgress": []}), "NetworkPolicy", "-drivers")
    assert policy["spec"]["podSelector"]["matchLabels"] == {names.MANAGED: names.MANAGER, names.ROLE: names.DRIVER_ROLE}
    assert policy["spec"]["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]
    assert not of_kind(documents, "NetworkPolicy", "-drivers"), "they may go anywhere"


def test_redis_starts_elsewhere_when_its_node_is_lost(rendered: dict[str, list[Document]]) -> None:
    (redis,) = of_kind(rendered["defaults"], "Deployment", "-redis")
    spec = redis["spec"]["template"]["spec"]
    assert {"name": "data", "emptyDir": {}} in spec["volumes"], "nothing holds it where it is"
    assert {(t["key"], t["tolerationSeconds"]) for t in spec["tolerations"]} == {
        ("node.kubernetes.io/not-ready", 10),
        ("node.kubernetes.io/unreachable", 10),
    }
    assert redis["spec"]["strategy"] == {"type": "Recreate"}
    assert not of_kind(rendered["defaults"], "PersistentVolumeClaim")
    (claim,) = of_kind(rendered["everything"], "PersistentVolumeClaim")
    (kept,) = of_kind(rendered["everything"], "Deployment", "-redis")
    assert {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}} in kept["spec"][
        "template"
    ]["spec"]["volumes"]
    (conf,) = (c["data"]["redis.conf"] for c in of_kind(rendered["everything"], "ConfigMap", "-redis"))
    assert "appendfsync always" in conf


def test_the_operator_is_told_what_it_reads() -> None:
    ((_, spec),) = pods(of_kind(render(OWN_REDIS | {"images.runtime": "r/ferry:1"}), "Deployment", "-operator"))
    (container,) = spec["containers"]
    told = environment(container)
    table = inspect.getdoc(operator) or ""
    read = set(re.findall(r"\b(?:FERRY_[A-Z_]+|POD_NAME)\b", table))
    assert set(told) - {"POD_NAMESPACE"} == read
    assert container["args"] == ["python3", "-m", operator.__name__.removesuffix(".__main__"), "--namespace", "$(POD_NAMESPACE)"]  # fmt: skip
    assert told["FERRY_IMAGE"] == "r/ferry:1" and told["FERRY_READ_NODES"] == "false"
    assert told["FERRY_REDIS_URL"] == "rediss://redis.example:6380/2"
    assert told["FERRY_REDIS_PASSWORD"] == {"secretKeyRef": {"name": "mine", "key": "password"}}


@pytest.mark.parametrize("name", MATRIX)
def test_jobs_may_not_name_what_is_of_the_release(rendered: dict[str, list[Document]], name: str) -> None:
    documents = rendered[name]
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    told = environment(spec["containers"][0])
    allowed = Allowed.read(told["FERRY_JOBS_ALLOW"])
    assert allowed == Allowed(own=allowed.own), "the defaults of the two are the same"
    secrets = {one["secretKeyRef"]["name"] for one in told.values() if isinstance(one, dict) and "secretKeyRef" in one}
    pulled = {one["name"] for one in spec.get("imagePullSecrets", ())}
    assert set(allowed.own.secrets) == secrets | pulled | {s["metadata"]["name"] for s in of_kind(documents, "Secret")}
    assert allowed.own.service_accounts == (spec["serviceAccountName"],)
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, other in pods(documents)
        for volume in other.get("volumes", ())
        if "persistentVolumeClaim" in volume
    }
    assert claims <= set(allowed.own.claims)


def test_what_jobs_may_name_is_said_by_values() -> None:
    values = {"jobs.allow": {"secrets": ["bucket"], "hostPaths": ["/mnt"], "hostNetwork": True, "users": [2000]}}
    documents = render({**values, "jobs.driverAccounts": ["cloud"]})
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    found = Allowed.read(environment(spec["containers"][0])["FERRY_JOBS_ALLOW"])
    assert (found.secrets, found.host_paths, found.host_network) == (("bucket",), ("/mnt",), True)
    assert (found.service_accounts, found.images, found.users) == (("cloud",), ("*",), (2000,))
    more = {"networks": ["other/*"], "devices": ["a/b"], "claims": ["c"], "taints": ["x/y"], "labels": ["team"]}
    ((_, spec),) = pods(of_kind(render({"jobs.allow": more}), "Deployment", "-operator"))
    found = Allowed.read(environment(spec["containers"][0])["FERRY_JOBS_ALLOW"])
    assert {key: list(getattr(found, key)) for key in more} == more
    for wrong in ({"hostPaths": ["mnt"]}, {"hostNetwork": "yes"}, {"secret": ["x"]}, {"users": [0]}):
        with pytest.raises(Refused):
            render({"jobs.allow": wrong})


def test_the_address_of_redis(rendered: dict[str, list[Document]]) -> None:
    urls = {}
    for name, documents in rendered.items():
        ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
        urls[name] = environment(spec["containers"][0])["FERRY_REDIS_URL"]
    assert urls["defaults"] == "redis://x-ferry-redis.streams.svc:6379/0"
    assert urls["Redis at an address"] == "redis://10.96.0.7:6379/0"
    assert not of_kind(rendered["own Redis"], "Deployment", "-redis")
    (service,) = of_kind(rendered["Redis at an address"], "Service", "redis")
    assert service["spec"]["clusterIP"] == "10.96.0.7"


def test_secrets_are_made_unless_they_are_given(rendered: dict[str, list[Document]]) -> None:
    made = {name: {s["metadata"]["name"] for s in of_kind(documents, "Secret")} for name, documents in rendered.items()}
    assert made["defaults"] == {"x-ferry-operator", "x-ferry-redis", "x-ferry-metrics"}
    assert made["own Redis"] == made["Redis on a claim"] == {"x-ferry-operator", "x-ferry-metrics"}
    assert made["one operator"] == {"x-ferry-redis"}


@pytest.mark.parametrize(
    ("values", "secret"), [({}, "x-ferry-metrics"), ({"monitoring.existingSecret": "mine"}, "mine")]
)
def test_the_token_of_metrics_is_one_for_all(values: Document, secret: str) -> None:
    monitors = {"monitoring.podMonitor": True, "monitoring.serviceMonitor": True}
    documents = render(monitors | values | {"monitoring.token": "abc"})
    made = [s["data"]["token"] for s in of_kind(documents, "Secret", "metrics")]
    assert made == ([] if values else ["YWJj"])
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    told = environment(spec["containers"][0])
    assert told["FERRY_METRICS_TOKEN"] == {"secretKeyRef": {"name": secret, "key": "token"}}
    assert told["FERRY_METRICS_SECRET"] == secret
    (jobs,), (operators,) = of_kind(documents, "PodMonitor"), of_kind(documents, "ServiceMonitor")
    for endpoint in (*jobs["spec"]["podMetricsEndpoints"], *operators["spec"]["endpoints"]):
        assert endpoint["authorization"] == {"credentials": {"name": secret, "key": "token"}}


def test_network_policies_let_through_what_processes_use() -> None:
    documents = render()
    (policy,) = of_kind(documents, "NetworkPolicy", "jobs")
    assert policy["spec"]["podSelector"]["matchLabels"] == {names.MANAGED: names.MANAGER}
    beside, operator_in, scraped = policy["spec"]["ingress"]
    ((low, high),) = ((port["port"], port["endPort"]) for port in beside["ports"])
    used = [
        *(ports.CONTROL, ports.SPARK_MASTER, ports.SPARK_WORKER),
        *(ports.SPARK_DRIVER, ports.SPARK_BLOCKS + SPARK_RETRIES),
        *(ports.CHANNEL, ports.CHANNEL + INSTANCES_MAX - 1),
        *(ports.FLIGHT, ports.FLIGHT + INSTANCES_MAX - 1),
    ]
    assert all(low <= port <= high for port in used), (low, high, used)
    assert operator_in["ports"] == [{"port": ports.CONTROL}] and scraped["ports"] == [{"port": ports.METRICS}]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (closed,) = of_kind(render({"networkPolicies.jobEgress": []}), "NetworkPolicy", "jobs")
    assert closed["spec"]["policyTypes"] == ["Ingress", "Egress"] and len(closed["spec"]["egress"]) == 3
    (mine,) = of_kind(render(OWN_REDIS), "NetworkPolicy", "operator")
    assert {"ports": [{"port": 6380}]} in mine["spec"]["egress"]
    for document in of_kind(documents, "Deployment"):
        labels = document["spec"]["template"]["metadata"]["labels"]
        assert labels.get(names.MANAGED) != names.MANAGER, "pods of the chart are no pods of jobs"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"operator.replicas": 0}, "replicas"),
        ({"operator.replicas": "two"}, "replicas"),
        ({"operator.replcas": 2}, "replcas"),
        ({"images.pullPolicy": "Sometimes"}, "pullPolicy"),
        ({"images.runtime": ""}, "runtime"),
        ({"redis.enabled": False}, "url"),
        ({"redis.url": "redis://other:6379"}, "url"),
        ({"redis.enabled": False, "redis.url": "redis://user:word@host:6379"}, "url"),
        ({"redis.enabled": False, "redis.url": "http://host"}, "url"),
        ({"redis.persistence.size": "much"}, "size"),
        ({"redis.lostNodeSeconds": "soon"}, "lostNodeSeconds"),
        ({"jobs.driverAccounts": ["No_Name"]}, "driverAccounts"),
        ({"redis.clusterIP": "redis"}, "clusterIP"),
        ({"redis.clusterIP": "fd00"}, "clusterIP"),
        ({"nodes.read": "yes"}, "read"),
        ({"nodes.write": True}, "write"),
        ({"networkPolicies.apiServerPorts": []}, "apiServerPorts"),
        ({"networkPolicies.apiServerPorts": [70000]}, "apiServerPorts"),
        ({"networkPolicies.scrapers": []}, "scrapers"),
        ({"monitoring.interval": "often"}, "interval"),
        ({"monitoring.token": "two words"}, "token"),
        ({"jobs.serviceAccount": {"create": True, "name": "No_Name"}}, "name"),
        ({"surprise": 1}, "surprise"),
    ],
    ids=str,
)  # fmt: skip
def test_values_that_mean_nothing_are_refused(value: Document, said: str) -> None:
    with pytest.raises(Refused) as refused:
        render(value)
    assert "schema" in str(refused.value) and said in str(refused.value)


def test_names_are_good_for_every_release() -> None:
    for release in ("ferry", "a" * 53, "my-ferry-of-streams-with-a-rather-long-name-for-a-rel"):
        for document in render(EVERYTHING, release):
            assert len(document["metadata"]["name"]) <= 63 or document["kind"].startswith("ClusterRole")


def test_the_chart_has_no_copy_of_the_definition() -> None:
    every = sorted((ROOT / "crds").glob("*.yaml"))
    assert [file.name for file in sorted((CHART / "crds").iterdir())] == [file.name for file in every]
    assert all((CHART / "crds" / file.name).resolve() == file.resolve() for file in every)
    assert "kind: CustomResourceDefinition" in run("show", "crds", str(CHART))


def exported() -> str:
    """The sources that name metrics."""
    files = itertools.chain((ROOT / "runtime").rglob("*.py"), (ROOT / "operator").rglob("*.py"))
    return "\n".join(Path(file).read_text("utf-8") for file in files)


def test_queries_ask_for_metrics_that_exist() -> None:
    sources, asked = exported(), {name: metrics_of(query) for name, query in queries().items()}
    assert all(asked.values()), "a query without a metric of Ferry's"
    for metric in sorted(set().union(*asked.values())):
        gauge, histogram = metric.removeprefix("ferry_operator_"), metric[len("ferry_") :].removesuffix("_seconds")
        written = rf'"{metric}"|gauge\("{gauge}"|_histogram\(\s*"{histogram}"'
        assert re.search(written, sources), f"nothing exports {metric}"


def test_a_job_that_is_down_is_told_of() -> None:
    """By what the operator says: with its driver go all metrics of a job."""
    asked = {rule["alert"]: rule["expr"] for rule in alerts()}
    for name in ("FerryJobFailed", "FerryJobNotReady", "FerryJobSpecRefused"):
        assert all(metric.startswith("ferry_streamjob_") for metric in metrics_of(asked[name])), name
    assert "Suspended" in asked["FerryJobNotReady"], "a job that is to stand still is fine"
    assert "<" not in asked["FerryJobFallsBehind"], "no lag is so great that it is none"


def test_dashboards_are_whole(rendered: dict[str, list[Document]]) -> None:
    config = {c["metadata"]["name"]: c for c in of_kind(rendered["everything"], "ConfigMap")}
    for name, board in dashboards().items():
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels), "panels cover each other"
        used = {v for p in panels for t in p["targets"] for v in re.findall(r"\$(\w+)", t["expr"])}
        assert used == set(variables()[name])
        assert config[f"x-ferry-dashboard-{name}"]["metadata"]["labels"]["grafana_dashboard"] == "1"
        annotated = [one["titleFormat"] for one in board.get("annotations", {}).get("list", ())]
        assert annotated == ([] if name == "operator" else ["{{streamjob}}: program {{program}}"])
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]
    (made,) = of_kind(rendered["everything"], "PrometheusRule")
    assert [r for group in made["spec"]["groups"] for r in group["rules"]] == alerts()
