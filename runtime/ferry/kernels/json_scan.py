"""Positions of the values of JSON objects in their bytes, by the columns of a schema, and their texts.

`scan` walks texts that `json_grammar.judge` has accepted, and records each value that a schema names (its node, kind,
bytes); `sorted_by_node` groups the values by node. `_nrt=False`: see there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import (
    ARRAY,
    DECIMAL,
    ESCAPED,
    FALSE,
    FINE,
    INFINITE,
    INTEGER,
    MINUS_INFINITE,
    NAN,
    NULL,
    OBJECT,
    STRING,
    TRUE,
    TWICE,
    UNFIT,
    Slots,
)

LEAF, STRUCT, LIST, MAP = 0, 1, 2, 3
"""Kinds of nodes. Nodes are numbered in preorder; the elements of a list, and key and value of a map, are nodes."""

NODE, KIND, START, STOP, ROW = range(5)
"""Columns of the tape. For a list or a map, START is the number of its elements."""


@njit(cache=True, nogil=True, _nrt=False)
def _blanks(data: Bytes, i: int) -> int:
    while data[i] == 32 or data[i] == 10 or data[i] == 13 or data[i] == 9:
        i += 1
    return i


@njit(cache=True, nogil=True, _nrt=False)
def _string(data: Bytes, i: int) -> tuple[int, int]:
    """(place of the closing quote, kind) of the string whose content begins at `i`."""
    kind = STRING
    while data[i] != 34:
        if data[i] == 92:
            kind = ESCAPED
            i += 1
        i += 1
    return i, kind


@njit(cache=True, nogil=True, _nrt=False)
def _scalar(data: Bytes, i: int) -> tuple[int, int]:
    """(place after the value, kind) of the value at `i`, which is neither an object nor an array."""
    c = data[i]
    if c == 34:
        end, kind = _string(data, i + 1)
        return end + 1, kind
    if c == 116:
        return i + 4, TRUE
    if c == 102:
        return i + 5, FALSE
    if c == 110:
        return i + 4, NULL
    if c == 78:
        return i + 3, NAN
    if c == 73:
        return i + 8, INFINITE
    if data[i + 1] == 73:
        return i + 9, MINUS_INFINITE
    kind = INTEGER
    i += 1
    while True:
        c = data[i]
        if c == 46 or c == 101 or c == 69 or c == 43 or c == 45:
            kind = DECIMAL
        elif not 48 <= c <= 57:
            return i, kind
        i += 1


@njit(cache=True, nogil=True, _nrt=False)
def _behind(data: Bytes, i: int) -> int:
    """The place after any value."""
    if data[i] != 123 and data[i] != 91:
        return _scalar(data, i)[0]
    depth = 0
    while True:
        c = data[i]
        if c == 34:
            i, _ = _string(data, i + 1)
        elif c == 123 or c == 91:
            depth += 1
        elif c == 125 or c == 93:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1


@njit(cache=True, nogil=True, _nrt=False)
def _hex(data: Bytes, i: int) -> int:
    """The number of four hexadecimal digits."""
    value = 0
    for k in range(4):
        c = int(np.int64(data[i + k]))
        value = value * 16 + (c - 48 if c <= 57 else (c | 32) - 87)
    return value


@njit(cache=True, nogil=True, _nrt=False)
def _unescape(data: Bytes, i: int, stop: int, out: Bytes, at: int) -> int:
    """Write the unescaped text of a string to `out`; returns its end. It is never longer than its bytes."""
    while i < stop:
        c = data[i]
        if c != 92:
            out[at] = c
            i += 1
            at += 1
            continue
        c = data[i + 1]
        i += 2
        if c == 117:
            code = _hex(data, i)
            i += 4
            if 0xD800 <= code <= 0xDBFF:
                code = 0x10000 + ((code - 0xD800) << 10) + (_hex(data, i + 2) - 0xDC00)
                i += 6
            if code < 0x80:
                out[at] = code
                at += 1
            elif code < 0x800:
                out[at] = 0xC0 | code >> 6
                out[at + 1] = 0x80 | code & 63
                at += 2
            elif code < 0x10000:
                out[at] = 0xE0 | code >> 12
                out[at + 1] = 0x80 | code >> 6 & 63
                out[at + 2] = 0x80 | code & 63
                at += 3
            else:
                out[at] = 0xF0 | code >> 18
                out[at + 1] = 0x80 | code >> 12 & 63
                out[at + 2] = 0x80 | code >> 6 & 63
                out[at + 3] = 0x80 | code & 63
                at += 4
            continue
        if c == 98:
            c = 8
        elif c == 102:
            c = 12
        elif c == 110:
            c = 10
        elif c == 114:
            c = 13
        elif c == 116:
            c = 9
        out[at] = c
        at += 1
    return at


@njit(cache=True, nogil=True)
def texts(data: Bytes, kinds: Slots, starts: Slots, stops: Slots, numbers: bool) -> tuple[Bytes, Ints]:
    """(bytes, offsets) of the unescaped strings, with `numbers` of numbers as well; other values are empty."""
    size = 0
    for k in range(len(kinds)):
        if kinds[k] == STRING or kinds[k] == ESCAPED or (numbers and (kinds[k] == INTEGER or kinds[k] == DECIMAL)):
            size += stops[k] - starts[k]
    out = np.empty(size, np.uint8)
    offsets = np.zeros(len(kinds) + 1, np.int64)
    at = 0
    for k in range(len(kinds)):
        kind = kinds[k]
        if kind == ESCAPED:
            at = _unescape(data, starts[k], stops[k], out, at)
        elif kind == STRING or (numbers and (kind == INTEGER or kind == DECIMAL)):
            for i in range(starts[k], stops[k]):
                out[at] = data[i]
                at += 1
        offsets[k + 1] = at
    return out[:at], offsets


@njit(cache=True, nogil=True, _nrt=False)
def _child(data: Bytes, start: int, stop: int, node: int, after: int, sizes: Ints, names: Bytes, name_at: Ints) -> int:
    """The field of this name of an object; -1: not in the schema. The field after `after` is tried first."""
    end = node + sizes[node]
    length = stop - start
    first = after + sizes[after] if after > 0 else node + 1
    for turn in range(2):
        child = first if turn == 0 else node + 1
        until = end if turn == 0 else min(first, end)
        while child < until:
            at = name_at[child]
            if name_at[child + 1] - at == length:
                same = True
                for k in range(length):
                    if names[at + k] != data[start + k]:
                        same = False
                        break
                if same:
                    return child
            child += sizes[child]
    return -1


@njit(cache=True, nogil=True, _nrt=False)
def _absent(tape: Slots, top: int, node: int, row: int, kinds: Ints, sizes: Ints) -> int:
    """Record that a node and the nodes below it, except elements, have no value."""
    end = node + sizes[node]
    while node < end:
        tape[top, 0] = node
        tape[top, 1] = NULL
        tape[top, 4] = row
        top += 1
        node += 1 if kinds[node] == STRUCT else sizes[node]
    return top


def scan(
    data: Bytes, starts: Ints, stops: Ints, kinds: Ints, sizes: Ints, names: Bytes, name_at: Ints, depth_max: int
) -> tuple[Slots, int, Ints, Ints, Ints]:
    """(tape, its length, verdicts, places of the faults, unfit nodes) of the objects data[starts[i]:stops[i]].

    Node 0 is the object that each text has to be, a STRUCT; `name_at` are offsets into `names`, one per node and one
    more.
    """
    nodes, rows = len(kinds), len(starts)
    room = rows * (nodes + 1) + nodes + 64
    scratch = np.empty(int((stops - starts).max(initial=0)) + 1, np.uint8)
    while True:
        tape, verdicts = np.empty((room, 5), np.int32), np.zeros((3, rows), np.int64)
        work, opened = np.zeros((2, nodes), np.int64), np.zeros((5, depth_max + 1), np.int64)
        top = _scanned(data, starts, kinds, sizes, names, name_at, tape, verdicts, scratch, work, opened)
        if top >= 0:
            return tape, top, *verdicts
        room *= 2


@njit(cache=True, nogil=True, _nrt=False)
def _scanned(
    data: Bytes,
    starts: Ints,
    kinds: Ints,
    sizes: Ints,
    names: Bytes,
    name_at: Ints,
    tape: Slots,
    judged: Ints,
    scratch: Bytes,
    work: Ints,
    opened: Ints,
) -> int:
    """Fill the tape and the verdicts; returns the length of the tape, -1: it is too small."""
    nodes = len(kinds)
    verdicts, places, unfit = judged[0], judged[1], judged[2]
    seen, fields = work[0], work[1]
    open_node, open_at, open_serial, open_seen, last = opened[0], opened[1], opened[2], opened[3], opened[4]
    for node in range(nodes):
        if kinds[node] == STRUCT:
            child = node + 1
            while child < node + sizes[node]:
                fields[node] += 1
                child += sizes[child]
    top = 0
    serial = 0
    for row in range(len(starts)):
        i = starts[row] + (3 if data[starts[row]] == 0xEF else 0)
        before, verdict = top, FINE
        node, depth, is_value = 0, 0, True
        while verdict == FINE:
            i = _blanks(data, i)
            c = data[i]
            if top + nodes + 2 > len(tape):
                return -1
            if is_value and (c == 123 or c == 91):
                kind = kinds[node]
                if (kind != LIST) if c == 91 else (kind != STRUCT and kind != MAP):
                    verdict = UNFIT
                    break
                tape[top, 0], tape[top, 1], tape[top, 2], tape[top, 4] = node, OBJECT if c == 123 else ARRAY, 0, row
                serial += 1
                open_node[depth], open_at[depth], open_serial[depth] = node, top, serial
                open_seen[depth], last[depth] = 0, 0
                depth += 1
                top += 1
                i += 1
                is_value = False
                continue
            if is_value:
                end, kind = _scalar(data, i)
                if kind == NULL:
                    top = _absent(tape, top, node, row, kinds, sizes)
                elif kinds[node] != LEAF:
                    verdict = UNFIT
                    break
                else:
                    quote = 1 if kind == STRING or kind == ESCAPED else 0
                    tape[top, 0], tape[top, 1], tape[top, 4] = node, kind, row
                    tape[top, 2], tape[top, 3] = i + quote, end - quote
                    top += 1
                i = end
                is_value = False
                continue
            # Within an object or array: before or after a value of it, or at its end.
            parent, outer = open_node[depth - 1], depth - 1
            if c == 44:
                i += 1
            elif c == 125 or c == 93:
                i += 1
                depth -= 1
                if kinds[parent] == STRUCT and open_seen[depth] < fields[parent]:
                    child = parent + 1
                    while child < parent + sizes[parent]:
                        if seen[child] != open_serial[depth]:
                            top = _absent(tape, top, child, row, kinds, sizes)
                        child += sizes[child]
                if depth == 0:
                    break
            elif kinds[parent] == LIST:
                tape[open_at[outer], 2] += 1
                node, is_value = parent + 1, True
            else:
                begin = i + 1
                end, kind = _string(data, begin)
                i = _blanks(data, end + 1) + 1
                if kinds[parent] == MAP:
                    tape[top, 0], tape[top, 1], tape[top, 4] = parent + 1, kind, row
                    tape[top, 2], tape[top, 3] = begin, end
                    top += 1
                    tape[open_at[outer], 2] += 1
                    node, is_value = parent + 2, True
                    continue
                if kind == ESCAPED:
                    length = _unescape(data, begin, end, scratch, 0)
                    node = _child(scratch, 0, length, parent, last[outer], sizes, names, name_at)
                else:
                    node = _child(data, begin, end, parent, last[outer], sizes, names, name_at)
                if node < 0:
                    i = _behind(data, _blanks(data, i))
                elif seen[node] == open_serial[outer]:
                    verdict = TWICE
                else:
                    seen[node] = open_serial[outer]
                    last[outer] = node
                    open_seen[outer] += 1
                    is_value = True
        if verdict != FINE:
            top = before
            verdicts[row], places[row], unfit[row] = verdict, i - starts[row], node
    return top


@njit(cache=True, nogil=True)
def sorted_by_node(tape: Slots, top: int, nodes: int) -> tuple[Slots, Ints]:
    """(kinds, starts, stops and texts of the values, first value of each node), values of a node in order."""
    begins = np.zeros(nodes + 1, np.int64)
    for k in range(top):
        begins[tape[k, 0] + 1] += 1
    for node in range(nodes):
        begins[node + 1] += begins[node]
    next_ = begins[:nodes].copy()
    slots = np.empty((4, top), np.int32)
    for k in range(top):
        node = tape[k, 0]
        at = next_[node]
        next_[node] += 1
        slots[0, at] = tape[k, 1]
        slots[1, at] = tape[k, 2]
        slots[2, at] = tape[k, 3]
        slots[3, at] = tape[k, 4]
    return slots, begins
