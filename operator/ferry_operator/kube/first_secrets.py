"""`python -m ferry_operator.kube.first_secrets --namespace N SECRET=ENTRY...`: creates the missing Secrets of a release.

It runs in every pod of the operator, before the operator. A Secret that exists only gets entries that it lacks. Secrets
are created by a process and not by the chart, because a rendering of the chart must depend on its values alone.

`--certificate SECRET=HOST,HOST`: a Secret with a certificate for these names, and its authority, for a century. The entries
`tls.crt` and `tls.key` are issued again by the same authority when they are missing, or lack a name.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence

from ferry.contract import certificates
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.keys import FIRST, keys_of
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFLICT, FORBIDDEN, NOT_FOUND, SECRETS, Api, ApiError, tolerate

BYTES = 30
"""Random bytes of a value: 40 characters."""

ATTEMPTS, AGAIN_SECONDS = 5, 2.0
"""Attempts before the process ends; kubelet then starts it again."""

COMPONENT = "secrets"


AUTHORITY, CA, CERTIFICATE, KEY = "authority", "ca.crt", "tls.crt", "tls.key"
"""Entries of a Secret with a certificate: the source of the authority's key, and what clients and server need."""

Entries = Mapping[str, str]


def random_entry(entry: str) -> Callable[[Entries], Entries]:
    """The missing entry with a random value."""

    def missing(known: Entries) -> Entries:
        retired = entry == FIRST and keys_of({"data": known})  # key 1 may have been retired
        return {} if known.get(entry) or retired else {entry: secrets.token_urlsafe(BYTES)}

    return missing


def certificate(hosts: Sequence[str]) -> Callable[[Entries], Entries]:
    """The missing entries of a Secret with a certificate for these names."""

    def missing(known: Entries) -> Entries:
        plain = {entry: b64decode(value) for entry, value in known.items()}
        try:
            if KEY in plain and CA in plain and certificates.covers(plain[CERTIFICATE], hosts):
                return {}
        except (KeyError, ValueError):
            pass
        secret = plain[AUTHORITY].decode() if AUTHORITY in plain else secrets.token_urlsafe(BYTES)
        mine, authority = certificates.issue(secret, *hosts), certificates.authority(secret)
        issued = {CA: authority, CERTIFICATE: mine.certificate, KEY: mine.key}
        return {AUTHORITY: secret, **{entry: value.decode() for entry, value in issued.items()}}

    return missing


def ensure(api: Api, name: str, missing: Callable[[Entries], Entries], release: str) -> str:
    """Create the Secret, unless it exists with all entries; returns what was done. `missing`: the entries that a Secret with
    these entries, in base64, lacks. Raises ApiError."""
    try:
        known = api.get(SECRETS, name)
    except ApiError as error:
        tolerate(error, NOT_FOUND)
        try:
            api.create(SECRETS, _secret(name, missing({}), release))
            return "created"
        except ApiError as late:
            tolerate(late, CONFLICT)  # another replica was faster
            return ensure(api, name, missing, release)
    if not (lacks := missing(known.get("data") or {})):
        return "exists"
    try:
        version = known["metadata"]["resourceVersion"]
        api.patch(SECRETS, name, {"metadata": {"resourceVersion": version}, "data": _coded(lacks)})
        return f"has a new entry `{'`, `'.join(lacks)}`"
    except ApiError as error:
        tolerate(error, CONFLICT)
        return ensure(api, name, missing, release)


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
    parser.add_argument("--certificate", metavar="SECRET=HOST,HOST", help="a Secret with a certificate for these names")
    parser.add_argument("secrets", nargs="*", metavar="SECRET=ENTRY")
    options = parser.parse_args(arguments)
    wanted = {name: random_entry(entry) for name, _, entry in (text.partition("=") for text in options.secrets)}
    if options.certificate:
        name, _, hosts = options.certificate.partition("=")
        wanted[name] = certificate(hosts.split(","))
    api = KubeApi(options.namespace, lambda *_: None)
    for attempt in range(ATTEMPTS):
        try:
            for name, missing in wanted.items():
                done = ensure(api, name, missing, options.release)
                print(f"the Secret {name} {'was created' if done == 'created' else done}", flush=True)
            return 0
        except ApiError as error:
            print(f"the Secrets of the release are not complete: {reason(error, options.namespace)}", flush=True)
            if not error.is_transient or attempt == ATTEMPTS - 1:
                return 1
            time.sleep(AGAIN_SECONDS)
    return 1


def _secret(name: str, entries: Entries, release: str) -> Doc:
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
        "data": _coded(entries),
    }


def _coded(entries: Entries) -> dict[str, str]:
    return {entry: b64encode(value.encode()).decode() for entry, value in entries.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
