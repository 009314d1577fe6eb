"""Texts of many values at once: each function returns bytes, and the offsets of each value's text in them.

`ferry.kernels.json_values` and `json_times` can read the texts back. Must never raise because of a value of its type.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_times import DAY, LEAST
from ferry.kernels.json_values import Limbs

_ESCAPE = np.zeros(256, np.uint8)
_ESCAPE[:32] = ord("u")
_ESCAPE[[34, 92, 8, 12, 10, 13, 9]] = np.frombuffer(b'"\\bfnrt', np.uint8)
_ESCAPE[127] = ord("u")
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_WORDS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)

TIME_BYTES = 64
"""Longest text of a time."""


@njit(cache=True, nogil=True)
def quoted(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """UTF-8 texts as JSON strings; control characters, including U+007F to U+009F, are escaped."""
    n = len(offsets) - 1
    size = 2 * n
    for i in range(offsets[0], offsets[n]):
        mark = _ESCAPE[data[i]]
        control = data[i] == 0xC2 and i + 1 < offsets[n] and data[i + 1] < 0xA0
        size += 6 if mark == 117 or control else 2 if mark else 1
    out, ends = np.empty(size, np.uint8), np.zeros(n + 1, np.int64)
    at = 0
    for k in range(n):
        out[at] = 34
        at += 1
        i, stop = offsets[k], offsets[k + 1]
        while i < stop:
            c = data[i]
            mark = _ESCAPE[c]
            if c == 0xC2 and i + 1 < stop and data[i + 1] < 0xA0:
                i += 1
                c, mark = data[i], np.uint8(117)
            if mark == 0:
                out[at] = c
                at += 1
            else:
                out[at] = 92
                out[at + 1] = mark
                at += 2
                if mark == 117:
                    out[at] = 48
                    out[at + 1] = 48
                    out[at + 2] = _HEX[c >> 4]
                    out[at + 3] = _HEX[c & 15]
                    at += 4
            i += 1
        out[at] = 34
        at += 1
        ends[k + 1] = at
    return out[:at], ends


@njit(cache=True, nogil=True)
def base64(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints]:
    """Bytes in base64, with its padding."""
    n = len(offsets) - 1
    size = 0
    for k in range(n):
        size += (offsets[k + 1] - offsets[k] + 2) // 3 * 4
    out, ends = np.empty(size, np.uint8), np.zeros(n + 1, np.int64)
    at = 0
    for k in range(n):
        i, stop = offsets[k], offsets[k + 1]
        while i < stop:
            many = min(stop - i, 3)
            word = 0
            for j in range(3):
                word = word << 8 | (int(np.int64(data[i + j])) if j < many else 0)
            for j in range(4):
                out[at + j] = _WORDS[word >> (18 - 6 * j) & 63] if j <= many else 61
            at += 4
            i += 3
        ends[k + 1] = at
    return out, ends


@njit(cache=True, nogil=True)
def decimals(limbs: Limbs, scale: int) -> tuple[Bytes, Ints]:
    """Numbers of 32-bit limbs, the lowest first, in plain digits without an exponent."""
    n, width = limbs.shape
    ends = np.zeros(n + 1, np.int64)
    digits = np.empty(10 * width + abs(scale) + 2, np.uint8)
    out = np.empty(n * (len(digits) + 3), np.uint8)
    at = 0
    rest = np.empty(width, np.uint64)
    for k in range(n):
        negative = limbs[k, width - 1] >> np.uint32(31) != 0
        carry = np.uint64(1)
        for limb in range(width):
            rest[limb] = np.uint64(limbs[k, limb])
            if negative:
                carry += np.uint64(~limbs[k, limb])
                rest[limb] = carry & np.uint64(0xFFFFFFFF)
                carry >>= np.uint64(32)
        many = 0
        while True:
            remainder, more = np.uint64(0), False
            for limb in range(width - 1, -1, -1):
                remainder = remainder << np.uint64(32) | rest[limb]
                rest[limb] = remainder // np.uint64(10)
                remainder = remainder % np.uint64(10)
                more = more or rest[limb] != 0
            digits[many] = 48 + remainder
            many += 1
            if not more:
                break
        if scale < 0 and (many > 1 or digits[0] != 48):
            for j in range(many - 1, -1, -1):
                digits[j - scale] = digits[j]
            for j in range(-scale):
                digits[j] = 48
            many -= scale
        while many <= scale:
            digits[many] = 48
            many += 1
        if negative:
            out[at] = 45
            at += 1
        for j in range(many - 1, -1, -1):
            out[at] = digits[j]
            at += 1
            if j == scale and scale > 0:
                out[at] = 46
                at += 1
        ends[k + 1] = at
    return out[:at], ends


@njit(cache=True, nogil=True)
def _padded(out: Bytes, at: int, value: int, least: int) -> int:
    """Write a non-negative number with at least `least` digits; returns its end."""
    digits, rest = 1, value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    digits = max(digits, least)
    for j in range(digits - 1, -1, -1):
        out[at + j] = 48 + value % 10
        value //= 10
    return at + digits


@njit(cache=True, nogil=True)
def _date(out: Bytes, at: int, days: int) -> int:
    """Write YYYY-MM-DD, with a sign if a year does not have four digits; returns its end."""
    days += 719_468
    era = days // 146_097
    of_era = days - era * 146_097
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + (3 if shifted < 10 else -9)
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year < 0 or year > 9999:
        out[at] = 45 if year < 0 else 43
        at += 1
    at = _padded(out, at, abs(year), 4)
    out[at] = 45
    at = _padded(out, at + 1, month, 2)
    out[at] = 45
    return _padded(out, at + 1, day, 2)


@njit(cache=True, nogil=True)
def _clock(out: Bytes, at: int, seconds: int, part: int, digits: int) -> int:
    """Write hh:mm:ss, and a fraction of this many digits unless it is zero; returns its end."""
    at = _padded(out, at, seconds // 3600, 2)
    out[at] = 58
    at = _padded(out, at + 1, seconds // 60 % 60, 2)
    out[at] = 58
    at = _padded(out, at + 1, seconds % 60, 2)
    if part:
        out[at] = 46
        at = _padded(out, at + 1, part, digits)
    return at


@njit(cache=True, nogil=True)
def timestamps(values: Ints, digits: int, zoned: bool) -> tuple[Bytes, Ints]:
    """Times since 1970, in units of 10**-digits seconds, in ISO 8601; `zoned` times are UTC, with +00:00."""
    unit = 10**digits
    out, ends = np.empty(len(values) * TIME_BYTES, np.uint8), np.zeros(len(values) + 1, np.int64)
    at = 0
    for k in range(len(values)):
        seconds = values[k] // unit
        days = seconds // DAY
        at = _date(out, at, days)
        out[at] = 84
        at = _clock(out, at + 1, seconds - days * DAY, values[k] - seconds * unit, digits)
        if zoned:
            for c in (43, 48, 48, 58, 48, 48):
                out[at] = c
                at += 1
        ends[k + 1] = at
    return out[:at], ends


@njit(cache=True, nogil=True)
def dates(days: Ints) -> tuple[Bytes, Ints]:
    """Days since 1970 as YYYY-MM-DD."""
    out, ends = np.empty(len(days) * TIME_BYTES, np.uint8), np.zeros(len(days) + 1, np.int64)
    at = 0
    for k in range(len(days)):
        at = _date(out, at, days[k])
        ends[k + 1] = at
    return out[:at], ends


@njit(cache=True, nogil=True)
def clocks(values: Ints, digits: int) -> tuple[Bytes, Ints]:
    """Times of a day, in units of 10**-digits seconds, as hh:mm:ss.f."""
    unit = 10**digits
    out, ends = np.empty(len(values) * TIME_BYTES, np.uint8), np.zeros(len(values) + 1, np.int64)
    at = 0
    for k in range(len(values)):
        value = max(values[k], 0)
        at = _clock(out, at, value // unit, value % unit, digits)
        ends[k + 1] = at
    return out[:at], ends


@njit(cache=True, nogil=True)
def durations(values: Ints, digits: int) -> tuple[Bytes, Ints]:
    """Durations, in units of 10**-digits seconds, in ISO 8601, as PT93784.5S."""
    unit = 10**digits
    out, ends = np.empty(len(values) * TIME_BYTES, np.uint8), np.zeros(len(values) + 1, np.int64)
    at = 0
    for k in range(len(values)):
        # The least number has no positive counterpart: seconds and fraction have separate signs.
        seconds, part = values[k] // unit, values[k] % unit
        if seconds < 0:
            out[at] = 45
            at += 1
            if part:
                seconds, part = seconds + 1, unit - part
        out[at] = 80
        out[at + 1] = 84
        at += 2
        if seconds == LEAST:
            at = _padded(out, at, -((seconds + 1808) // 3600), 1)
            for c in (72, 51, 48, 77, 56):
                out[at] = c
                at += 1
        else:
            at = _padded(out, at, abs(seconds), 1)
        if part:
            out[at] = 46
            at = _padded(out, at + 1, part, digits)
        out[at] = 83
        at += 1
        ends[k + 1] = at
    return out[:at], ends
