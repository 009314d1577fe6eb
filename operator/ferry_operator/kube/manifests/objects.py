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

NEVER_BELOW = 100_000
"""More than the maximum of workers: the budget forbids every eviction, even beside surge workers. `kubectl drain` of a node
waits until the operator has drained the workers on it and moved their pods."""


def secret(job: Doc, settings: RunSettings) -> Doc:
    """The Secret with run.json."""
    text = json.dumps(asdict(settings), indent=1)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, names.run_secret(job["metadata"]["name"])),
        "type": "Opaque",
        "data": {"run.json": b64encode(text.encode()).decode()},
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


def budget(job: Doc) -> Doc:
    """The PodDisruptionBudget of the workers."""
    name = job["metadata"]["name"]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(job, names.budget(name)),
        "spec": {
            "minAvailable": NEVER_BELOW,
            "selector": {"matchLabels": {names.JOB: name, names.ROLE: names.WORKER_ROLE}},
        },
    }


def _metadata(job: Doc, name: str) -> Doc:
    return {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": {names.MANAGED: names.MANAGER, names.JOB: job["metadata"]["name"]},
        "ownerReferences": [parts.owner(job)],
    }
