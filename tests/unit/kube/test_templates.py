"""Pods merged with templates: what is added, what no template changes, and which names a template may have here."""

from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.job.pod_template import FERRY_CONTAINERS, FERRY_VOLUMES, POD_FIELDS, SOURCES, VOLUME_PREFIXES
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS
from ferry_operator.kube.manifests import pods, shaping
from ferry_operator.kube.manifests.allowed import Allowed, Defaults, Own
from ferry_operator.kube.manifests.fence import check
from ferry_operator.kube.manifests.release import settings_of
from ferry_operator.kube.observe.in_place import driver_fits, worker_fits
from tests import templates
from tests.documents import PODS, blocks
from tests.templates import DRIVER, ENV, VOLUMES, WORKER, container, in_pod, mount
from tests.unit.kube.fakes.fake_world import RELEASE, World, settled
from tests.unit.kube.test_passes import running
from tests.unit.kube.test_pods import restricted
from tests.unit.kube.test_shapes import uids

UID = "0a1b2c3d-1111-2222-3333-444455556666"
ALLOW = Allowed(
    labels=("team",), annotations=("example.com/*",), priority_classes=("streams",), runtime_classes=("sandboxed",),
    schedulers=("binpack",), token_audiences=("vault",), csi_drivers=("secrets.example.com",), devices=("example.com/gpu",),
    own=Own(secrets=("mine",), claims=("disk",)),
)  # fmt: skip
DEFAULTS = Defaults("ferry:1", "ferry-job", 10001)
BOTH = {"driverPodTemplate": DRIVER, "workerPodTemplate": WORKER, "env": [{"name": "ALL", "value": "1"}]}
EVERYWHERE = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]}}


def made(section: Doc, **changes: Any) -> tuple[Doc, StreamJob]:
    document = templates.job(section)
    document["spec"] |= changes
    document["metadata"] |= {"uid": UID, "namespace": "jobs"}
    return document, spec.check(document)


def driver(section: Doc, **changes: Any) -> Doc:
    return pods.driver(*made(section, **changes), RELEASE, {names.REVISION: "r"})


def worker(section: Doc, **changes: Any) -> Doc:
    return pods.worker(*made(section, **changes), RELEASE, 1, {names.INSTANCES: "2"})


def by_name(pod: Doc) -> dict[str, Doc]:
    return {c["name"]: c for c in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]}


def test_a_template_is_merged_with_the_pods() -> None:
    for pod, plain, own in (
        (driver(BOTH), driver({}), ["driver"]),
        (worker(BOTH), worker({}), ["sidecar", "executor"]),
    ):
        inside, before = pod["spec"], plain["spec"]
        assert pod["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "streams"}
        assert pod["metadata"]["annotations"] == {**plain["metadata"]["annotations"], "example.com/scrape": "yes"}
        for field in (
            "priorityClassName",
            "runtimeClassName",
            "schedulerName",
            "imagePullSecrets",
            "dnsConfig",
            "hostAliases",
        ):
            assert inside[field] == DRIVER["spec"][field]
        assert inside["nodeSelector"] == {"disk": "fast"}
        assert inside["affinity"].get("podAntiAffinity") == before.get("affinity", {}).get("podAntiAffinity")
        assert inside["affinity"]["nodeAffinity"] == DRIVER["spec"]["affinity"]["nodeAffinity"]
        assert inside["tolerations"] == [*before["tolerations"], *DRIVER["spec"]["tolerations"]]
        (spread,) = inside["topologySpreadConstraints"]
        labels = pod["metadata"]["labels"]
        assert spread["labelSelector"] == {"matchLabels": {key: labels[key] for key in (names.JOB, names.ROLE)}}
        assert [v for v in inside["volumes"] if v["name"] != shaping.NO_ACCOUNT] == [*before["volumes"], *VOLUMES]
        assert [*by_name(pod)] == ["fetch", "proxy", *own], "containers of the job begin first"
        for name in own:
            container, was = by_name(pod)[name], by_name(plain)[name]
            assert container["env"] == [*was["env"], {"name": "ALL", "value": "1"}, *ENV]
            assert container["volumeMounts"][: len(was["volumeMounts"])] == was["volumeMounts"]
            assert {"/etc/team", "/scratch"} <= {m["mountPath"] for m in container["volumeMounts"]}
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert requests == {**was["resources"]["requests"], "ephemeral-storage": "1Gi", "example.com/gpu": 1}
            assert limits == {
                **was["resources"]["limits"],
                "cpu": "4",
                "ephemeral-storage": "2Gi",
                "example.com/gpu": 1,
            }
        assert by_name(pod)["proxy"]["restartPolicy"] == "Always"
        assert restricted(pod) == ["writable root"] * 2, "of containers of the job's own"


def test_a_template_stays_as_it_was_written() -> None:
    """The spec in memory decides about revisions of pods."""
    document, job = made(BOTH)
    before = job.model_dump(mode="json")
    pods.driver(document, job, RELEASE, {})
    pods.worker(document, job, RELEASE, 0, {})
    assert job.model_dump(mode="json") == before


def test_containers_of_the_job_get_no_token_of_the_account() -> None:
    """A driver has a token for its journal; Kubernetes mounts it where no other mount is."""
    extra, found = ("fetch", "proxy"), by_name(driver(BOTH))
    for name in extra:
        assert mount(shaping.ACCOUNT, shaping.NO_ACCOUNT, readOnly=True) in found[name]["volumeMounts"]
    assert not any(m["mountPath"] == shaping.ACCOUNT for m in found["driver"]["volumeMounts"])
    assert not any(v["name"] == shaping.NO_ACCOUNT for v in worker(BOTH)["spec"]["volumes"]), "no token, no cover"


def test_variables_come_to_all_processes_of_the_job_and_to_nothing_that_runs_as_root() -> None:
    given = {"env": ENV, "stateVolume": {"medium": "hostPath", "path": "/srv/state"}}
    for pod in (driver(given), worker(given)):
        for name, one in by_name(pod).items():
            assert (one.get("env", [])[-len(ENV) :] == ENV) is (name != "state-owner")


def test_a_job_without_templates_has_the_pods_that_it_had() -> None:
    for builder in (driver, worker):
        assert builder({"env": [], "driverPodTemplate": {}, "workerPodTemplate": {"spec": {}}}) == builder({})


def test_the_place_holder_of_a_driver_has_its_place_and_none_of_its_containers() -> None:
    document, one = made(BOTH)
    pod = pods.placeholder(document, one, RELEASE, "r", {})
    assert [*by_name(pod)] == ["placeholder"] and pod["spec"]["priorityClassName"] == "streams"
    assert by_name(pod)["placeholder"]["resources"]["limits"]["example.com/gpu"] == 1


def test_names_of_ferrys_volumes_and_containers_are_those_that_templates_may_not_have() -> None:
    everything = {
        "volumes": [{"name": "data", "mountPath": "/data", "claim": "inputs"}],
        "stateVolume": {"medium": "hostPath", "path": "/srv/state"},
    }
    document, one = made(everything)
    for pod in (driver(everything), worker(everything), pods.placeholder(document, one, RELEASE, "r", {})):
        assert {*by_name(pod)} <= {*FERRY_CONTAINERS}
        for volume in pod["spec"]["volumes"]:
            assert volume["name"] in FERRY_VOLUMES or volume["name"].startswith(VOLUME_PREFIXES)


def test_annotations_of_a_job_are_inherited_by_an_allow_list() -> None:
    document = templates.job({})
    document["metadata"] |= {
        "uid": UID, "namespace": "jobs",
        "annotations": {"team": "a", "other": "b", "ferry.dev/paused": "true", "kubectl.kubernetes.io/last": "{}"},
    }  # fmt: skip
    job = spec.check(document)
    for patterns, expected in (((), {}), (("team",), {"team": "a"}), (("*",), {"team": "a", "other": "b"})):
        release = replace(RELEASE, allow=Allowed(annotations=patterns))
        for pod in (pods.driver(document, job, release, {}), pods.worker(document, job, release, 0, {})):
            assert pod["metadata"]["annotations"] == expected


def test_a_sidecar_with_huge_pages_requests_them_and_its_instances_are_told() -> None:
    section = {"sidecar": {"hugePages": "8Mi"}}
    for name, shaped in by_name(worker(section)).items():
        mine = {"hugepages-2Mi": "8Mi"} if name == "sidecar" else {}
        for kind in ("requests", "limits"):
            assert shaped["resources"][kind].get("hugepages-2Mi") == mine.get("hugepages-2Mi")
    assert "hugepages" not in str(driver(section)) and "hugepages" not in str(worker({}))
    settings = settings_of(made(section)[1], JobMemory(uid=UID), RELEASE)
    assert settings.transport.huge_bytes == 8 << 20
    assert settings_of(made({})[1], JobMemory(uid=UID), RELEASE).transport.huge_bytes == 0
    for wrong, text in (("3Mi", "multiple of 2Mi"), ("1Mi", "must be 0 or at least")):
        with pytest.raises(SpecRefused, match=text):
            made({"sidecar": {"hugePages": wrong}})
    also = templates.container("sidecar", resources={"limits": {"hugepages-2Mi": "2Mi"}})
    with pytest.raises(SpecRefused, match=r"is also in .sidecar\.hugePages"):
        made({**section, "workerPodTemplate": also})
    before, now = made({})[1].spec, made(section)[1].spec
    assert worker_fits(now, before) and not worker_fits(before, now), "a node with free huge pages is another place"


# The fence


def said(allow: Allowed, section: Doc) -> str:
    try:
        check(made(section)[1], allow, DEFAULTS)
    except SpecRefused as error:
        return str(error)
    return ""


def test_all_kinds_of_names_are_allowed_by_the_chart() -> None:
    assert said(ALLOW, BOTH) == ""


VALUES = [
    "labels",
    "annotations",
    "priorityClasses",
    "runtimeClasses",
    "schedulers",
    "tokenAudiences",
    "csiDrivers",
    "devices",
]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", ["driverPodTemplate", "workerPodTemplate"])
def test_each_name_needs_its_value_of_the_chart(value: str, field: str) -> None:
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in value)
    without = ALLOW.model_copy(update={snake: ()})
    refusal = said(without, {field: BOTH[field]})
    assert f"jobs.allow.{value}" in refusal and refusal.startswith(f"spec.kubernetes.{field}.")


PROJECTED = [{"secret": {"name": "bucket"}}]


def audience(text: str) -> Doc:
    source = {"serviceAccountToken": {"audience": text, "path": "t"}}
    return in_pod(volumes=[{"name": "v", "projected": {"sources": [source]}}])


def further(**fields: Any) -> Doc:
    return in_pod(initContainers=[{"name": "x", "image": "x", **fields}])


def reads(kind: str, name: str) -> list[Doc]:
    return [{"name": "A", "valueFrom": {kind: {"name": name, "key": "k"}}}]


@pytest.mark.parametrize(
    ("template", "allow", "text"),
    [
        (
            in_pod(volumes=[{"name": "v", "secret": {"secretName": "bucket"}}]),
            {},
            "spec.volumes.v.secret: no job may read",
        ),
        (in_pod(volumes=[{"name": "v", "projected": {"sources": PROJECTED}}]), {}, "jobs.allow.secrets"),
        (in_pod(imagePullSecrets=[{"name": "bucket"}]), {}, "jobs.allow.secrets"),
        (container(env=reads("secretKeyRef", "bucket")), {}, "spec.containers.driver.env.A: no job may read"),
        (container(envFrom=[{"secretRef": {"name": "bucket"}}]), {}, "jobs.allow.secrets"),
        (further(env=reads("secretKeyRef", "bucket")), {}, "spec.initContainers.x.env.A: no job may read"),
        (further(envFrom=[{"secretRef": {"name": "bucket"}}]), {}, "jobs.allow.secrets"),
        (in_pod(volumes=[{"name": "v", "secret": {"secretName": "a-run"}}]), {"secrets": ("*",)}, "belongs to Ferry"),
        (in_pod(volumes=[{"name": "v", "secret": {"secretName": "mine"}}]), {"secrets": ("*",)}, "belongs to Ferry"),
        (further(env=reads("secretKeyRef", "ferry-operator")), {"secrets": ("*",)}, "belongs to Ferry"),
        (in_pod(volumes=[{"name": "v", "configMap": {"name": "c"}}]), {"config_maps": ("a",)}, "jobs.allow.configMaps"),
        (container(env=reads("configMapKeyRef", "c")), {"config_maps": ("a",)}, "jobs.allow.configMaps"),
        (container(envFrom=[{"configMapRef": {"name": "c"}}]), {"config_maps": ("a",)}, "jobs.allow.configMaps"),
        (in_pod(volumes=[VOLUMES[5]]), {"claims": ("a",)}, "persistentVolumeClaim: no job may mount 'inputs'"),
        (in_pod(volumes=[VOLUMES[4]]), {"claims": ("a",)}, "ephemeral: no job may mount 'a-driver-large'"),
        (
            in_pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "disk"}}]),
            {"claims": ("*",)},
            "belongs to Ferry",
        ),
        (
            in_pod(volumes=[{"name": "v", "hostPath": {"path": "/etc", "type": "Directory"}}]),
            {},
            "jobs.allow.hostPaths",
        ),
        (further(), {"images": ("y",)}, "spec.initContainers.x.image: no job may run 'x'"),
        (in_pod(priorityClassName="system-node-critical"), {"priority_classes": ("*",)}, "is for pods of the cluster"),
        (in_pod(tolerations=[{"operator": "Exists"}]), {"taints": ("team/*",)}, "every taint"),
        (in_pod(affinity=EVERYWHERE), {}, "no job may select pods of other namespaces"),
        (audience("sts"), {"token_audiences": ("vault",)}, "a token for 'sts'"),
        (audience("https://kubernetes.default.svc"), {"token_audiences": ("*",)}, "jobs.allow.tokenAudiences"),
        (audience("kubernetes.default.svc"), {"token_audiences": ("*",)}, "jobs.allow.tokenAudiences"),
    ],
)
def test_names_of_others_are_refused(template: Doc, allow: Doc, text: str) -> None:
    allowed = Allowed(**{"images": ("x",), "own": ALLOW.own, **allow})
    refusal = said(allowed, {"driverPodTemplate": template})
    assert refusal.startswith("spec.kubernetes.driverPodTemplate.") and text in refusal


def test_the_short_form_of_variables_is_within_the_fence() -> None:
    assert "spec.kubernetes.env.A: no job may read the Secret 'bucket'" in said(
        ALLOW, {"env": reads("secretKeyRef", "bucket")}
    )
    without = Allowed(config_maps=())
    assert "spec.kubernetes.env.A: no job may read the ConfigMap 'c'" in said(
        without, {"env": reads("configMapKeyRef", "c")}
    )


def test_a_directory_and_the_audience_of_the_api_server_can_be_allowed_by_name() -> None:
    volume = in_pod(volumes=[{"name": "v", "hostPath": {"path": "/mnt/in", "type": "Directory"}}])
    assert said(Allowed(host_paths=("/mnt",)), {"driverPodTemplate": volume}) == ""
    api = "https://kubernetes.default.svc"
    assert said(Allowed(token_audiences=(api,)), {"driverPodTemplate": audience(api)}) == ""


def test_the_examples_of_the_document_are_merged_and_need_what_it_says() -> None:
    short, long = (
        yaml.safe_load(block.text)["spec"]["kubernetes"] for block in blocks(PODS) if block.language == "yaml"
    )
    needed = Allowed(
        labels=("team",), annotations=("example.com/*",), priority_classes=("streams",), token_audiences=("vault",)
    )
    assert said(needed, short) == said(needed, long) == ""
    assert set(re.findall(r"jobs\.allow\.(\w+)", said(Allowed(), long))) == {
        "labels", "annotations", "priorityClasses", "tokenAudiences",
    }  # fmt: skip
    executor = by_name(worker(long))["executor"]
    assert (
        executor["resources"]["limits"]["cpu"] == "4"
        and mount("/etc/sales", "sales", readOnly=True) in executor["volumeMounts"]
    )
    text = PODS.read_text("utf-8")
    missing = [name for name in (*SOURCES, *POD_FIELDS) if f"`{name}`" not in text and f"`{name}[]`" not in text]
    assert missing == [], "fields that the page does not name"
    allow = {field.alias for field in Allowed.model_fields.values()} - {
        "own",
        "hostNetwork",
        "networks",
        "users",
        "serviceAccounts",
    }
    assert set(re.findall(r"jobs\.allow\.(\w+)", text)) == allow


def test_nothing_is_made_for_a_template_that_is_refused() -> None:
    for template, text in (
        ({"spec": {"hostPID": True}}, "spec.hostPID"),
        (in_pod(priorityClassName="x"), "priorityClasses"),
    ):
        world = World()
        document = copy.deepcopy(templates.job({"workerPodTemplate": template}))
        world.api.create(JOBS, {**document, "metadata": {"name": "nbq5", "annotations": {}}})
        world.rounds(5)
        assert world.pods() == [] and text in world.condition("Degraded")["message"]


# A change of a template


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({"driverPodTemplate": container(env=ENV[:1])}, {"nbq5-driver"}),
        ({"workerPodTemplate": container("sidecar", env=ENV[:1])}, {"nbq5-worker-0", "nbq5-worker-1"}),
        ({"env": ENV[:1]}, {"nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"}),
    ],
)
def test_a_change_replaces_the_pods_that_have_the_template(change: Doc, replaced: set[str]) -> None:
    world = running()
    world.rounds(5)
    before = uids(world)
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": change}})
    world.rounds(120)
    world.until(settled)
    now = uids(world)
    assert {name for name in before if now[name] != before[name]} == replaced
    for name in replaced:
        assert any(ENV[0] in c["env"] for c in by_name(world.pod(name)).values())


def test_a_template_that_is_refused_leaves_the_job_as_it_was() -> None:
    world = running()
    world.rounds(5)
    before = uids(world)
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"workerPodTemplate": in_pod(schedulerName="mine")}}})
    world.rounds(60)
    told = world.condition("Degraded")
    assert uids(world) == before and told["reason"] == "SpecRefused" and "jobs.allow.schedulers" in told["message"]


# What no template changes

ANY: dict[str, list[Any]] = {
    "image": ["evil"], "command": [["sh"]], "args": [["-c"]], "securityContext": [{"privileged": True}, {}],
    "hostNetwork": [True], "hostPID": [True], "hostIPC": [True], "hostUsers": [False], "serviceAccountName": ["admin"],
    "automountServiceAccountToken": [True], "name": ["driver", "sidecar", "executor", "state-owner", "x", "settings", "run"],
    "restartPolicy": ["Always", "Never"], "env": [ENV, [{"name": "FERRY_HOST", "value": "x"}]],
    "volumeMounts": [[mount("/etc/ferry")], [mount("/x", "settings")], [mount("/x")]],
    "volumes": [VOLUMES, [{"name": "v", "emptyDir": {}}], [{"name": "run", "emptyDir": {}}]],
    "resources": [{"limits": {"cpu": 8}}, {"limits": {"memory": "9Gi"}}, {"requests": {"cpu": "1m"}}],
    "labels": [{"ferry.dev/role": "x"}, {"team": "x"}], "annotations": [{"ferry.dev/revision": "x"}, {"team": "x"}],
    "nodeName": ["n"], "priorityClassName": ["streams"], "tolerations": [[{"operator": "Exists"}]], "lifecycle": [{}],
    "ownerReferences": [[]], "namespace": ["kube-system"], "shareProcessNamespace": [True], "$patch": ["delete", "replace"],
    "$setElementOrder/containers": [[]], "terminationGracePeriodSeconds": [0], "initContainers": [None, []],
    "nodeSelector": [{"a": "b"}, None],
}  # fmt: skip
"""Values of fields that a user may try, anywhere."""


def random_template(chance: random.Random) -> Doc:
    """Few fields, so that some templates are accepted."""

    def fields(most: int) -> Doc:
        chosen = chance.sample(sorted(ANY), chance.randint(0, most))
        return {name: chance.choice(ANY[name]) for name in chosen}

    def many(most: int) -> list[Doc]:
        return [{"name": chance.choice(ANY["name"]), **fields(1)} for _ in range(chance.randint(0, most))]

    inside = fields(2)
    if chance.random() < 0.6:
        inside["containers"] = many(2)
    if chance.random() < 0.4:
        inside["initContainers"] = [{"image": "x", **one} for one in many(2)]
    metadata = fields(1) if chance.random() < 0.3 else {}
    return copy.deepcopy({"metadata": metadata, "spec": inside})


FIXED_FIELDS = ("hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace", "serviceAccountName", "nodeName",
              "automountServiceAccountToken", "securityContext", "restartPolicy", "terminationGracePeriodSeconds")  # fmt: skip
CONTAINER_FIELDS = ("image", "imagePullPolicy", "command", "args", "securityContext", "ports", "readinessProbe",
                    "startupProbe", "livenessProbe", "lifecycle", "restartPolicy", "terminationMessagePolicy")  # fmt: skip


def parts(fields: tuple[str, ...], whole: Doc) -> Doc:
    return {name: whole.get(name) for name in fields}


def changed(pod: Doc, plain: Doc) -> list[str]:
    """What a template has changed of a pod, and may not."""
    wrong = [] if parts(FIXED_FIELDS, pod["spec"]) == parts(FIXED_FIELDS, plain["spec"]) else ["pod"]
    for kind in ("name", "namespace", "ownerReferences"):
        wrong += [] if pod["metadata"].get(kind) == plain["metadata"].get(kind) else [kind]
    for kind in ("labels", "annotations"):
        wrong += [] if plain["metadata"][kind].items() <= pod["metadata"][kind].items() else [kind]
    now, before = by_name(pod), by_name(plain)
    for name, was in before.items():
        one = now[name]
        wrong += [] if parts(CONTAINER_FIELDS, one) == parts(CONTAINER_FIELDS, was) else [name]
        wrong += [] if one["env"][: len(was["env"])] == was["env"] else [f"env of {name}"]
        variables = [e["name"] for e in one["env"]]
        wrong += [] if len({*variables}) == len(variables) else [f"variables of {name}"]
        wrong += [] if one["volumeMounts"][: len(was["volumeMounts"])] == was["volumeMounts"] else [f"mounts of {name}"]
        for kind in ("requests", "limits"):
            wrong += [] if was["resources"][kind].items() <= one["resources"][kind].items() else [f"{kind} of {name}"]
    wrong += [] if pod["spec"]["volumes"][: len(plain["spec"]["volumes"])] == plain["spec"]["volumes"] else ["volumes"]
    found = [v["name"] for v in pod["spec"]["volumes"]]
    wrong += [] if len({*found}) == len(found) else ["names of volumes"]
    wrong += [f"security of {n}" for n in now.keys() - before.keys() if now[n]["securityContext"] != shaping.RESTRICTED]
    return wrong


def test_no_template_that_is_accepted_changes_what_is_of_ferry() -> None:
    accepted, plain = 0, {"driver": driver({}), "worker": worker({})}
    for seed in range(4000):
        template = random_template(random.Random(seed))
        for role, build in (("driver", driver), ("worker", worker)):
            try:
                pod = build({f"{role}PodTemplate": template})
            except SpecRefused:
                continue
            accepted += 1
            assert changed(pod, plain[role]) == [], (seed, template)
    assert accepted > 200, "or nothing was tried"


# Whether a changed pod has the place of the pod before it


def test_a_template_that_asks_a_node_for_more_needs_another_place() -> None:
    def fits(old: Doc | None, new: Doc | None) -> tuple[bool, bool]:
        before, now = (
            made({} if t is None else {"driverPodTemplate": t, "workerPodTemplate": t})[1].spec for t in (old, new)
        )
        return driver_fits(before, now), worker_fits(before, now)

    plain = {"metadata": {"annotations": {"a": "b"}}, **in_pod(imagePullSecrets=[{"name": "x"}])}
    assert fits(None, plain) == fits(plain, None) == (True, True)
    for field in ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName",
                  "runtimeClassName", "schedulerName"):  # fmt: skip
        assert fits(None, in_pod(**{field: DRIVER["spec"][field]})) == (False, False), field
    for volume in VOLUMES:
        small = volume["name"] in ("settings-of-us", "password", "token", "scratch")
        assert fits(None, in_pod(volumes=[volume])) == (small, small), volume["name"]
    assert fits(None, further(resources={"requests": {"cpu": 1}})) == (False, False)
    assert fits(None, further()) == (False, False), "a further container asks for a little"
