"""Where the values of JSON objects lie in their bytes: one pass over the texts, by the columns of a schema.

`scan` walks the texts and notes each value that a schema names (its node, its kind, its bytes); `sorted_by_node` puts the
values of one node side by side. Each text is judged by its own bytes alone. What the schema does not name is checked for its
grammar and passed over, at any depth. Must never read a byte outside of its text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import (
    ARRAY,
    BLANK,
    ENDS,
    ESCAPED,
    FINE,
    MORE,
    NO_OBJECT,
    NULL,
    OBJECT,
    STRING,
    TWICE,
    UNEXPECTED,
    UNFIT,
    blanks,
    pass_over,
    quick,
    scalar,
    string,
    unescape,
)

Slots = npt.NDArray[np.int32]

LEAF, STRUCT, LIST, MAP = 0, 1, 2, 3
"""Kinds of nodes. Nodes are numbered in preorder; the elements of a list, and key and value of a map, are nodes."""

NODE, KIND, START, STOP, ROW = range(5)
"""Columns of the tape. Of a list or a map, START is how many elements it has."""

_VALUE, _FIRST_KEY, _KEY, _FIRST_ELEMENT, _AFTER = range(5)


@quick
def _child(data: Bytes, start: int, stop: int, node: int, after: int, sizes: Ints, names: Bytes, name_at: Ints) -> int:
    """The field of this name of an object, -1: the schema has none. The one behind `after` is tried first."""
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


@quick
def _absent(tape: Slots, top: int, node: int, row: int, kinds: Ints, sizes: Ints) -> int:
    """Note that there is no value of a node, nor of what is inside of it, but for elements."""
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
    """(tape, its length, verdicts, places of the faults, nodes of what is unfit) of the texts data[starts[i]:stops[i]].

    Node 0 is the object that each text has to be, a STRUCT; `name_at` are offsets into `names`, of each node and one more.
    """
    nodes, rows = len(kinds), len(starts)
    room = rows * (nodes + 1) + nodes + 64
    scratch = np.empty(int((stops - starts).max(initial=0)) + 1, np.uint8)
    while True:
        tape, verdicts = np.empty((room, 5), np.int32), np.zeros((3, rows), np.int64)
        work, opened = np.zeros((2, nodes), np.int64), np.zeros((5, depth_max + 1), np.int64)
        top = _scanned(data, starts, stops, kinds, sizes, names, name_at, tape, verdicts, scratch, work, opened)
        if top >= 0:
            return tape, top, *verdicts
        room *= 2


@quick
def _scanned(
    data: Bytes,
    starts: Ints,
    stops: Ints,
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
    """Fill the tape and what is judged; the length of the tape, -1: it has no room."""
    nodes, rows = len(kinds), len(starts)
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
    for row in range(rows):
        i, stop = starts[row], stops[row]
        before = top
        verdict = FINE
        node = 0
        if i + 3 <= stop and data[i] == 0xEF and data[i + 1] == 0xBB and data[i + 2] == 0xBF:
            i += 3
        i = blanks(data, i, stop)
        if i >= stop:
            verdict = BLANK
        elif data[i] != 123:
            verdict = NO_OBJECT
        depth = 0
        state = _VALUE
        while verdict == FINE:
            i = blanks(data, i, stop)
            if i >= stop:
                verdict = ENDS
                break
            c = data[i]
            if state == _VALUE:
                if top + nodes + 2 > len(tape):
                    return -1
                kind = kinds[node]
                tape[top, 0] = node
                tape[top, 4] = row
                if c == 123 or c == 91:
                    if (kind != LIST) if c == 91 else (kind != STRUCT and kind != MAP):
                        verdict = UNFIT
                        break
                    tape[top, 1] = OBJECT if c == 123 else ARRAY
                    tape[top, 2] = 0
                    open_node[depth], open_at[depth] = node, top
                    serial += 1
                    open_serial[depth], open_seen[depth], last[depth] = serial, 0, 0
                    depth += 1
                    top += 1
                    i += 1
                    state = _FIRST_KEY if c == 123 else _FIRST_ELEMENT
                    continue
                verdict, end, kind = scalar(data, i, stop)
                if verdict != FINE:
                    i = end
                    break
                if kind == NULL:
                    top = _absent(tape, top, node, row, kinds, sizes)
                elif kinds[node] != LEAF:
                    verdict = UNFIT
                    break
                else:
                    quote = 1 if kind == STRING or kind == ESCAPED else 0
                    tape[top, 1] = kind
                    tape[top, 2] = i + quote
                    tape[top, 3] = end - quote
                    top += 1
                i = end
                state = _AFTER
                continue
            parent = open_node[depth - 1]
            if state == _FIRST_KEY or state == _FIRST_ELEMENT:
                if c != (125 if state == _FIRST_KEY else 93):
                    if state == _FIRST_KEY:
                        state = _KEY
                    else:
                        tape[open_at[depth - 1], 2] += 1
                        node = parent + 1
                        state = _VALUE
                    continue
            elif state == _KEY:
                if c != 34:
                    verdict = UNEXPECTED
                    break
                begin = i + 1
                verdict, end, kind = string(data, begin, stop)
                if verdict != FINE:
                    i = end
                    break
                i = blanks(data, end + 1, stop)
                if i >= stop:
                    verdict = ENDS
                    break
                if data[i] != 58:
                    verdict = UNEXPECTED
                    break
                i += 1
                if kinds[parent] == MAP:
                    if top + nodes + 2 > len(tape):
                        return -1
                    tape[top, 0], tape[top, 1], tape[top, 2] = parent + 1, kind, begin
                    tape[top, 3], tape[top, 4] = end, row
                    top += 1
                    tape[open_at[depth - 1], 2] += 1
                    node = parent + 2
                    state = _VALUE
                    continue
                if kind == ESCAPED:
                    length = unescape(data, begin, end, scratch, 0)
                    node = _child(scratch, 0, length, parent, last[depth - 1], sizes, names, name_at)
                else:
                    node = _child(data, begin, end, parent, last[depth - 1], sizes, names, name_at)
                if node < 0:
                    verdict, i = pass_over(data, i, stop, scratch)
                    if verdict != FINE:
                        break
                    state = _AFTER
                    continue
                if seen[node] == open_serial[depth - 1]:
                    verdict = TWICE
                    break
                seen[node] = open_serial[depth - 1]
                last[depth - 1] = node
                open_seen[depth - 1] += 1
                state = _VALUE
                continue
            elif c == 44:
                i += 1
                if kinds[parent] == LIST:
                    tape[open_at[depth - 1], 2] += 1
                    node = parent + 1
                    state = _VALUE
                else:
                    state = _KEY
                continue
            elif c != (93 if kinds[parent] == LIST else 125):
                verdict = UNEXPECTED
                break
            # The object or array that is open ends here.
            i += 1
            depth -= 1
            if kinds[parent] == STRUCT and open_seen[depth] < fields[parent]:
                if top + nodes + 2 > len(tape):
                    return -1
                child = parent + 1
                while child < parent + sizes[parent]:
                    if seen[child] != open_serial[depth]:
                        top = _absent(tape, top, child, row, kinds, sizes)
                    child += sizes[child]
            state = _AFTER
            if depth == 0:
                i = blanks(data, i, stop)
                if i < stop:
                    verdict = MORE
                break
        if verdict != FINE:
            top = before
            verdicts[row], places[row], unfit[row] = verdict, i - starts[row], node
    return top


@njit(cache=True, nogil=True)
def sorted_by_node(tape: Slots, top: int, nodes: int) -> tuple[Slots, Ints]:
    """(kinds, starts, stops and texts of the values, where those of each node begin), those of a node in their order."""
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
