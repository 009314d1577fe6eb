"""The text of a program: its hash, its packed form in the journal, and names of classes without it.

Names of classes hold the hash of their file or program; the state of an operator does not depend on it.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry.contract.tickets import derived

PREFIX = "ferry_pipeline_"
"""Prefix of the name of a module that was loaded from a pipeline's file; the stem, `_`, and the hash follow."""

PACKAGE = "ferry_program_"
"""Prefix of the package of a program's other modules; the hash of the program follows."""

FERRYS = "ferry."
"""Prefix of the names of Ferry's own classes."""

DIGITS = 12
"""of a hash"""

TEXT_BYTES_MAX = 1 << 20
"""Bytes of a text that travels with its program: the most that a ConfigMap holds."""

PACKED_MAX = 256 << 10
"""The same, packed: the journal is one object of Kubernetes, of 1.5 MiB at most, and holds several programs."""

TOO_LONG = "have data in files or in the image, and modules in the image"

_STEM = r"(?:[^\":\s\\]|\\+u[0-9a-f]{4})*"
"""Of a file, also as JSON, or as JSON within JSON, writes it: there a backslash begins a character beyond ASCII."""

_MODULE = re.compile(rf"{PREFIX}{_STEM}_[0-9a-f]{{{DIGITS}}}(?=:)|{PACKAGE}[0-9a-f]{{{DIGITS}}}\.")


def without_text(names: str) -> str:
    """The names of classes without their file and its hash: the same class whatever else the file holds.

    Example:
        >>> without_text('"made_of": "ferry_pipeline_sales_0123456789ab:Rate"')
        '"made_of": ":Rate"'
    """
    return _MODULE.sub("", names)


def hash_of(texts: Iterable[tuple[str | None, bytes]]) -> str:
    """The hash of a program from its (module, text) pairs; the module of the pipeline's file is None."""
    digest = hashlib.sha256()
    for module, text in sorted(texts, key=lambda one: one[0] or ""):
        digest.update(f"{module} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:DIGITS]


def identity(module: str | None, file: str | None, text: str, arguments: dict[str, Any]) -> str:
    """Equal for equal programs; `text`: the hash of a text that travels, and then its place does not count."""
    parts = [module, None if text else file, text, arguments]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def packed(text: str) -> str:
    """The text as documents hold it. Raises SpecRefused for a text that is too long."""
    raw = text.encode()
    if len(raw) > TEXT_BYTES_MAX:
        raise SpecRefused(
            f"the text of the program has {len(raw):,} bytes, and {TEXT_BYTES_MAX:,} are allowed: {TOO_LONG}"
        )
    short = b64encode(zlib.compress(raw, 9)).decode()
    if len(short) > PACKED_MAX:
        raise SpecRefused(
            f"the text of the program has {len(short):,} bytes when compressed, and {PACKED_MAX:,} are allowed: {TOO_LONG}"
        )
    return short


def unpacked(text: str) -> bytes:
    """Inverse of `packed`. Raises ValueError for any other text, and for one that is too long."""
    unpacking = zlib.decompressobj()
    try:
        raw = unpacking.decompress(b64decode(text, validate=True), TEXT_BYTES_MAX + 1)
    except (zlib.error, binascii.Error) as error:
        raise ValueError(f"it is no packed text: {error}") from None
    if len(raw) > TEXT_BYTES_MAX or not unpacking.eof:
        raise ValueError("it is no packed text of an allowed length")
    return raw


def sealed(text: str, secret: str) -> str:
    """The seal of a packed text. Redis holds texts, too, and a process takes only a text with the seal of its run."""
    return hmac.new(derived(secret, "program").encode(), text.encode(), "sha256").hexdigest()


def is_sealed(text: str, seal: str, secret: str) -> bool:
    """Whether the driver of this run has sealed the text."""
    return hmac.compare_digest(sealed(text, secret), seal)
