"""The keys of the installation: the entries `key`, `key2`, `key3` and so on of one Secret, numbered from 1.

New runs take the key with the highest number. A run keeps its key to its end, so a further key disturbs no job.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping

from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import NOT_FOUND, SECRETS, UNFIT, Api, ApiError, tolerate

FIRST = "key"
"""The entry of key 1."""

ENTRY = re.compile(r"key([2-9]|[1-9][0-9]{1,3})?")


def read_keys(api: Api, secret: str) -> Mapping[int, str]:
    """All keys by number, from this Secret. Raises ApiError, also when the Secret has no key: UNFIT, because NOT_FOUND is
    the answer of an API server without a definition of StreamJob."""
    try:
        if keys := keys_of(api.get(SECRETS, secret)):
            return keys
        lacks = f"has no entry `{FIRST}`"
    except ApiError as error:
        tolerate(error, NOT_FOUND)
        lacks = "does not exist"
    raise ApiError(
        UNFIT, "NoKey", f"the Secret {secret} {lacks}: put it back from a backup, jobs that run need their key"
    )


def entry_of(number: int) -> str:
    """The entry of the key with this number."""
    return FIRST if number == 1 else f"{FIRST}{number}"


def keys_of(secret: Doc) -> dict[int, str]:
    """All keys of the Secret by number; other entries and empty ones do not count."""
    keys = {}
    for entry, value in (secret.get("data") or {}).items():
        match = ENTRY.fullmatch(entry)
        if match and value:
            keys[int(match[1] or 1)] = b64decode(value).decode(errors="replace")
    return dict(sorted(keys.items()))
