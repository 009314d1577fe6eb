"""Values of entries with a checksum at their end, which covers their place, too: a read notices damage."""

from __future__ import annotations

import zlib

from ferry.contract.errors import StateUnavailable

CHECKSUM_BYTES = 4


def sealed(place: bytes, value: bytes) -> bytes:
    """The value in its stored form."""
    return value + zlib.crc32(value, zlib.crc32(place)).to_bytes(CHECKSUM_BYTES, "little")


def unsealed(place: bytes, stored: bytes) -> bytes:
    """The stored value. Raises StateUnavailable when it is damaged."""
    value = stored[:-CHECKSUM_BYTES]
    if zlib.crc32(value, zlib.crc32(place)).to_bytes(CHECKSUM_BYTES, "little") != stored[-CHECKSUM_BYTES:]:
        raise StateUnavailable(f"an entry at {place[:40]!r} is damaged; warm this instance again")
    return value
