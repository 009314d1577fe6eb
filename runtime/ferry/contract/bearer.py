"""The token of an HTTP request: the header `Authorization: Bearer TOKEN`.

Must never put a token, the right or a wrong one, into a text.
"""

from __future__ import annotations

import hmac

CHALLENGE = ("WWW-Authenticate", "Bearer")
"""Header of a response with status 401."""

REFUSED = b"a valid bearer token is needed\n"
"""Body of that response."""


def headers(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def is_shown(token: str, authorization: str) -> bool:
    """Whether a header carries this token, compared in constant time."""
    assert token, "an empty token would admit every request"
    return hmac.compare_digest(authorization.encode(errors="replace"), headers(token)["Authorization"].encode())
