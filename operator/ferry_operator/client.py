"""Asks the supervisor of a live run, from another terminal. Knows HTTP and the registry, nothing of the job."""

from __future__ import annotations

from typing import Any

import httpx

from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry_operator.registry import Entry


def ask(entry: Entry, method: str, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request; raises SpecRefused with the supervisor's reason, or Unreachable."""
    headers = {"Authorization": f"Bearer {entry.token}"}
    try:
        answer = httpx.request(method, entry.url + path, json=document, headers=headers, timeout=30.0, trust_env=False)
    except httpx.HTTPError as error:
        raise Unreachable(f"{entry.name}: its supervisor (process {entry.pid}) does not answer: {error}") from None
    if answer.status_code == 409:
        raise Refusal(f"{entry.name}: {answer.json()['reason']}")
    if answer.status_code == 422:
        raise SpecRefused(f"{entry.name}: the request was not understood: {answer.text}")
    if not answer.is_success:
        raise Unreachable(f"{entry.name}: {answer.status_code} {answer.text}")
    found: dict[str, Any] = answer.json()
    return found
