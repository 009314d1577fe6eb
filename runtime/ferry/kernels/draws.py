"""Random-access draws of the workload generators: splitmix64 on (seed, field, event id), order, references, text.

Every value is a pure function of the seed, a field number and an event id, so any piece of a stream can be made alone.
Bit-equal to the reference generator in tests/oracle. Event ids and arrival numbers are int64 and never negative.
Powers (prices, Pareto ranks) are left to numpy outside: two implementations of `pow` may differ in the last bit.
These kernels must never allocate per record, keep state between calls, or call a random generator.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Late: TypeAlias = tuple[np.uint64, int, np.uint64, int, int]
"""(seed, field, threshold, spacing_us, delay_ms): an event whose draw's top 53 bits are < threshold is delayed."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_STEP = 953
"""The shuffle inside a group sends position r to r * 953 mod group; no permutation when 953 divides the group."""
_HOT_BATCH = 100
_ZERO, _ONE = np.uint64(0), np.uint64(1)


@njit(cache=True, nogil=True, error_model="numpy")
def _mix(z: np.uint64) -> np.uint64:
    z = (z ^ (z >> np.uint64(30))) * _MIX_A
    z = (z ^ (z >> np.uint64(27))) * _MIX_B
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True, error_model="numpy")
def _origin(seed: np.uint64, field: int) -> np.uint64:
    """The start of stream number `field` of generator `seed`."""
    return _mix(np.uint64(seed) + _GOLDEN * np.uint64(field + 1))


@njit(cache=True, nogil=True, error_model="numpy")
def _draw(origin: np.uint64, n: int) -> np.uint64:
    return _mix(origin + _GOLDEN * (np.uint64(n) + _ONE))


@njit(cache=True, nogil=True, error_model="numpy")
def below(n: Ints, seed: np.uint64, field: int, bound: int) -> Ints:
    """Uniform integers in [0, bound), one per event id; bound >= 1."""
    origin, k = _origin(seed, field), np.uint64(bound)
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        out[i] = np.int64(_draw(origin, n[i]) % k)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def below_each(n: Ints, seed: np.uint64, field: int, bounds: Ints) -> Ints:
    """Uniform integers in [0, bounds[i]), one per event id; every bound >= 1."""
    origin = _origin(seed, field)
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        out[i] = np.int64(_draw(origin, n[i]) % np.uint64(bounds[i]))
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def unit(n: Ints, seed: np.uint64, field: int) -> Floats:
    """Uniform float64 in [0, 1), one per event id, from the top 53 bits of the draw."""
    origin = _origin(seed, field)
    out = np.empty(n.size, np.float64)
    for i in range(n.size):
        out[i] = np.float64(_draw(origin, n[i]) >> np.uint64(11)) * 2.0**-53
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def ranked(n: Ints, seed: np.uint64, field: int, cdf: Floats, guide: Ints, guide_bits: int) -> Ints:
    """First rank whose cumulative weight exceeds a uniform draw times cdf[-1], at most len(cdf) - 1.

    ``guide[j]`` is that rank for the draw j / 2**guide_bits (2**guide_bits + 1 entries): both the draw's top bits and
    its product with cdf[-1] are monotone, so the answer lies between two neighbours of the guide.
    """
    origin = _origin(seed, field)
    shift = np.uint64(64 - guide_bits)
    total, last = cdf[-1], cdf.size - 1
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        x = _draw(origin, n[i])
        u = np.float64(x >> np.uint64(11)) * 2.0**-53 * total
        j = np.int64(x >> shift)
        low, high = guide[j], guide[j + 1]
        while low < high:
            middle = (low + high) >> 1
            if cdf[middle] > u:
                high = middle
            else:
                low = middle + 1
        out[i] = min(low, last)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _time(n: int, spacing_us: int) -> np.int64:
    return np.int64(np.uint64(n) * np.uint64(spacing_us) // np.uint64(1000))


@njit(cache=True, nogil=True, error_model="numpy")
def event_times(n: Ints, base_ms: int, spacing_us: int) -> Ints:
    """Event time in ms: event n happens n * spacing_us after base_ms, floored to a millisecond."""
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        out[i] = base_ms + _time(n[i], spacing_us)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _shuffled(position: int, group: int, full: int) -> np.int64:
    """Event id at a position of the group shuffle; positions from `full` on (a group that is cut short) stay."""
    if group <= 1 or position >= full:
        return np.int64(position)
    g = np.uint64(group)
    rest = np.uint64(position) % g
    return np.int64(position) - np.int64(rest) + np.int64(rest * np.uint64(_STEP) % g)


@njit(cache=True, nogil=True, error_model="numpy")
def shuffled(start: int, stop: int, group: int, full: int) -> Ints:
    """Event ids at positions start .. stop - 1 of the group shuffle."""
    out = np.empty(stop - start, np.int64)
    for i in range(out.size):
        out[i] = _shuffled(start + i, group, full)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _delayed_key(n: int, origin: np.uint64, threshold: np.uint64, spacing_us: int, delay_ms: int) -> np.int64:
    late = _draw(origin, n) >> np.uint64(11) < threshold
    return _time(n, spacing_us) + (delay_ms if late else 0)


@njit(cache=True, nogil=True, error_model="numpy")
def delayed_keys(ids: Ints, late: Late) -> Ints:
    """Arrival time in ms (counted from the base): event time, plus delay_ms for the late ones."""
    seed, field, threshold, spacing_us, delay_ms = late
    origin = _origin(seed, field)
    out = np.empty(ids.size, np.int64)
    for i in range(ids.size):
        out[i] = _delayed_key(ids[i], origin, threshold, spacing_us, delay_ms)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def delayed_order(
    low: int, high: int, group: int, full: int, late: Late, first_key: int, keys: int, skip: int, take: int
) -> Ints:
    """Ids at ranks skip .. skip + take - 1 of positions low .. high - 1, ordered by arrival time, ties by position.

    A counting sort over the `keys` possible arrival times first_key, first_key + 1, ... ms (counted from the base),
    which places only events in the wanted ranks. Only the counters are as large as the window.
    """
    seed, field, threshold, spacing_us, delay_ms = late
    origin = _origin(seed, field)
    place = np.zeros(keys + 1, np.int64)
    for position in range(low, high):
        key = _delayed_key(_shuffled(position, group, full), origin, threshold, spacing_us, delay_ms)
        place[key - first_key + 1] += 1
    for k in range(keys):
        place[k + 1] += place[k]
    # Ranks of key k are place[k] .. place[k + 1] - 1, so whole keys outside the wanted ranks are skipped.
    first = np.searchsorted(place, skip, side="right") - 1
    last = np.searchsorted(place, skip + take, side="left")
    out = np.empty(take, np.int64)
    for position in range(low, high):
        n = _shuffled(position, group, full)
        k = _delayed_key(n, origin, threshold, spacing_us, delay_ms) - first_key
        if first <= k < last:
            rank = place[k] - skip
            place[k] += 1
            if 0 <= rank < take:
                out[rank] = n
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def of_kind(ids: Ints, first: int, total: int, low: int, high: int) -> tuple[Ints, Ints]:
    """(arrival numbers, ids) of the events with low <= id % total < high; ids[i] arrives as number first + i."""
    seq, n = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    t, lo, hi = np.uint64(total), np.uint64(low), np.uint64(high)
    count = 0
    for i in range(ids.size):
        kind = np.uint64(ids[i]) % t
        if lo <= kind < hi:
            seq[count] = first + i
            n[count] = ids[i]
            count += 1
    return seq[:count].copy(), n[:count].copy()


@njit(cache=True, nogil=True, error_model="numpy")
def of_kind_in_order(start: int, stop: int, total: int, low: int, high: int) -> Ints:
    """The ids in [start, stop) with low <= id % total < high."""
    out = np.empty(((stop - start) // total + 2) * (high - low), np.int64)
    count = 0
    for epoch in range(start // total, (stop + total - 1) // total):
        for n in range(max(epoch * total + low, start), min(epoch * total + high, stop)):
            out[count] = n
            count += 1
    return out[:count]


@njit(cache=True, nogil=True, error_model="numpy")
def _newest_person(n: int, p: int, a: int, b: int) -> np.int64:
    t = np.uint64(p + a + b)
    epoch = np.uint64(n) // t
    off = np.uint64(n) - epoch * t
    return max(np.int64(epoch) * p + min(np.int64(off), np.int64(p - 1)), np.int64(0))


@njit(cache=True, nogil=True, error_model="numpy")
def _newest_auction(n: int, p: int, a: int, b: int) -> np.int64:
    t = np.uint64(p + a + b)
    whole = np.uint64(n) // t
    epoch, off = np.int64(whole), np.int64(np.uint64(n) - whole * t)
    if off < p:
        # A person is about to be made: the newest auction is of the epoch before.
        return max((epoch - 1) * a + a - 1, np.int64(0))
    if off >= p + a:
        return max(epoch * a + a - 1, np.int64(0))
    return max(epoch * a + off - p, np.int64(0))


@njit(cache=True, nogil=True, error_model="numpy")
def newest_persons(n: Ints, p: int, a: int, b: int) -> Ints:
    """Newest person number (from 0) when event n is made, in epochs of p persons, a auctions, b bids."""
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        out[i] = _newest_person(n[i], p, a, b)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def newest_auctions(n: Ints, p: int, a: int, b: int) -> Ints:
    """Newest auction number (from 0) when event n is made."""
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        out[i] = _newest_auction(n[i], p, a, b)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def person_refs(
    n: Ints, seed: np.uint64, field: int, p: int, a: int, b: int, active: int, lead: int, hot: int, offset: int
) -> Ints:
    """Person that event n refers to: the hot one of its batch with P = 1 - 1/hot, else one of the active ones."""
    hot_origin, cold_origin = _origin(seed, field), _origin(seed, field + 1)
    ratio = np.uint64(hot)
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        last = _newest_person(n[i], p, a, b)
        if _draw(hot_origin, n[i]) % ratio > _ZERO:
            out[i] = last // _HOT_BATCH * _HOT_BATCH + offset
        else:
            alive = min(last + 1, active)
            out[i] = last + 1 - alive + np.int64(_draw(cold_origin, n[i]) % np.uint64(alive + lead))
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def auction_refs(
    n: Ints, seed: np.uint64, field: int, p: int, a: int, b: int, in_flight: int, lead: int, hot: int
) -> Ints:
    """Auction that event n refers to: the hot one of its batch with P = 1 - 1/hot, else one of those in flight."""
    hot_origin, cold_origin = _origin(seed, field), _origin(seed, field + 1)
    ratio = np.uint64(hot)
    out = np.empty(n.size, np.int64)
    for i in range(n.size):
        last = _newest_auction(n[i], p, a, b)
        if _draw(hot_origin, n[i]) % ratio > _ZERO:
            out[i] = last // _HOT_BATCH * _HOT_BATCH
        else:
            oldest = max(last - in_flight, 0)
            out[i] = oldest + np.int64(_draw(cold_origin, n[i]) % np.uint64(last - oldest + 1 + lead))
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def letters(n: Ints, seed: np.uint64, field: int, at: Ints, lengths: Ints, out: Bytes) -> None:
    """Write lengths[i] lower-case letters of event n[i] at out[at[i]:]; eight letters per draw, little end first."""
    for i in range(n.size):
        to, length = at[i], lengths[i]
        for word in range((length + 7) // 8):
            x = _draw(_origin(seed, field + (word << 16)), n[i])
            for j in range(word * 8, min(word * 8 + 8, length)):
                out[to + j] = np.uint8((x & np.uint64(0xFF)) % np.uint64(26) + np.uint64(97))
                x >>= np.uint64(8)
