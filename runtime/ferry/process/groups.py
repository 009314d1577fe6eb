"""Groups of equal numbers, in the few ways that processes need them: by sorting, or by marking small numbers."""

from __future__ import annotations

import numpy as np

from ferry.kernels.grouping import Ints


def begins_of(*ascending: Ints) -> Ints:
    """Where groups of neighbours begin that are equal in all columns."""
    opens = np.zeros(ascending[0].size, np.bool_)
    opens[:1] = True
    for column in ascending:
        opens[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(opens)


def distinct(numbers: Ints, bound: int) -> Ints:
    """The different ones of numbers from 0 up to a bound, ascending."""
    found = np.zeros(bound, np.bool_)
    found[numbers] = True
    return np.flatnonzero(found)


def distinct_pairs(first: Ints, second: Ints) -> tuple[Ints, Ints, Ints]:
    """The different pairs, sorted, and of each row the number of its pair."""
    order = np.lexsort((second, first))
    firsts, seconds = first[order], second[order]
    begins = begins_of(firsts, seconds)
    opens = np.zeros(order.size, np.int64)
    opens[begins] = 1
    group = np.empty(order.size, np.int64)
    group[order] = np.cumsum(opens) - 1
    return firsts[begins], seconds[begins], group
