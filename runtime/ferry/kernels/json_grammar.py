"""The grammar of JSON on bytes: whether a text is an object, nested to any depth, and nothing more.

Strict (RFC 8259), except for NaN, Infinity and -Infinity, which Python and Java write. Must never read a byte at or
after `stop`. `_nrt=False`: otherwise Numba counts references to arrays at each call, which takes most of the time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ferry.kernels.grouping import Bytes, Ints

Slots = npt.NDArray[np.int32]

NULL, STRING, ESCAPED, INTEGER, DECIMAL, TRUE, FALSE, NAN, INFINITE, MINUS_INFINITE, OBJECT, ARRAY = range(12)
"""Kinds of values. NULL is also a missing field; ESCAPED is a string that contains a backslash; DECIMAL is a number
with a point or an exponent."""

FINE, BLANK, ENDS, NO_OBJECT, UNEXPECTED, CONTROL, ESCAPE, SURROGATE, TWICE, UNFIT, MORE = range(11)
"""Verdicts on a text."""

_VALUE, _FIRST_KEY, _KEY, _FIRST_ELEMENT, _AFTER = range(5)


@njit(cache=True, nogil=True, _nrt=False)
def _blanks(data: Bytes, i: int, stop: int) -> int:
    while i < stop and (data[i] == 32 or data[i] == 10 or data[i] == 13 or data[i] == 9):
        i += 1
    return i


@njit(cache=True, nogil=True, _nrt=False)
def _hex(data: Bytes, i: int, stop: int) -> int:
    """The number of four hexadecimal digits; -1: invalid digits."""
    if i + 4 > stop:
        return -1
    value = 0
    for k in range(4):
        c = int(np.int64(data[i + k]))
        if 48 <= c <= 57:
            digit = c - 48
        elif 97 <= c <= 102:
            digit = c - 87
        elif 65 <= c <= 70:
            digit = c - 55
        else:
            return -1
        value = value * 16 + digit
    return value


@njit(cache=True, nogil=True, _nrt=False)
def _string(data: Bytes, i: int, stop: int) -> tuple[int, int, int]:
    """(verdict, place of the closing quote or of the fault, kind) of the string whose content begins at `i`."""
    kind = STRING
    while i < stop:
        c = data[i]
        if c == 34:
            return FINE, i, kind
        if c < 32:
            return CONTROL, i, kind
        if c != 92:
            i += 1
            continue
        kind = ESCAPED
        if i + 1 >= stop:
            break
        c = data[i + 1]
        if c != 117:
            if not (c == 34 or c == 92 or c == 47 or c == 98 or c == 102 or c == 110 or c == 114 or c == 116):
                return ESCAPE, i, kind
            i += 2
            continue
        code = _hex(data, i + 2, stop)
        if code < 0:
            return ESCAPE, i, kind
        if 0xDC00 <= code <= 0xDFFF:
            return SURROGATE, i, kind
        if 0xD800 <= code <= 0xDBFF:
            low = _hex(data, i + 8, stop) if i + 8 <= stop and data[i + 6] == 92 and data[i + 7] == 117 else -1
            if not 0xDC00 <= low <= 0xDFFF:
                return SURROGATE, i, kind
            i += 6
        i += 6
    return ENDS, stop, kind


@njit(cache=True, nogil=True, _nrt=False)
def _word(data: Bytes, i: int, stop: int, word: Bytes) -> bool:
    if i + len(word) > stop:
        return False
    for k in range(len(word)):
        if data[i + k] != word[k]:
            return False
    return True


_TRUE, _FALSE, _NULL = (np.frombuffer(one, np.uint8) for one in (b"true", b"false", b"null"))
_NAN, _INFINITY, _MINUS = (np.frombuffer(one, np.uint8) for one in (b"NaN", b"Infinity", b"-Infinity"))


@njit(cache=True, nogil=True, _nrt=False)
def _number(data: Bytes, i: int, stop: int) -> tuple[int, int, int]:
    """As `_scalar`, for a number."""
    kind = INTEGER
    if data[i] == 45:
        i += 1
    if i >= stop:
        return ENDS, stop, kind
    if data[i] == 48:
        i += 1
    elif 49 <= data[i] <= 57:
        while i < stop and 48 <= data[i] <= 57:
            i += 1
    else:
        return UNEXPECTED, i, kind
    if i < stop and data[i] == 46:
        kind = DECIMAL
        i += 1
        begin = i
        while i < stop and 48 <= data[i] <= 57:
            i += 1
        if i == begin:
            return (UNEXPECTED if i < stop else ENDS), i, kind
    if i < stop and (data[i] == 101 or data[i] == 69):
        kind = DECIMAL
        i += 1
        if i < stop and (data[i] == 43 or data[i] == 45):
            i += 1
        begin = i
        while i < stop and 48 <= data[i] <= 57:
            i += 1
        if i == begin:
            return (UNEXPECTED if i < stop else ENDS), i, kind
    return FINE, i, kind


@njit(cache=True, nogil=True, _nrt=False)
def _scalar(data: Bytes, i: int, stop: int) -> tuple[int, int, int]:
    """(verdict, place after the value or of the fault, kind) of the value at `i`, which is neither an object nor an
    array."""
    c = data[i]
    if c == 34:
        verdict, end, kind = _string(data, i + 1, stop)
        return verdict, (end + 1 if verdict == FINE else end), kind
    if c == 116 and _word(data, i, stop, _TRUE):
        return FINE, i + 4, TRUE
    if c == 102 and _word(data, i, stop, _FALSE):
        return FINE, i + 5, FALSE
    if c == 110 and _word(data, i, stop, _NULL):
        return FINE, i + 4, NULL
    if c == 78 and _word(data, i, stop, _NAN):
        return FINE, i + 3, NAN
    if c == 73 and _word(data, i, stop, _INFINITY):
        return FINE, i + 8, INFINITE
    if c == 45 and _word(data, i, stop, _MINUS):
        return FINE, i + 9, MINUS_INFINITE
    if c == 45 or 48 <= c <= 57:
        return _number(data, i, stop)
    return UNEXPECTED, i, NULL


@njit(cache=True, nogil=True, _nrt=False)
def _pass_over(data: Bytes, i: int, stop: int, open_: Bytes) -> tuple[int, int]:
    """(verdict, place after the value or of the fault) of any value; `open_` has room for as many brackets as bytes."""
    depth = 0
    state = _VALUE
    while True:
        i = _blanks(data, i, stop)
        if i >= stop:
            return ENDS, stop
        c = data[i]
        if state == _FIRST_KEY and c != 125:
            state = _KEY
        elif state == _FIRST_ELEMENT and c != 93:
            state = _VALUE
        if state == _VALUE:
            if c == 123 or c == 91:
                open_[depth] = c
                depth += 1
                i += 1
                state = _FIRST_KEY if c == 123 else _FIRST_ELEMENT
                continue
            verdict, i, _ = _scalar(data, i, stop)
            if verdict != FINE:
                return verdict, i
        elif state == _KEY:
            if c != 34:
                return UNEXPECTED, i
            verdict, i, _ = _string(data, i + 1, stop)
            if verdict != FINE:
                return verdict, i
            i = _blanks(data, i + 1, stop)
            if i >= stop:
                return ENDS, stop
            if data[i] != 58:
                return UNEXPECTED, i
            i += 1
            state = _VALUE
            continue
        elif state == _AFTER and c == 44:
            i += 1
            state = _KEY if open_[depth - 1] == 123 else _VALUE
            continue
        elif c == (125 if open_[depth - 1] == 123 else 93):
            depth -= 1
            i += 1
        else:
            return UNEXPECTED, i
        if depth == 0:
            return FINE, i
        state = _AFTER


@njit(cache=True, nogil=True, _nrt=False)
def _judge(data: Bytes, starts: Ints, stops: Ints, open_: Bytes, verdicts: Ints, places: Ints) -> None:
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        if i + 3 <= stop and data[i] == 0xEF and data[i + 1] == 0xBB and data[i + 2] == 0xBF:
            i += 3
        i = _blanks(data, i, stop)
        if i >= stop:
            verdict = BLANK
        elif data[i] != 123:
            verdict = NO_OBJECT
        else:
            verdict, i = _pass_over(data, i, stop, open_)
            if verdict == FINE:
                i = _blanks(data, i, stop)
                verdict = FINE if i >= stop else MORE
        verdicts[row] = verdict
        places[row] = i - starts[row]


def judge(data: Bytes, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """(verdicts, places of the faults) of the texts data[starts[i]:stops[i]], each of which has to be a JSON object."""
    verdicts, places = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    _judge(data, starts, stops, np.empty(int((stops - starts).max(initial=0)), np.uint8), verdicts, places)
    return verdicts, places


@njit(cache=True, nogil=True)
def unquoted(data: Bytes, kinds: Slots, starts: Slots, stops: Slots) -> Slots:
    """Kinds of object keys used as values: a key whose whole text is a number or a word has that kind."""
    out = kinds.copy()
    for k in range(len(kinds)):
        if kinds[k] == STRING and starts[k] < stops[k]:
            verdict, end, kind = _scalar(data, starts[k], stops[k])
            if verdict == FINE and end == stops[k] and kind != STRING and kind != ESCAPED and kind != NULL:
                out[k] = kind
    return out
