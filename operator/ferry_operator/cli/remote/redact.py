"""Removes secrets from documents and texts: values by their names, texts by patterns of secrets.

Pure. It removes too much rather than too little. Numbers and booleans stay, so that a fencing token can still be read.
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
"""Keys that look like the key of a secret, but hold at most its name."""

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


def text(original: str) -> str:
    """A text without parts that look like secrets."""
    redacted = original
    for pattern, instead in _TEXTS:
        redacted = pattern.sub(instead, redacted)
    return redacted


def value(node: Any) -> Any:
    """A document of the API without secrets and without `managedFields`."""
    if isinstance(node, dict):
        hidden = _is_variable(node) and _VARIABLE.search(str(node["name"])) is not None
        return {
            key: GONE if (hidden and key == "value") or _hides(key, below) else value(below)
            for key, below in node.items()
            if key != "managedFields"
        }
    if isinstance(node, list):
        return _arguments(node)
    return _text(node) if isinstance(node, str) else node


def _is_variable(node: dict[str, Any]) -> bool:
    return isinstance(node.get("name"), str) and isinstance(node.get("value"), str)


def _hides(key: Any, below: Any) -> bool:
    return isinstance(below, str) and key not in HARMLESS and _KEY.search(str(key)) is not None


def _arguments(items: list[Any]) -> list[Any]:
    """Items of a list; the item after an option such as `--password` is hidden."""
    redacted, hide = [], False
    for item in items:
        redacted.append(GONE if hide and isinstance(item, str) else value(item))
        hide = isinstance(item, str) and item.startswith("-") and "=" not in item and _KEY.search(item) is not None
    return redacted


def _text(original: str) -> str:
    """A text without secrets; a text that is itself JSON, such as an annotation with a spec, is redacted by its names."""
    if original.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(value(json.loads(original)), separators=(",", ":"))
        except ValueError:
            pass
    return text(original)
