"""`python -m ferry_operator.kube.definitions FOLDER`: applies the definitions of a chart, before an upgrade of the release.

A hook of the chart runs it, because Helm creates definitions and never changes them. A definition of a newer release stays:
a cluster has one for all releases of the chart, and an older one would drop fields that jobs have.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from ferry.contract.errors import Fault
from ferry_operator.crd.lacking import lacking
from ferry_operator.kube.api.client import DefinitionsClient
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import DEFINITIONS, FORBIDDEN, NOT_FOUND, ApiError, Definitions

ATTEMPTS, AGAIN_SECONDS = 5, 2.0
"""Attempts before the process ends."""

PATHS_MAX = 5
"""Fields in a message; it has the number of the others."""


class Diverged(Fault):
    """Neither of two definitions has all fields of the other one."""


def ensure(api: Definitions, definition: Doc) -> str:
    """Apply a definition unless the cluster has a newer one; returns what was done. Raises ApiError, Diverged."""
    name = str(definition["metadata"]["name"])
    present = api.get(DEFINITIONS, name)
    newer, older = lacking(definition, present), lacking(present, definition)
    if newer and older:
        raise Diverged(
            f"the definition {name} in the cluster has {_words(newer)}, and lacks {_words(older)}: neither is newer. "
            "Apply the right one (kubectl apply --server-side --force-conflicts -f FILE), and upgrade with "
            "definitions.upgrade=false"
        )
    if newer:
        return f"stays: it is of a newer release, and has {_words(newer)}"
    api.apply(DEFINITIONS, name, definition)
    return f"has now {_words(older)}" if older else "is up to date"


def reason(error: Fault) -> str:
    """Why a definition was not applied, and what to do, in one line."""
    text = str(error).replace("\n", " ")
    match error:
        case ApiError(status=0):
            return f"{text}: is the port of the API server in networkPolicies.apiServerPorts of the chart?"
        case ApiError(status=int(status)) if status == FORBIDDEN:
            return f"{text}: the ClusterRole of the hook is missing, or older than the chart"
        case ApiError(status=int(status)) if status == NOT_FOUND:
            return f"{text}: an administrator creates it (kubectl apply --server-side -f crds/)"
    return text


def main(arguments: Sequence[str]) -> int:
    """Apply all definitions of the folder; 1 when that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m ferry_operator.kube.definitions",
        description="Applies the definitions of a chart, unless the cluster has newer ones.",
    )
    parser.add_argument("folder", type=Path, help="with the definitions, as YAML")
    options = parser.parse_args(arguments)
    documents = [yaml.safe_load(file.read_text("utf-8")) for file in sorted(options.folder.glob("*.yaml"))]
    api = DefinitionsClient("", lambda *_: None)
    for attempt in range(ATTEMPTS):
        try:
            for document in documents:
                print(f"the definition {document['metadata']['name']} {ensure(api, document)}", flush=True)
            return 0 if documents else 1
        except (ApiError, Diverged) as error:
            print(f"the definitions are not applied: {reason(error)}", flush=True)
            if not (isinstance(error, ApiError) and error.is_transient) or attempt == ATTEMPTS - 1:
                return 1
            time.sleep(AGAIN_SECONDS)
    return 1


def _words(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - PATHS_MAX} more" if len(paths) > PATHS_MAX else ""
    return f"{', '.join(paths[:PATHS_MAX])}{more}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
