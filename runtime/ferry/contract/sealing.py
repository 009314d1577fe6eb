"""Texts that pass through Redis and that only processes with the run's secret can read or write."""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ferry.contract.errors import Refusal
from ferry.contract.tickets import derived

NONCE_BYTES = 12


def sealed(secret: str, purpose: str, text: str, about: str) -> str:
    """The text, encrypted. `about` is not in it: a reader who expects another one cannot open it."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return b64encode(nonce + _cipher(secret, purpose).encrypt(nonce, text.encode(), about.encode())).decode()


def opened(secret: str, purpose: str, shown: str, about: str) -> str:
    """Inverse of sealed. Raises Refusal: another process wrote it, or for another purpose, or about something else."""
    try:
        data = b64decode(shown, validate=True)
        return _cipher(secret, purpose).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], about.encode()).decode()
    except (InvalidTag, ValueError):
        raise Refusal(f"{purpose}: it was written without the secret of this run") from None


def _cipher(secret: str, purpose: str) -> AESGCM:
    return AESGCM(bytes.fromhex(derived(secret, f"sealed {purpose}")))
