"""JSON texts and numbers as times: each function converts many and returns which of them are fit.

Texts are ISO 8601, without escapes. Digits beyond the unit of a time are truncated, towards the past.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import DECIMAL, INTEGER, Slots
from ferry.kernels.json_values import Flags

DAY = 86_400
DAYS_MAX = 106_751_991_167_301
"""Largest distance from 1970 in seconds of 64 bits."""

LEAST, GREATEST = -(2**63), 2**63 - 1
YEAR_DIGITS = 12
"""A year has four digits, or a sign and up to this many: enough for 64-bit seconds."""


@njit(cache=True, nogil=True)
def _digits(data: Bytes, i: int, stop: int, least: int, most: int) -> tuple[int, int]:
    """(number, place after it) of this many digits; -1: there are fewer."""
    value, begin = 0, i
    while i < stop and i < begin + most and 48 <= data[i] <= 57:
        value = value * 10 + int(np.int64(data[i])) - 48
        i += 1
    return (value if i - begin >= least else -1), i


@njit(cache=True, nogil=True)
def _whole(data: Bytes, i: int, stop: int) -> tuple[int, int]:
    """(number, place after it) of digits; -1: none, or more than 64 bits hold."""
    value, begin = 0, i
    while i < stop and 48 <= data[i] <= 57:
        digit = int(np.int64(data[i])) - 48
        if value > (GREATEST - digit) // 10:
            return -1, i
        value = value * 10 + digit
        i += 1
    return (value if i > begin else -1), i


@njit(cache=True, nogil=True)
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date of the Gregorian calendar, before 1582 as well."""
    if month <= 2:
        year -= 1
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@njit(cache=True, nogil=True)
def _date(data: Bytes, i: int, stop: int) -> tuple[bool, int, int]:
    """(fit, days, place after it) of YYYY-MM-DD."""
    sign = 0
    if i < stop and (data[i] == 43 or data[i] == 45):
        sign = 1 if data[i] == 43 else -1
        i += 1
    year, i = _digits(data, i, stop, 4, YEAR_DIGITS if sign else 4)
    if year < 0 or i >= stop or data[i] != 45:
        return False, 0, i
    month, i = _digits(data, i + 1, stop, 2, 2)
    if not 1 <= month <= 12 or i >= stop or data[i] != 45:
        return False, 0, i
    day, i = _digits(data, i + 1, stop, 2, 2)
    if sign < 0:
        year = -year
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = (
        (29 if leap else 28) if month == 2 else 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    )
    if not 1 <= day <= longest:
        return False, 0, i
    return True, days_of(year, month, day), i


@njit(cache=True, nogil=True)
def _fraction(data: Bytes, i: int, stop: int) -> tuple[int, int]:
    """(nanoseconds, place after it) of digits after a point; -1: none. Digits after the ninth are ignored."""
    value, count = 0, 0
    while i < stop and 48 <= data[i] <= 57:
        if count < 9:
            value = value * 10 + int(np.int64(data[i])) - 48
        count += 1
        i += 1
    if count == 0:
        return -1, i
    for _ in range(9 - count):
        value *= 10
    return value, i


@njit(cache=True, nogil=True)
def _clock(data: Bytes, i: int, stop: int) -> tuple[bool, int, int, int]:
    """(fit, seconds, nanoseconds, place after it) of hh:mm, hh:mm:ss, hh:mm:ss.f."""
    hour, i = _digits(data, i, stop, 2, 2)
    if not 0 <= hour <= 23 or i >= stop or data[i] != 58:
        return False, 0, 0, i
    minute, i = _digits(data, i + 1, stop, 2, 2)
    if not 0 <= minute <= 59:
        return False, 0, 0, i
    second = nanos = 0
    if i < stop and data[i] == 58:
        second, i = _digits(data, i + 1, stop, 2, 2)
        if not 0 <= second <= 59:
            return False, 0, 0, i
        if i < stop and (data[i] == 46 or data[i] == 44):
            nanos, i = _fraction(data, i + 1, stop)
    return nanos >= 0, hour * 3600 + minute * 60 + second, nanos, i


@njit(cache=True, nogil=True)
def _zone(data: Bytes, i: int, stop: int) -> tuple[bool, int, int]:
    """(fit, seconds east, place after it) of an empty zone, Z, +hh, +hhmm, +hh:mm, +hh:mm:ss."""
    if i >= stop:
        return True, 0, i
    if data[i] == 90 or data[i] == 122:
        return True, 0, i + 1
    if data[i] != 43 and data[i] != 45:
        return False, 0, i
    sign = 1 if data[i] == 43 else -1
    hours, i = _digits(data, i + 1, stop, 2, 2)
    if not 0 <= hours <= 23:
        return False, 0, i
    minutes = seconds = 0
    if i < stop:
        if data[i] == 58:
            i += 1
        minutes, i = _digits(data, i, stop, 2, 2)
    if i < stop and data[i] == 58:
        seconds, i = _digits(data, i + 1, stop, 2, 2)
    return 0 <= minutes <= 59 and 0 <= seconds <= 59, sign * (hours * 3600 + minutes * 60 + seconds), i


@njit(cache=True, nogil=True)
def _united(seconds: int, nanos: int, unit: int) -> tuple[bool, int]:
    """(whether it fits into 64 bits, the time) in `unit` parts of a second; nanos are from 0 to a second."""
    part = nanos // (1_000_000_000 // unit)
    if seconds >= 0:
        fine = seconds < GREATEST // unit or (seconds == GREATEST // unit and part <= GREATEST - seconds * unit)
        return fine, seconds * unit + part if fine else 0
    # One second less is missing than `seconds` has, so that no product overflows 64 bits.
    rest = unit - part
    fine = seconds + 1 >= -(GREATEST // unit) and (seconds + 1) * unit >= LEAST + rest
    return fine, (seconds + 1) * unit - rest if fine else 0


@njit(cache=True, nogil=True)
def timestamps(data: Bytes, offsets: Ints, unit: int) -> tuple[Ints, Flags]:
    """(times since 1970 in `unit` parts of a second, which are fit) of ISO 8601 texts; a text without a zone is UTC."""
    n = len(offsets) - 1
    values, fit = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for k in range(n):
        i, stop = offsets[k], offsets[k + 1]
        fine, days, i = _date(data, i, stop)
        seconds = nanos = east = 0
        if fine and i < stop:
            fine = data[i] == 84 or data[i] == 32 or data[i] == 116
            if fine:
                fine, seconds, nanos, i = _clock(data, i + 1, stop)
            if fine:
                fine, east, i = _zone(data, i, stop)
        if fine and i == stop and -DAYS_MAX <= days < DAYS_MAX:
            # Towards 1970 first, so that no sum overflows 64 bits.
            near = (days + 1) * DAY if days < 0 else days * DAY
            rest = seconds - east - (DAY if days < 0 else 0)
            if LEAST - min(near, 0) <= rest <= GREATEST - max(near, 0):
                fit[k], values[k] = _united(near + rest, nanos, unit)
    return values, fit


@njit(cache=True, nogil=True)
def dates(data: Bytes, offsets: Ints) -> tuple[Ints, Flags]:
    """(days since 1970, which are fit) of texts YYYY-MM-DD."""
    n = len(offsets) - 1
    values, fit = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for k in range(n):
        fine, days, i = _date(data, offsets[k], offsets[k + 1])
        fit[k], values[k] = fine and i == offsets[k + 1], days
    return values, fit


@njit(cache=True, nogil=True)
def clocks(data: Bytes, offsets: Ints, unit: int) -> tuple[Ints, Flags]:
    """(times of a day in `unit` parts of a second, which are fit) of texts hh:mm:ss.f."""
    n = len(offsets) - 1
    values, fit = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for k in range(n):
        fine, seconds, nanos, i = _clock(data, offsets[k], offsets[k + 1])
        if fine and i == offsets[k + 1]:
            fit[k], values[k] = _united(seconds, nanos, unit)
    return values, fit


@njit(cache=True, nogil=True)
def durations(data: Bytes, offsets: Ints, unit: int) -> tuple[Ints, Flags]:
    """(durations in `unit` parts of a second, which are fit) of ISO 8601 texts: P1DT2H3M4.5S, or with a sign before
    P."""
    n = len(offsets) - 1
    values, fit = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    for k in range(n):
        i, stop = offsets[k], offsets[k + 1]
        negative = i < stop and data[i] == 45
        if i < stop and (data[i] == 45 or data[i] == 43):
            i += 1
        if i >= stop or data[i] != 80:
            continue
        i += 1
        seconds = nanos = parts = 0
        size, rank, timed, fine = 0, 0, False, True
        while i < stop and fine:
            if data[i] == 84 and not timed:
                timed, rank = True, 1
                i += 1
                fine = i < stop
                continue
            whole, i = _whole(data, i, stop)
            part, point = 0, False
            if whole >= 0 and i < stop and data[i] == 46:
                point = True
                part, i = _fraction(data, i + 1, stop)
            if whole < 0 or part < 0 or i >= stop:
                fine = False
                break
            mark = data[i]
            i += 1
            if mark == 68 and not timed and rank == 0 and not point:
                size, rank = DAY, 1
            elif mark == 72 and timed and rank <= 1 and not point:
                size, rank = 3600, 2
            elif mark == 77 and timed and rank <= 2 and not point:
                size, rank = 60, 3
            elif mark == 83 and timed and rank <= 3:
                size, rank, nanos = 1, 4, part
            else:
                fine = False
                break
            if whole > GREATEST // size or LEAST + whole * size > seconds:
                fine = False
                break
            seconds -= whole * size  # below zero there is room for one second more
            parts += 1
        if not fine or parts == 0 or (seconds == LEAST and (nanos or not negative)):
            continue
        if not negative:
            seconds = -seconds
        elif nanos:
            seconds, nanos = seconds - 1, 1_000_000_000 - nanos
        fit[k], values[k] = _united(seconds, nanos, unit)
    return values, fit


@njit(cache=True, nogil=True)
def epochs(data: Bytes, kinds: Slots, starts: Slots, stops: Slots, per_second: int, unit: int) -> tuple[Ints, Flags]:
    """(times in `unit` parts of a second, which are fit) of numbers that count `per_second` per second since 1970."""
    values, fit = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.bool_)
    for k in range(len(kinds)):
        if kinds[k] != INTEGER and kinds[k] != DECIMAL:
            continue
        i, stop = starts[k], stops[k]
        negative = data[i] == 45
        if negative:
            i += 1
        whole, i = _whole(data, i, stop)
        part = 0
        if i < stop and data[i] == 46:
            part, i = _fraction(data, i + 1, stop)
        if whole < 0 or part < 0 or i != stop:
            continue
        # Everything is counted in nanoseconds of a second; finer parts are truncated.
        size = 1_000_000_000 // per_second
        seconds, nanos = whole // per_second, whole % per_second * size + part // per_second
        rest = part % per_second != 0
        if negative:
            seconds = -seconds
            if nanos or rest:
                seconds, nanos = seconds - 1, 1_000_000_000 - nanos - (1 if rest else 0)
        fit[k], values[k] = _united(seconds, nanos, unit)
    return values, fit
