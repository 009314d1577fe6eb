"""Secrets in what a user gives to a source or a sink: named, as "${NAME}", and put in by the process that uses them.

Must never hold one, nor show one: `masked` takes them out of the words of a library.
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
"""In names of options and headers whose values are secret."""


VALUE = re.compile(rf"(\b\w*(?:{SECRET.pattern})\w*\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
"""A secret among words, as in "host=db password=..."."""

LOGIN = re.compile(r"[^/@\s]*@")


def require_references(options: Mapping[str, Any] | None, what: str) -> dict[str, str]:
    """Names and values, as texts. Raises SpecRefused for what is none, or a secret that is written down."""
    if not isinstance(options, Mapping | None):
        raise SpecRefused(f"{what} is a dictionary of texts, not {type(options).__name__}")
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SpecRefused(f"{what} {name!r}: names and values are texts, {type(value).__name__} is none")
        if SECRET.search(name) and not environment.REFERENCE.search(value):
            raise SpecRefused(
                f"{what} {name!r} is a secret: give the name of an environment variable, {name!r}: '${{NAME}}'"
            )
    return dict(options or {})


def require_no_login(url: str, what: str) -> None:
    """Raises SpecRefused for a password that is written in a URL, or a secret behind its question mark."""
    require_references(dict(parse_qsl(url.partition("?")[2])), f"{what}: parameter")
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    if ":" in login and not environment.is_reference(login.partition(":")[2]):
        raise SpecRefused(
            f"{what}: the password in the URL is a secret: give the name of an environment variable, ${{NAME}}"
        )


def filled(options: Mapping[str, str]) -> dict[str, str]:
    """With the variables that values name put in. Raises SpecRefused when one is not set."""
    return {name: filled_url(value) if "://" in value else environment.filled(value) for name, value in options.items()}


def filled_url(url: str) -> str:
    """With the variables put in; in a login so that every character is one of the login."""
    if environment.is_reference(url):
        return str(environment.filled(url))
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    login = environment.REFERENCE.sub(lambda found: quote(environment.filled(found[0]), safe=":"), login)
    return scheme + separator + login + at + str(environment.filled(host))


def shown_url(url: str) -> str:
    """Without what may be secret in it: a login, and what stands behind a question mark."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}".partition("?")[0] if separator else url


def shown_place(given: object) -> str:
    """An address as a user wrote it, without logins and secrets. It may be a wrong address."""
    return LOGIN.sub("", VALUE.sub(r"\1...", shown_url(str(given))))


def masked(text: object, given: Iterable[str]) -> str:
    """The text, without the values of variables that these name, as they are, or as lines, Python and URLs have them."""
    words = str(text)
    for name in (found[0] for value in given for found in environment.REFERENCE.finditer(value)):
        with suppress(SpecRefused):  # not set: nothing of it can be in the text
            if secret := environment.filled(name):
                plain = [secret, " ".join(secret.split()), repr(secret)[1:-1]]
                quoted = [quote(secret, safe=safe) for safe in (":", "/", "")]
                for written in filter(None, [*plain, *quoted]):
                    words = words.replace(written, name)
    return words
