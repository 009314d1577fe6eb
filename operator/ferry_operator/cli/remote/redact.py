"""Takes secrets out of what is handed on: values by the names that they have, and texts by what secrets look like.

Pure. It rather takes out too much; numbers and truth values stay, so that a fencing token can still be read.
"""

from __future__ import annotations

import json
import re
from typing import Any

GONE = "REDACTED"

_NAMED = r"passw(?:or)?d|passwd|secret|token|credential|api[-_.]?key|access[-_.]?key|private[-_.]?key|authorization"

_KEY = re.compile(rf"(?:{_NAMED})", re.IGNORECASE)
_VARIABLE = re.compile(rf"(?:{_NAMED}|(?:^|_)(?:auth|key|pass|pwd)(?:_|$))", re.IGNORECASE)

HARMLESS = ("secretName", "ferry.dev/token", "tokenExpirationSeconds", "resourceVersion")
"""Keys that look like a secret's and name one at most."""

_TEXTS = (
    (re.compile(r"(?<=://)[^/\s@]+@"), f"{GONE}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {GONE}"),
    (re.compile(rf"(?i)([\w.-]*(?:{_NAMED})[\w.-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;}}&\"']+)"), rf"\1{GONE}"),
    (re.compile(r"(?i)((?<![a-z])key\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s,;}&\"']+)"), rf"\1{GONE}"),
    (re.compile(r"(?i)(--?[\w.-]*(?:passw(?:or)?d|secret|token|credential)[\w.-]*\s+)(\S+)"), rf"\1{GONE}"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), GONE),
    (re.compile(r"(?<!sha256:)(?<!//)\b[0-9a-fA-F]{40,}\b"), GONE),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
)
"""Addresses with a password, headers, assignments, arguments, JSON web tokens, keys of runs, private keys."""


def text(one: str) -> str:
    """A text without what looks like a secret."""
    for pattern, instead in _TEXTS:
        one = pattern.sub(instead, one)
    return one


def value(one: Any) -> Any:
    """A document of the API without secrets, and without the book-keeping of who wrote which field."""
    if isinstance(one, dict):
        hidden = _is_variable(one) and _VARIABLE.search(str(one["name"])) is not None
        return {
            key: GONE if (hidden and key == "value") or _hides(key, below) else value(below)
            for key, below in one.items()
            if key != "managedFields"
        }
    if isinstance(one, list):
        return _arguments(one)
    return _text(one) if isinstance(one, str) else one


def _is_variable(one: dict[str, Any]) -> bool:
    return isinstance(one.get("name"), str) and isinstance(one.get("value"), str)


def _hides(key: Any, below: Any) -> bool:
    return isinstance(below, str) and key not in HARMLESS and _KEY.search(str(key)) is not None


def _arguments(items: list[Any]) -> list[Any]:
    """Items of a list; one that follows `--password` is its value."""
    found, hide = [], False
    for one in items:
        found.append(GONE if hide and isinstance(one, str) else value(one))
        hide = isinstance(one, str) and one.startswith("-") and "=" not in one and _KEY.search(one) is not None
    return found


def _text(one: str) -> str:
    """A text; one that is a document itself, such as an annotation that keeps a spec, by the names in it."""
    if one.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(value(json.loads(one)), separators=(",", ":"))
        except ValueError:
            pass
    return text(one)
