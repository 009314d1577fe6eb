"""Secrets in the arguments of sources and sinks: references "${NAME}", which the process that connects resolves.

Must never store or show a secret: `masked` removes secrets from the texts of libraries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, quote

from ferry import environment
from ferry.contract.errors import SpecRefused

SECRET = re.compile(
    r"password|passwd|secret|token|credential|authori[sz]ation|bearer|cookie|signature|api[-_.]?key|sas|"
    r"(account|private|session)[-_.]?key|(^|[-_.])(auth|pass|pwd|sig)$",
    re.IGNORECASE,
)
"""Names of options and headers with secret values."""


VALUE = re.compile(rf"(\b\w*(?:{SECRET.pattern})\w*\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
"""A secret in a text such as "host=db password=..."."""

LOGIN = re.compile(r"[^/@\s]*@")
"""A login in an address, such as "user:password@"."""


def require_references(options: Mapping[str, Any] | None, place: str) -> dict[str, str]:
    """The options. Raises SpecRefused for a name or value that is not a text, and for a secret in plain text."""
    if not isinstance(options, Mapping | None):
        raise SpecRefused(f"{place} is a dictionary of texts, not {type(options).__name__}")
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SpecRefused(f"{place} {name!r}: names and values are texts, not {type(value).__name__}")
        if SECRET.search(name) and not environment.REFERENCE.search(value):
            raise SpecRefused(
                f"{place} {name!r} is a secret: give the name of an environment variable, {name!r}: '${{NAME}}'"
            )
    return dict(options or {})


def require_no_login(url: str, place: str) -> None:
    """Raise SpecRefused for a password in plain text in a URL, also in its query string."""
    require_references(dict(parse_qsl(url.partition("?")[2])), f"{place}: parameter")
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    if ":" in login and not environment.is_reference(login.partition(":")[2]):
        raise SpecRefused(
            f"{place}: the password in the URL is a secret: give the name of an environment variable, ${{NAME}}"
        )


def filled(options: Mapping[str, str]) -> dict[str, str]:
    """The options with their references resolved. Raises SpecRefused if a variable is not set."""
    return {name: filled_url(value) if "://" in value else environment.filled(value) for name, value in options.items()}


def filled_url(url: str) -> str:
    """The URL with its references resolved. Values in a login are percent-encoded."""
    if environment.is_reference(url):
        return str(environment.filled(url))
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    login = environment.REFERENCE.sub(lambda match: quote(environment.filled(match[0]), safe=":"), login)
    return scheme + separator + login + at + str(environment.filled(host))


def shown_url(url: str) -> str:
    """The URL without its login and its query string, which may hold secrets."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}".partition("?")[0] if separator else url


def shown_place(address: object) -> str:
    """A user's address, which may be invalid, without logins and secrets."""
    return LOGIN.sub("", VALUE.sub(r"\1...", shown_url(str(address))))


def masked(text: object, values: Iterable[str]) -> str:
    """The text with the secrets of these references replaced by their names, also in quoted or percent-encoded form."""
    words = str(text)
    for name in (match[0] for value in values for match in environment.REFERENCE.finditer(value)):
        with suppress(SpecRefused):  # The variable is not set, so its value cannot be in the text.
            if secret := environment.filled(name):
                plain = [secret, " ".join(secret.split()), repr(secret)[1:-1]]
                quoted = [quote(secret, safe=safe) for safe in (":", "/", "")]
                for written in filter(None, [*plain, *quoted]):
                    words = words.replace(written, name)
    return words
