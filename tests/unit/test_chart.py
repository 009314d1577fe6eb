"""The chart as a real helm renders it: restricted pods, few rights, values that are checked, one copy of everything."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ferry.contract import journals, ports
from ferry_operator.kube import __main__ as operator
from ferry_operator.kube.api import names
from ferry_operator.kube.api.rbac import (
    BIND_RULES,
    CHOICE_RULES,
    CLEAR_RULES,
    DRIVER_RULES,
    NAMED_RULES,
    NODE_RULES,
    OWN_RULES,
    PREPARE_RULES,
    RULES,
    UNCALLED,
    WEBHOOK_RULES,
)
from ferry_operator.kube.manifests import parts
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
    "nodes.leavingTaints": ["spot/notice", "pool=old"],
    "evictionWebhook.enabled": True,
    "monitoring.podMonitor": True,
    "monitoring.serviceMonitor": True,
    "monitoring.rules": True,
    "monitoring.dashboards": True,
    "monitoring.labels": {"release": "prometheus"},
    "images.pullSecrets": ["registry"],
    "operator.nodeSelector": {"pool": "system"},
    "operator.tolerations": [{"operator": "Exists"}],
    "operator.priorityClassName": "high",
    "operator.extraArgs": ["--port=8080"],
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
    "listed namespaces": {"namespaces.list": ["streams"]},
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
    assert rights(documents, name="-own") == listed(OWN_RULES)
    assert rights(documents, name="-own", named=True) == rights(documents, named=True) == listed(NAMED_RULES)
    assert rights(documents) == listed(RULES) | listed(DRIVER_RULES) | listed(OWN_RULES)
    assert {verb for verb, _, what in rights(documents) if what == "secrets"} == {"create", "patch"}, (
        "nobody reads the Secret of a job"
    )
    cluster = listed(NODE_RULES) if name == "everything" else set()
    assert rights(documents, "ClusterRole") == cluster
    assert rights(documents, "ClusterRole", named=True) == (listed(WEBHOOK_RULES) if cluster else set())
    assert bool(of_kind(documents, "ClusterRoleBinding")) == bool(cluster)
    assert "*" not in {word for right in rights(documents) | cluster for word in right}


def test_only_the_operator_has_a_token(rendered: dict[str, list[Document]]) -> None:
    for documents in rendered.values():
        assert all(a["automountServiceAccountToken"] is False for a in of_kind(documents, "ServiceAccount"))
        with_token = {name for name, spec in pods(documents) if spec["automountServiceAccountToken"]}
        assert with_token == {"x-ferry-operator"}
        bindings = [*of_kind(documents, "RoleBinding", "-operator"), *of_kind(documents, "RoleBinding", "-own")]
        assert len(bindings) == 2
        for binding in bindings:
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


def test_redis_is_started_again_for_another_configuration_and_for_no_other_reason() -> None:
    """It reads its configuration once: an upgrade with other bounds would have no effect otherwise."""
    (one, same, other) = (
        of_kind(render(values), "Deployment", "-redis")[0]["spec"]["template"]
        for values in ({}, {"operator.replicas": 1}, {"redis.maxMemory": "300mb"})
    )
    assert one == same != other


@pytest.mark.parametrize("values", [{}, {"redis.tlsSecret": "mine", "redis.clusterIP": "10.96.0.7"}])
def test_redis_begins_with_tls_alone(values: Document) -> None:
    """The operator opens the other port for older runs; both have a service and pass the policies."""
    documents = render({**values, "networkPolicies.jobEgress": []})
    (config,) = of_kind(documents, "ConfigMap", "-redis")
    lines = config["data"]["redis.conf"].splitlines()
    assert "port 0" in lines and "tls-port 6380" in lines and "tls-auth-clients no" in lines
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-redis"))
    (container,), files = spec["containers"], {"ca.crt", "tls.crt", "tls.key"}
    secret = next(volume["secret"] for volume in spec["volumes"] if volume["name"] == "tls")
    name = values.get("redis.tlsSecret", "x-ferry-redis-tls")
    assert secret["secretName"] == name and {item["path"] for item in secret["items"]} == files, "not its authority"
    assert {f"/etc/redis-tls/{file}" for file in files - {"ca.crt"}} <= {
        word for line in lines for word in line.split()
    }
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "--tls --cacert /etc/redis-tls/ca.crt -p 6380" in container[probe]["exec"]["command"][-1]
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    told = environment(spec["containers"][0])
    assert told["FERRY_REDIS_TLS_PORT"] == "6380" and told["FERRY_REDIS_URL"].startswith("redis://")
    assert told["FERRY_REDIS_CA"] == {"secretKeyRef": {"name": name, "key": "ca.crt"}}
    (service,) = of_kind(documents, "Service", "-redis")
    assert {port["port"] for port in service["spec"]["ports"]} == {6379, 6380}
    policies = [one["spec"] for one in of_kind(documents, "NetworkPolicy")]
    rules = [rule for spec in policies for way in ("ingress", "egress") for rule in spec.get(way) or ()]
    both = [{port["port"] for port in rule["ports"]} for rule in rules if {"port": 6379} in rule.get("ports", ())]
    assert both == [{6379, 6380}] * 3, "of the operator, of Redis, of jobs"


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
    assert "maxmemory 200mb\n" in conf and "maxmemory-policy noeviction\n" in conf, "nobody's entries vanish"


def test_the_operator_is_told_what_it_reads() -> None:
    values = OWN_REDIS | {
        "images.runtime": "r/ferry:1",
        "evictionWebhook.enabled": True,
        "redis.caSecret": "authority",
        "nodes.leavingTaints": ["a", "b=c"],
    }
    ((_, spec),) = pods(of_kind(render(values), "Deployment", "-operator"))
    (container,) = spec["containers"]
    told = environment(container)
    table = inspect.getdoc(operator) or ""
    read = set(re.findall(r"\b(?:FERRY_[A-Z_]+|POD_NAME)\b", table))
    assert (set(told) | environment(defaults()).keys()) - {"POD_NAMESPACE"} == read
    assert container["args"] == ["python3", "-m", operator.__name__.removesuffix(".__main__"), "--namespace", "$(POD_NAMESPACE)", "--lease", "x-ferry-operator"]  # fmt: skip
    assert told["FERRY_IMAGE"] == "r/ferry:1" and told["FERRY_READ_NODES"] == "false"
    assert told["FERRY_LEAVING_TAINTS"] == "a,b=c" and "FERRY_LEAVING_TAINTS" not in environment(defaults())
    assert told["FERRY_EVICTION_ADDRESS"] == "x-ferry-evictions.streams.svc:8443"
    assert told["FERRY_REDIS_URL"] == "rediss://redis.example:6380/2"
    assert told["FERRY_REDIS_CA"] == {"secretKeyRef": {"name": "authority", "key": "ca.crt"}}
    assert "FERRY_REDIS_TLS_PORT" not in told
    assert told["FERRY_REDIS_PASSWORD"] == {"secretKeyRef": {"name": "mine", "key": "password"}}


SELECTOR: Document = {"matchLabels": {"ferry": "yes"}, "matchExpressions": [{"key": "old", "operator": "DoesNotExist"}]}
NAME_OF_NAMESPACE = "kubernetes.io/metadata.name"
KUBE = ["kube-system", "kube-public", "kube-node-lease"]


def defaults() -> Document:
    """The container of the operator, with all defaults."""
    ((_, spec),) = pods(of_kind(render(), "Deployment", "-operator"))
    container: Document = spec["containers"][0]
    return container


def test_the_webhook_for_evictions_is_asked_about_evictions_of_the_namespace_alone() -> None:
    documents = render({"evictionWebhook.enabled": True})
    (configuration,) = of_kind(documents, "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert [rule["resources"] for rule in webhook["rules"]] == [["pods/eviction"]]
    assert webhook["namespaceSelector"]["matchExpressions"][0]["values"] == ["streams"]
    assert (webhook["failurePolicy"], webhook["sideEffects"]) == ("Ignore", "NoneOnDryRun")
    service = webhook["clientConfig"]["service"]
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    told, ports = environment(spec["containers"][0]), spec["containers"][0]["ports"]
    host, _, port = told["FERRY_EVICTION_ADDRESS"].partition(":")
    assert host == f"{service['name']}.{service['namespace']}.svc"
    assert service.keys() == {"name", "namespace"}, "the operator writes a path that is a secret"
    assert {"name": "evictions", "containerPort": int(port)} in ports
    assert told["FERRY_EVICTION_WEBHOOK"] == configuration["metadata"]["name"]
    roles = [rule for role in of_kind(documents, "ClusterRole") for rule in role["rules"]]
    assert [rule["resourceNames"] for rule in roles] == [[configuration["metadata"]["name"]]]
    (policy,) = of_kind(documents, "NetworkPolicy", "-operator")
    assert {"ports": [{"port": int(port)}]} in policy["spec"]["ingress"]
    assert not of_kind(render(), "ValidatingWebhookConfiguration")


@pytest.mark.parametrize(
    "pod", ["a-driver", "a.b-worker-0", "a-worker-12", "a-placeholder-7", "worker-0", "a-worker-x", "a-b"]
)
def test_the_webhook_is_asked_about_pods_of_the_names_of_jobs(pod: str) -> None:
    documents = render({"evictionWebhook.enabled": True})
    ((webhook,),) = (each["webhooks"] for each in of_kind(documents, "ValidatingWebhookConfiguration"))
    (expression,) = (each["expression"] for each in webhook["matchConditions"])
    pattern = re.fullmatch(r"request\.name\.matches\('(.+)'\)", expression)
    assert pattern is not None and bool(re.search(pattern[1], pod)) == (names.job_of_pod(pod) is not None)


@pytest.mark.parametrize(("namespaces", "selector"), [
    ({"list": ["a", "b"]}, {"matchExpressions": [{"key": NAME_OF_NAMESPACE, "operator": "In", "values": ["a", "b"]}]}),
    ({"selector": SELECTOR}, SELECTOR),
    ({"all": True}, {"matchExpressions": [{"key": NAME_OF_NAMESPACE, "operator": "NotIn", "values": KUBE}]}),
])  # fmt: skip
def test_the_webhook_is_asked_in_the_namespaces_of_the_release(namespaces: Document, selector: Document) -> None:
    ((key, value),) = namespaces.items()
    documents = render({"evictionWebhook.enabled": True, f"namespaces.{key}": value})
    ((webhook,),) = (one["webhooks"] for one in of_kind(documents, "ValidatingWebhookConfiguration"))
    assert webhook["namespaceSelector"] == selector


@pytest.mark.parametrize("name", MATRIX)
def test_jobs_may_not_name_what_is_of_the_release(rendered: dict[str, list[Document]], name: str) -> None:
    documents = rendered[name]
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    told = environment(spec["containers"][0])
    allowed = Allowed.read(told["FERRY_JOBS_ALLOW"])
    assert allowed == Allowed(own=allowed.own), "the defaults of the two are the same"
    secrets = {one["secretKeyRef"]["name"] for one in told.values() if isinstance(one, dict) and "secretKeyRef" in one}
    secrets |= {told["FERRY_KEY_SECRET"], *first_secrets(documents)}
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
    more |= {
        "annotations": ["example.com/*"],
        "priorityClasses": ["high"],
        "runtimeClasses": ["gvisor"],
        "schedulers": ["mine"],
    }
    more |= {"tokenAudiences": ["https://vault.example/v1"], "csiDrivers": ["csi.example.com"]}
    ((_, spec),) = pods(of_kind(render({"jobs.allow": more}), "Deployment", "-operator"))
    found = Allowed.read(environment(spec["containers"][0])["FERRY_JOBS_ALLOW"]).model_dump(mode="json", by_alias=True)
    assert {key: found[key] for key in more} == more
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


def merged(*tables: dict[tuple[str, str], tuple[str, ...]]) -> set[Right]:
    return set().union(*map(listed, tables))


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"namespaces.selector": SELECTOR}, ["--selector", "ferry=yes,!old"]),
        ({"namespaces.all": True}, ["--all-namespaces"]),
    ],
)
def test_an_operator_that_chooses_namespaces_may_bind_two_roles_and_no_more(chosen: Document, words: list[str]) -> None:
    documents = render(chosen)
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    assert spec["containers"][0]["args"][-len(words) :] == words
    assert rights(documents, "ClusterRole", "-namespaces") == listed(CHOICE_RULES)
    assert rights(documents, "ClusterRole", "-namespaces", named=True) == listed(BIND_RULES)
    (finder,) = of_kind(documents, "ClusterRole", "-namespaces")
    (bound,) = (rule["resourceNames"] for rule in finder["rules"] if "resourceNames" in rule)
    (binding,) = of_kind(documents, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == finder["metadata"]["name"], "the other two are bound by nobody"
    assert bound == ["streams-x-ferry-operator", "streams-x-ferry-driver"]
    assert rights(documents, "ClusterRole", bound[0]) == merged(RULES, PREPARE_RULES)
    assert rights(documents, "ClusterRole", bound[0], named=True) == listed(CLEAR_RULES)
    assert rights(documents, "ClusterRole", bound[1]) == listed(DRIVER_RULES)
    assert rights(documents) == listed(OWN_RULES), "in the namespace of the release"
    created = json.loads(environment(spec["containers"][0])["FERRY_NAMESPACE_OBJECTS"])
    named = {
        name
        for rule in of_kind(documents, "ClusterRole", bound[0])[0]["rules"]
        for name in rule.get("resourceNames", ())
    }
    assert {one["metadata"]["name"] for one in created} <= named
    assert [one["roleRef"]["name"] for one in created if one["kind"] == "RoleBinding"] == bound


def test_the_objects_of_a_namespace_are_the_same_whoever_creates_them() -> None:
    """The chart in listed namespaces, the operator in chosen ones; but for the kind of the roles, and the accounts' namespaces."""
    egress = {"networkPolicies.jobEgress": [{"ports": [{"port": 443}]}], "jobs.driverAccounts": ["cloud"]}
    inside = render({"namespaces.list": ["a", "b"], **egress})
    ((_, spec),) = pods(of_kind(render({"namespaces.all": True, **egress}), "Deployment", "-operator"))
    created = {(one["kind"], one["metadata"]["name"]): one for one in json.loads(environment(spec["containers"][0])["FERRY_NAMESPACE_OBJECTS"])}  # fmt: skip
    for namespace in ("a", "b"):
        mine = {
            (one["kind"], one["metadata"]["name"]): one
            for one in inside
            if one["metadata"].get("namespace") == namespace
        }
        roles = {("Role", "x-ferry-operator"), ("Role", "x-ferry-driver")}
        assert mine.keys() - roles == created.keys() and roles <= mine.keys()
        for key, one in created.items():
            assert one.get("spec") == mine[key].get("spec"), key
            assert [subject["name"] for subject in one.get("subjects", ())] == [s["name"] for s in mine[key].get("subjects", ())]  # fmt: skip
    assert len(created) == 5


def test_listed_namespaces_have_roles_and_the_namespace_of_the_release_has_none_for_jobs() -> None:
    documents = render({"namespaces.list": ["a", "b"]})
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    assert spec["containers"][0]["args"][-2:] == ["--namespaces", "a,b"]
    assert {role["metadata"]["namespace"] for role in of_kind(documents, "Role", "x-ferry-operator")} == {"a", "b"}
    assert not of_kind(documents, "ClusterRole")
    for binding in of_kind(documents, "RoleBinding", "-driver"):
        assert {subject["namespace"] for subject in binding["subjects"]} == {binding["metadata"]["namespace"]}
    (redis,) = of_kind(documents, "NetworkPolicy", "-redis")
    (peer, _) = redis["spec"]["ingress"][0]["from"]
    assert peer["namespaceSelector"]["matchExpressions"][0]["values"] == ["a", "b"]
    (policy, _) = of_kind(documents, "NetworkPolicy", "-jobs")
    operator_in = policy["spec"]["ingress"][1]["from"][0]
    assert operator_in["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "streams"}}
    for both in (
        {"namespaces.list": ["a"], "namespaces.all": True},
        {"namespaces.all": True, "namespaces.selector": SELECTOR},
    ):
        with pytest.raises(Refused):
            render(both)


def test_rights_of_users_are_added_to_the_roles_of_the_cluster() -> None:
    documents = render({"rbac.aggregate": True})
    found = {role["metadata"]["name"].rpartition("-")[2]: role for role in of_kind(documents, "ClusterRole")}
    assert found.keys() == {"view", "edit", "admin"}
    for name, role in found.items():
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
    resources = {name: {r for rule in role["rules"] for r in rule["resources"]} for name, role in found.items()}
    assert (
        "streamjobs/status" not in resources["edit"]
        and "streamjobjournals" not in resources["view"] | resources["edit"]
    )


def first_secrets(documents: list[Document]) -> dict[str, str]:
    """The Secrets that the pod of the operator creates, with their entries."""
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    words = [word for container in spec.get("initContainers", ()) for word in container["args"]]
    return dict(word.split("=") for word in words if "=" in word)


def test_secrets_are_created_unless_they_exist(rendered: dict[str, list[Document]]) -> None:
    created = {name: first_secrets(documents) for name, documents in rendered.items()}
    key, token, password = {"x-ferry-operator": "key"}, {"x-ferry-metrics": "token"}, {"x-ferry-redis": "password"}
    certificate = {"x-ferry-redis-tls": "x-ferry-redis.streams.svc"}
    assert created["defaults"] == {**key, **token, **password, **certificate}
    assert created["own Redis"] == {**key, **token}
    assert created["Redis on a claim"] == {**key, **token, **certificate}
    assert created["one operator"] == {**password, **certificate}
    assert created["Redis at an address"]["x-ferry-redis-tls"] == "x-ferry-redis.streams.svc,10.96.0.7"
    assert first_secrets(render({"monitoring.token": "abc", "redis.tlsSecret": "mine"})) == {**key, **password}
    nothing = {**OWN_REDIS, "operator.existingSecret": "key", "monitoring.existingSecret": "mine"}
    ((_, spec),) = pods(of_kind(render(nothing), "Deployment", "-operator"))
    assert "initContainers" not in spec


def test_the_operator_may_read_the_secrets_of_its_release_alone(rendered: dict[str, list[Document]]) -> None:
    for documents in rendered.values():
        ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
        told, args = environment(spec["containers"][0]), spec["containers"][0]["args"]
        (own,) = of_kind(documents, "Role", "-own")
        readable = {rule["resources"][0]: rule["resourceNames"] for rule in own["rules"] if "resourceNames" in rule}
        assert set(readable["secrets"]) == {told["FERRY_KEY_SECRET"], *first_secrets(documents)}
        assert readable["leases"] == [args[args.index("--lease") + 1]]


@pytest.mark.parametrize(
    "where", [{}, {"namespaces.list": ["a"]}, {"namespaces.selector": SELECTOR}, {"namespaces.all": True}]
)
def test_the_secrets_can_be_created_before_any_namespace_is_prepared(where: Document) -> None:
    """The init container has the rights of its RoleBindings in the namespace of the release, and no others yet."""
    documents = render(where)
    bound = [d for d in of_kind(documents, "RoleBinding") if d["metadata"].get("namespace", "streams") == "streams"]
    roles = [d for d in of_kind(documents, "Role") if d["metadata"].get("namespace", "streams") == "streams"]
    mine = [
        role
        for binding in bound
        for role in roles
        if role["metadata"]["name"] == binding["roleRef"]["name"]
        and binding["subjects"][0]["name"] == "x-ferry-operator"
    ]
    assert ("create", "", "secrets") in rights(mine)
    named = [
        rule for role in mine for rule in role["rules"] if rule["resources"] == ["secrets"] and "resourceNames" in rule
    ]
    assert all({"get", "patch"} <= set(rule["verbs"]) and set(rule["resourceNames"]) >= first_secrets(documents).keys() for rule in named) and named  # fmt: skip


@pytest.mark.parametrize(
    ("where", "words", "example"),
    [
        ("namespaces.all=false", "the namespace streams.", "streams"),
        ("namespaces.list={a,b}", "the namespace a, b.", "a"),
        ("namespaces.selector.matchLabels.ferry=yes", "the namespaces with ferry=yes.", "NAMESPACE"),
        ("namespaces.all=true", "all namespaces but kube-*.", "NAMESPACE"),
    ],
)
def test_the_notes_name_the_namespaces_of_jobs(where: str, words: str, example: str, tmp_path: Path) -> None:
    """Helm shows notes after an installation alone, so a copy of the chart has them in an object."""
    chart = shutil.copytree(CHART, tmp_path / "ferry")
    notes = (chart / "templates/NOTES.txt").read_text()
    (chart / "templates/_notes.tpl").write_text(f'{{{{ define "notes" }}}}{notes}{{{{ end }}}}')
    (chart / "templates/notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | quote }}\n')
    show = ("--show-only", "templates/notes.yaml")
    text = yaml.safe_load(run("template", "x", str(chart), "--namespace", "streams", "--set", where, *show))["text"]
    assert f"StreamJobs of {words}" in text and f"kubectl -n {example} apply" in text
    assert "kubectl -n streams rollout status deployment/x-ferry-operator" in text


def not_texts(value: Any, path: str = "") -> Iterator[str]:
    """Names, namespaces and labels that are no texts."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        where = f"{path}.{key}"
        yield from not_texts(part, where)
        named = key in ("name", "namespace") or path.endswith((".labels", ".matchLabels"))
        if named and not isinstance(part, str | dict):
            yield where


@pytest.mark.parametrize("where", [{}, {"namespaces.list": ["2024", "7"]}, {"namespaces.all": True}])
def test_names_that_look_like_numbers_stay_texts(where: Document) -> None:
    """Namespaces of teams with numbers, for example: the API server refuses a number for a name."""
    more = {
        "evictionWebhook.enabled": True,
        "nodes.read": True,
        "images.pullSecrets": ["5"],
        "redis.existingSecret": "6",
    }
    for document in render({**more, **where}, "123", "2024"):
        assert not [*not_texts(document)], document["kind"]


def test_a_rendering_depends_on_its_values_alone() -> None:
    """`helm template` and Argo CD render without a cluster, again and again."""
    assert render(EVERYTHING) == render(EVERYTHING)
    for template in (CHART / "templates").iterdir():
        text = template.read_text("utf-8")
        if template.name == "upgrade.yaml":
            text = text.replace("lookup", "")  # renders nothing
        assert not re.search(r"\b(lookup|rand[A-Z]\w*|now|uuidv4|gen[A-Z]\w*)\b", re.sub(r"#.*", "", text)), (
            template.name
        )


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


def scraped(endpoint: Document, target: dict[str, str], name: str, exported: dict[str, str]) -> dict[str, str] | None:
    """The labels that Prometheus gives to a series of a target; None: it drops the series."""
    if endpoint.get("honorLabels"):
        labels = target | exported
    else:
        labels = target | {f"exported_{key}" if key in target else key: value for key, value in exported.items()}
    for rule in endpoint.get("metricRelabelings", ()):
        text = ";".join((labels | {"__name__": name}).get(label, "") for label in rule.get("sourceLabels", ()))
        action, match = rule.get("action", "replace"), re.fullmatch(rule["regex"], text)
        if action == "drop" and match:
            return None
        if action == "labeldrop":
            labels = {key: value for key, value in labels.items() if not re.fullmatch(rule["regex"], key)}
        if action == "replace" and match:
            labels[rule["targetLabel"]] = match[1]
    return labels


def test_no_job_reports_numbers_in_the_name_of_another_job_or_of_the_operator() -> None:
    (monitor,) = of_kind(render({"monitoring.podMonitor": True}), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    target = {"namespace": "mine", "pod": "a-driver", "streamjob": "a", "instance": "10.0.0.1:7071"}
    claimed = {"namespace": "theirs", "pod": "b-driver", "streamjob": "b", "instance": "0.1"}
    labels = scraped(endpoint, target, "ferry_rows_total", claimed)
    assert labels is not None and target | {"instance": "0.1"} == {key: labels[key] for key in target}
    assert scraped(endpoint, target, "ferry_rows_total", {}) == target
    for name in ("ferry_operator_hangs", "ferry_streamjob_condition"):
        assert scraped(endpoint, target, name, claimed) is None


def test_network_policies_let_through_what_processes_use() -> None:
    documents = render()
    (policy,) = of_kind(documents, "NetworkPolicy", "jobs")
    assert policy["spec"]["podSelector"]["matchLabels"] == {names.MANAGED: names.MANAGER}
    beside, operator_in, scraped = policy["spec"]["ingress"]
    ((low, high),) = ((port["port"], port["endPort"]) for port in beside["ports"])
    used = [
        *(ports.CONTROL, ports.SPARK_MASTER),
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


def test_services_have_an_address_of_every_family_of_the_cluster() -> None:
    """But for an address that the user fixes: it has one family."""
    services = of_kind(render({"evictionWebhook.enabled": True}), "Service")
    assert len(services) == 3 and all(one["spec"]["ipFamilyPolicy"] == "PreferDualStack" for one in services)
    (redis,) = of_kind(render({"redis.clusterIP": "10.96.0.7"}), "Service", "-redis")
    assert redis["spec"]["clusterIP"] == "10.96.0.7" and "ipFamilyPolicy" not in redis["spec"]


def test_network_policies_know_the_ports_of_jobs_on_the_hosts_network() -> None:
    """No selector names pods on the host's network."""
    before, after = render(), render({"jobs.allow.hostNetwork": True})
    at_any_address = {"ports": [{"port": parts.HOST_PORTS, "endPort": parts.HOST_PORTS + 2 * parts.HOST_JOBS - 1}]}
    for name, way, rule in (
        ("-operator", "egress", at_any_address),
        ("-redis", "ingress", {"ports": [{"port": 6380}, {"port": 6379}]}),
    ):
        (old,), (new,) = (of_kind(one, "NetworkPolicy", name) for one in (before, after))
        added = [entry for entry in new["spec"][way] if entry not in old["spec"][way]]
        assert added == [rule], name


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
        ({"redis.maxMemory": "much"}, "maxMemory"),
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
        ({"monitoring.runbooks": "on my disk"}, "runbooks"),
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
        assert used - {"__interval", "__rate_interval"} == set(variables()[name])
        assert config[f"x-ferry-dashboard-{name}"]["metadata"]["labels"]["grafana_dashboard"] == "1"
        annotated = [one["titleFormat"] for one in board["annotations"]["list"]]
        assert annotated == [f"{{{{streamjob}}}}: {what}" for what in ("program {{program}}", "handover", "recovery")]
        (link,) = board["links"]
        assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
            "dashboards",
            board["tags"],
            True,
            True,
        )


def test_rates_are_taken_over_an_interval_that_fits_the_scrapes() -> None:
    """A fixed minute shows nothing where scrapes are a minute apart. Longer windows say in the legend how long they are."""
    for name, board in dashboards().items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                for window in re.findall(r"\[([^\]]+)\]", target["expr"]):
                    named = f"{target.get('legendFormat', '')} {panel['title']} {panel.get('description', '')}"
                    assert window in ("$__rate_interval", "1d") or (window == "30m" and "30 min" in named), (
                        name,
                        panel["title"],
                    )


def test_every_alert_names_its_section_of_the_runbook(rendered: dict[str, list[Document]]) -> None:
    page = (ROOT / "docs" / "operating" / "runbook.md").read_text("utf-8")
    sections = re.findall(r"^### (Ferry\w+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(rule["alert"] for rule in alerts())
    for text in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        assert "\n1. " in text, f"{text.splitlines()[0]}: what to do?"
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical") and rule["annotations"]["summary"]
    (plain,) = of_kind(rendered["everything"], "PrometheusRule")
    assert [r for group in plain["spec"]["groups"] for r in group["rules"]] == alerts()
    (made,) = of_kind(
        render({"monitoring.rules": True, "monitoring.runbooks": "https://ferry.example/runbook/"}), "PrometheusRule"
    )
    rules = [r for group in made["spec"]["groups"] for r in group["rules"]]
    for rule in rules:
        url = rule["annotations"].pop("runbook_url")
        assert url == f"https://ferry.example/runbook/#{rule['alert'].lower()}"
    assert rules == alerts()


@pytest.mark.parametrize(
    "values",
    [
        {"operator.serviceAccount.create": False, "jobs.serviceAccount.create": False},
        {"operator.serviceAccount.name": "a", "jobs.serviceAccount.name": "a"},
        {"operator.serviceAccount.name": "a", "jobs.driverAccounts": ["a"]},
    ],
    ids=["default", "same", "drivers"],
)
def test_jobs_never_run_under_the_account_of_the_operator(values: Document) -> None:
    """The token of the operator would be in the processes that run the users' code."""
    with pytest.raises(Refused, match="jobs would run under the operator's account"):
        render(values)
