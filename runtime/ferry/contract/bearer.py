"""The token that is shown with a request over HTTP: the header `Authorization: Bearer TOKEN`.

Must never put a token, or what was shown instead, into a text.
"""

from __future__ import annotations

import hmac

CHALLENGE = ("WWW-Authenticate", "Bearer")
"""Header of an answer with 401."""

REFUSED = b"a valid bearer token is needed\n"
"""Its body."""


def headers(token: str) -> dict[str, str]:
    """What shows a token."""
    return {"Authorization": f"Bearer {token}"}


def is_shown(token: str, authorization: str) -> bool:
    """Whether a header shows this token. How long the answer takes tells nothing of the token."""
    assert token, "an empty token is open to everybody"
    return hmac.compare_digest(authorization.encode(errors="replace"), headers(token)["Authorization"].encode())
