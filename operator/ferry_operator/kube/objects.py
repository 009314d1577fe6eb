"""The other objects of a job: the Secret with its settings, and the budget that lets nobody else empty a node."""

from __future__ import annotations

import json
from dataclasses import asdict

from ferry.contract.documents import RunSettings
from ferry_operator.kube import names, parts
from ferry_operator.kube.names import Doc

NEVER_BELOW = 100_000
"""More workers than there can be: no eviction is ever allowed, also while others stand in. A drain of a node waits until
the workers on it were emptied and have moved."""


def secret(job: Doc, settings: RunSettings) -> Doc:
    """The Secret with run.json."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, names.run_secret(job["metadata"]["name"])),
        "type": "Opaque",
        "stringData": {"run.json": json.dumps(asdict(settings), indent=1)},
    }


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
