"""The objects of a job beside its pods: the Secret with its settings, the budget against evictions, the journal."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import asdict

from ferry.contract import journals
from ferry.contract.settings import RunSettings
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests import parts


def secret(job: Doc, settings: RunSettings, token: str | None = None) -> Doc:
    """The Secret with run.json, and with the token of metrics where the Secret of the release is out of reach."""
    texts = {"run.json": json.dumps(asdict(settings), indent=1)}
    if token is not None:
        texts[names.METRICS_TOKEN] = token
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, names.run_secret(job["metadata"]["name"])),
        "type": "Opaque",
        "data": {entry: b64encode(text.encode()).decode() for entry, text in texts.items()},
    }


def replaced_data(job: Doc, document: Doc) -> list[Doc]:
    """The JSON patch that replaces the data of a Secret if this job owns it, without reading the Secret."""
    return [
        {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": job["metadata"]["uid"]},
        {"op": "add", "path": "/data", "value": document["data"]},
    ]


def journal(job: Doc, run: int) -> Doc:
    """The object for the journal of a run, written by drivers; garbage-collected with the job."""
    return {
        "apiVersion": f"{journals.GROUP}/{journals.VERSION}",
        "kind": journals.KIND,
        "metadata": _metadata(job, journal_name(job, run)),
        "spec": {},
    }


def journal_name(job: Doc, run: int) -> str:
    """Name of the journal of this run of the job."""
    return journals.name(job["metadata"]["name"], job["metadata"]["uid"], run)


def budget(job: Doc, minimum: int) -> Doc:
    """The PodDisruptionBudget of the workers that hold state, or may get state: of `minimum` pods, all of them.

    Not `maxUnavailable: 0`: that counts from the size of the job, and would allow an eviction while a surge worker runs.
    """
    name = job["metadata"]["name"]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(job, names.budget(name)),
        "spec": {
            "minAvailable": minimum,
            "selector": {
                "matchLabels": {names.JOB: name, names.ROLE: names.WORKER_ROLE},
                "matchExpressions": [{"key": names.MAY_LEAVE, "operator": "DoesNotExist"}],
            },
        },
    }


def _metadata(job: Doc, name: str) -> Doc:
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": {names.MANAGED: names.MANAGER, names.JOB: job["metadata"]["name"]},
        "ownerReferences": [parts.owner(job)],
    }
