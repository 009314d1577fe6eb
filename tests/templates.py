"""Templates of pods with every kind of field, and parts of templates."""

from __future__ import annotations

from typing import Any

Template = dict[str, Any]


def job(section: Template) -> Template:
    """A job with this section of `spec.kubernetes`."""
    return {
        "apiVersion": "ferry.dev/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": "a"},
        "spec": {"pipeline": {"module": "jobs.a"}, "workers": 2, "kubernetes": section},
    }


def in_pod(**fields: Any) -> Template:
    """A template with fields of the pod."""
    return {"spec": fields}


def container(name: str = "driver", **fields: Any) -> Template:
    """A template with one container of Ferry."""
    return in_pod(containers=[{"name": name, **fields}])


def mount(path: str, name: str = "v", **more: Any) -> Template:
    """A mount of a volume."""
    return {"name": name, "mountPath": path, **more}


VOLUMES: list[Template] = [
    {"name": "settings-of-us", "configMap": {"name": "settings", "items": [{"key": "a", "path": "b"}]}},
    {"name": "password", "secret": {"secretName": "for-jobs-password", "defaultMode": 0o440}},
    {
        "name": "token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"audience": "vault", "expirationSeconds": 3600, "path": "token"}},
                {"configMap": {"name": "settings"}},
                {"secret": {"name": "for-jobs-password"}},
                {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ]
        },
    },
    {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    {"name": "large", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}}}},
    {"name": "inputs", "persistentVolumeClaim": {"claimName": "inputs", "readOnly": True}},
    {"name": "secrets-store", "csi": {"driver": "secrets.example.com", "readOnly": True,
                                      "volumeAttributes": {"provider": "vault"}}},
]  # fmt: skip

ENV: list[Template] = [
    {"name": "TEAM", "value": "streams"},
    {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "for-jobs-password", "key": "password"}}},
    {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "region", "optional": True}}},
    {"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}},
    {"name": "HEAP", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
]


def _ferrys(name: str) -> Template:
    return {
        "name": name,
        "env": ENV,
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "SET_"}, {"secretRef": {"name": "for-jobs-a"}}],
        "volumeMounts": [
            mount("/etc/team", "settings-of-us", readOnly=True),
            mount("/var/run/secrets/vault", "token", readOnly=True),
            mount("/scratch", "scratch", subPath="here"),
        ],
        "resources": {
            "requests": {"ephemeral-storage": "1Gi"},
            "limits": {"cpu": "4", "ephemeral-storage": "2Gi", "example.com/gpu": 1},
        },
    }


def _template(*containers: str) -> Template:
    return {
        "metadata": {"labels": {"team": "streams"}, "annotations": {"example.com/scrape": "yes"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["jobs"]}]}]}}},
            "tolerations": [{"key": "jobs", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "priorityClassName": "streams",
            "runtimeClassName": "sandboxed",
            "schedulerName": "binpack",
            "imagePullSecrets": [{"name": "for-jobs-registry"}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}], "searches": ["example.com"]},
            "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["broker.example.com"]}],
            "volumes": VOLUMES,
            "initContainers": [
                {"name": "fetch", "image": "registry.example.com/fetch:1", "command": ["fetch"], "args": ["/scratch"],
                 "volumeMounts": [mount("/scratch", "scratch")]},
                {"name": "proxy", "image": "registry.example.com/proxy:1", "restartPolicy": "Always",
                 "ports": [{"name": "proxy", "containerPort": 15001}],
                 "startupProbe": {"tcpSocket": {"port": "proxy"}, "periodSeconds": 1},
                 "env": [{"name": "MODE", "value": "quiet"}],
                 "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}}},
            ],
            "containers": [_ferrys(name) for name in containers],
        },
    }  # fmt: skip


DRIVER, WORKER = _template("driver"), _template("executor", "sidecar")
"""Every kind of field."""

ALLOW: Template = {
    "labels": ["team"], "annotations": ["example.com/*"], "priorityClasses": ["streams"], "runtimeClasses": ["sandboxed"],
    "schedulers": ["binpack"], "tokenAudiences": ["vault"], "csiDrivers": ["secrets.example.com"],
    "devices": ["example.com/gpu"],
}  # fmt: skip
"""What `jobs.allow` needs for them."""
