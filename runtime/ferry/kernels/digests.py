"""A digest of bytes at rest: one flipped bit changes the digest, but an attacker can forge it."""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.hashing import Bytes

_ODD = np.int64(-7046029254386353131)


@njit(cache=True, nogil=True)
def _sum(words):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(words.size):
        total += words[i] * (np.int64(2 * i + 1) * _ODD)
    return total


def digest(content: Bytes) -> int:
    """Digest of uint8[n]: a sum of its words, each with an odd weight of its own; the last word is padded with zeros.

    Example:
        >>> digest(np.zeros(8, np.uint8)), digest(np.array([1, 0, 0], np.uint8)) == digest(np.array([0, 1, 0], np.uint8))
        (8, False)
    """
    whole = content.size // 8 * 8
    rest = int.from_bytes(content[whole:].tobytes(), "little")
    words: int = int(_sum(content[:whole].view(np.int64)))
    return (words + (rest * 0x9E3779B97F4A7C15) + content.size + (1 << 63)) % (1 << 64) - (1 << 63)
