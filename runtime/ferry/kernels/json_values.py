"""JSON values as texts, numbers and bytes: each function converts many by their places and returns which are fit.

Must never raise because of a text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import INTEGER, Slots

Flags = npt.NDArray[np.bool_]
Limbs = npt.NDArray[np.uint32]


@njit(cache=True, nogil=True)
def integers(
    data: Bytes, kinds: Slots, starts: Slots, stops: Slots, least: np.uint64, greatest: np.uint64
) -> tuple[Ints, Flags]:
    """(values, which are fit) of whole numbers without exponent, from -least to greatest."""
    values, fit = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.bool_)
    ten, limit = np.uint64(10), np.uint64(2**64 - 1)
    for k in range(len(kinds)):
        if kinds[k] != INTEGER:
            continue
        i, stop = starts[k], stops[k]
        negative = data[i] == 45
        if negative:
            i += 1
        value = np.uint64(0)
        fine = True
        for j in range(i, stop):
            digit = np.uint64(data[j]) - np.uint64(48)
            if value > (limit - digit) // ten:
                fine = False
                break
            value = value * ten + digit
        if fine and value <= (least if negative else greatest):
            values[k] = np.int64(np.uint64(0) - value) if negative else np.int64(value)
            fit[k] = True
    return values, fit


@njit(cache=True, nogil=True)
def decimals(data: Bytes, offsets: Ints, precision: int, scale: int, limbs: int) -> tuple[Limbs, Flags]:
    """(numbers of 32-bit limbs, the lowest first; which are fit) of texts; only zeros may be dropped."""
    n = len(offsets) - 1
    out, fit = np.zeros((n, limbs), np.uint32), np.zeros(n, np.bool_)
    for k in range(n):
        i, stop = offsets[k], offsets[k + 1]
        negative = i < stop and data[i] == 45
        if i < stop and (data[i] == 45 or data[i] == 43):
            i += 1
        begin, end = i, i
        digits = point = 0
        seen_point = False
        while end < stop and (48 <= data[end] <= 57 or (data[end] == 46 and not seen_point)):
            if data[end] == 46:
                seen_point = True
            else:
                digits += 1
                if seen_point:
                    point += 1
            end += 1
        exponent = 0
        fine = digits > 0
        i = end
        if fine and i < stop and (data[i] == 101 or data[i] == 69):
            i += 1
            minus = i < stop and data[i] == 45
            if i < stop and (data[i] == 45 or data[i] == 43):
                i += 1
            fine = i < stop
            while i < stop and 48 <= data[i] <= 57:
                if exponent < 1_000_000_000:
                    exponent = exponent * 10 + int(np.int64(data[i])) - 48
                i += 1
            if minus:
                exponent = -exponent
        if not fine or i != stop:
            continue
        # The number of digits before the last one that is kept; the rest are zeros, or zeros are appended.
        kept = digits - point + exponent + scale
        number, significant = 0, 0
        for j in range(begin, end):
            if data[j] == 46:
                continue
            digit = np.uint64(data[j]) - np.uint64(48)
            number += 1
            if number > kept:
                if digit != 0:
                    fine = False
                    break
                continue
            if digit != 0 or significant > 0:
                significant += 1
                if significant > precision:
                    fine = False
                    break
                carry = digit
                for limb in range(limbs):
                    carry += np.uint64(out[k, limb]) * np.uint64(10)
                    out[k, limb] = np.uint32(carry & np.uint64(0xFFFFFFFF))
                    carry >>= np.uint64(32)
        added = kept - digits if significant > 0 else 0
        if fine and added > 0:
            fine = significant + added <= precision
            if fine:
                for _ in range(added):
                    carry = np.uint64(0)
                    for limb in range(limbs):
                        carry += np.uint64(out[k, limb]) * np.uint64(10)
                        out[k, limb] = np.uint32(carry & np.uint64(0xFFFFFFFF))
                        carry >>= np.uint64(32)
        if fine and negative:
            carry = np.uint64(1)
            for limb in range(limbs):
                carry += np.uint64(~out[k, limb])
                out[k, limb] = np.uint32(carry & np.uint64(0xFFFFFFFF))
                carry >>= np.uint64(32)
        fit[k] = fine
    return out, fit


_BASE64 = np.full(256, 255, np.uint8)
_BASE64[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)] = np.arange(64)


@njit(cache=True, nogil=True)
def base64(data: Bytes, offsets: Ints) -> tuple[Bytes, Ints, Flags]:
    """(bytes, their offsets, which are fit) of texts in base64 with its padding."""
    n = len(offsets) - 1
    out, ends, fit = np.empty(len(data), np.uint8), np.zeros(n + 1, np.int64), np.zeros(n, np.bool_)
    at = 0
    for k in range(n):
        i, stop = offsets[k], offsets[k + 1]
        begin, fine = at, (stop - i) % 4 == 0
        padding = 0
        while fine and i < stop:
            word = 0
            for j in range(4):
                c = data[i + j]
                six = int(np.int64(_BASE64[c]))
                if c == 61 and i + 4 == stop and (j == 3 or (j == 2 and data[i + 3] == 61)):
                    padding += 1
                    six = 0
                elif six == 255:
                    fine = False
                word = word << 6 | six
            i += 4
            for j in range(3 - (padding if i == stop else 0)):
                out[at] = word >> (16 - 8 * j) & 255
                at += 1
        if not fine:
            at = begin
        fit[k], ends[k + 1] = fine, at
    return out[:at], ends, fit


def limits(bits: int, signed: bool) -> tuple[np.uint64, np.uint64]:
    """(-least, greatest) of the integers with this many bits, as `integers` takes them."""
    return (
        (np.uint64(2 ** (bits - 1)), np.uint64(2 ** (bits - 1) - 1))
        if signed
        else (np.uint64(0), np.uint64(2**bits - 1))
    )
