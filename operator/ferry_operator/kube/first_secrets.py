"""`python -m ferry_operator.kube.first_secrets --namespace N SECRET=ENTRY...`: creates the missing Secrets of a release.

It runs in every pod of the operator, before the operator. A Secret that exists only gets an entry that it lacks. Secrets
are created by a process and not by the chart, because a rendering of the chart must depend on its values alone.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from base64 import b64encode
from collections.abc import Sequence

from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.keys import FIRST, keys_of
from ferry_operator.kube.api.port import CONFLICT, FORBIDDEN, NOT_FOUND, SECRETS, Api, ApiError, tolerate

BYTES = 30
"""Random bytes of a value: 40 characters."""

ATTEMPTS, AGAIN_SECONDS = 5, 2.0
"""Attempts before the process ends; kubelet then starts it again."""

COMPONENT = "secrets"


def ensure(api: Api, name: str, entry: str, release: str) -> str:
    """Create the Secret with a random value of the entry, unless it exists; returns what was done. Raises ApiError."""
    try:
        known = api.get(SECRETS, name)
    except ApiError as error:
        tolerate(error, NOT_FOUND)
        try:
            api.create(SECRETS, _secret(name, entry, release))
            return "created"
        except ApiError as late:
            tolerate(late, CONFLICT)  # another replica was faster
            return ensure(api, name, entry, release)
    if (known.get("data") or {}).get(entry) or (entry == FIRST and keys_of(known)):
        return "exists"  # key 1 may have been retired
    try:
        version = known["metadata"]["resourceVersion"]
        api.patch(SECRETS, name, {"metadata": {"resourceVersion": version}, "data": {entry: _random()}})
        return f"has a new entry `{entry}`"
    except ApiError as error:
        tolerate(error, CONFLICT)
        return ensure(api, name, entry, release)


def reason(error: ApiError, namespace: str) -> str:
    """Why the Secrets cannot be created, and what to do, in one line."""
    text = str(error).replace("\n", " ")
    if error.status == 0:
        return (
            f"{text}: is the port of the API server in networkPolicies.apiServerPorts of the chart? "
            "`kubectl get endpoints kubernetes` shows the port"
        )
    if error.status == FORBIDDEN:
        return f"{text}: the Role of the operator in {namespace} is missing, or older than the chart"
    return text


def main(arguments: Sequence[str]) -> int:
    """Create all Secrets; 1 when that fails."""
    parser = argparse.ArgumentParser(
        prog="python -m ferry_operator.kube.first_secrets", description="Creates the Secrets of a release."
    )
    parser.add_argument("--namespace", required=True, help="the namespace of the release")
    parser.add_argument("--release", required=True, help="the name of the release, for a label")
    parser.add_argument("secrets", nargs="+", metavar="SECRET=ENTRY")
    options = parser.parse_args(arguments)
    api = KubeApi(options.namespace, lambda *_: None)
    for attempt in range(ATTEMPTS):
        try:
            for text in options.secrets:
                name, _, entry = text.partition("=")
                done = ensure(api, name, entry, options.release)
                print(f"the Secret {name} {'was created' if done == 'created' else done}", flush=True)
            return 0
        except ApiError as error:
            print(f"the Secrets of the release are not complete: {reason(error, options.namespace)}", flush=True)
            if not error.is_transient or attempt == ATTEMPTS - 1:
                return 1
            time.sleep(AGAIN_SECONDS)
    return 1


def _secret(name: str, entry: str, release: str) -> dict[str, object]:
    labels = {
        "app.kubernetes.io/name": "ferry",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": COMPONENT,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": "Opaque",
        "data": {entry: _random()},
    }


def _random() -> str:
    return b64encode(secrets.token_urlsafe(BYTES).encode()).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
