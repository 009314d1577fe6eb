"""A Prepare for all instances: the common part is encoded once, and each instance gets its own fragments.

Usually helpers are bits of the names in the table (`BriefPrepare`); a connection that has not carried the table gets
names, which `messages.decode` decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate, compress, pairwise

import msgpack

from ferry.contract.messages import BriefPrepare, Prepare
from ferry.contract.names import Fragment, InstanceId
from ferry.contract.plain import plain


class Named:
    """Each helper gets its own fragments; every instance gets the names of all helpers."""

    def __init__(self, prepare: Prepare) -> None:
        pack = msgpack.Packer(default=plain)
        before = (prepare.step, prepare.attempt, prepare.version)
        named = [pack.pack((helper, ())) for helper, _ in prepare.winners]
        ends = list(accumulate(map(len, named), initial=0))
        self._own = {
            helper: (start, pack.pack((helper, fragments)), end)
            for (helper, fragments), (start, end) in zip(prepare.winners, pairwise(ends), strict=True)
        }
        self._head = pack.pack_array_header(len(fields(prepare))) + b"".join(map(pack.pack, before))
        self._head += pack.pack_array_header(len(named))
        self._named = b"".join(named)
        self._tail = pack.pack(prepare.low) + pack.pack(prepare.high)

    def of(self, to: InstanceId) -> bytes:
        """The message to `to`, as `encode` would make it."""
        start, own, end = self._own.get(to, (0, b"", 0))
        return b"".join((self._head, self._named[:start], own, self._named[end:], self._tail))


class Brief:
    """Each helper gets its own fragments; every instance gets a bit for each name of the table."""

    @classmethod
    def made(cls, prepare: Prepare, names: Sequence[InstanceId]) -> Brief | None:
        """`names`: of the table of the Prepare, sorted. None if bits cannot express the helpers: they are in another
        order."""
        return cls(prepare, names) if all(a < b for (a, _), (b, _) in pairwise(prepare.winners)) else None

    def __init__(self, prepare: Prepare, names: Sequence[InstanceId]) -> None:
        p, self._own = prepare, dict(prepare.winners)
        bits, known = bytearray(-(-len(names) // 8)), set(names)
        for number, name in enumerate(names):
            bits[number >> 3] |= (name in self._own) << (number & 7)
        others = tuple(helper for helper in self._own if helper not in known)
        self._pack = msgpack.Packer(default=plain)
        common = (p.step, p.attempt, p.version, p.low, p.high, bytes(bits), others)
        self._head = self._pack.pack_array_header(len(fields(BriefPrepare))) + b"".join(map(self._pack.pack, common))

    def of(self, to: InstanceId) -> bytes:
        """The message to `to`, as `encode` would make it."""
        return b"".join((self._head, self._pack.pack(to), self._pack.pack(self._own.get(to, ()))))


def whole(brief: BriefPrepare, names: Sequence[InstanceId]) -> Prepare:
    """The full Prepare, as far as it concerns the receiver; `names` as for `Brief.made`."""
    bits = (byte >> bit & 1 for byte in brief.helpers for bit in range(8))
    own: dict[InstanceId, tuple[Fragment, ...]] = {brief.to: brief.own}
    helpers = sorted((*compress(names, bits), *brief.others))
    winners = tuple((helper, own.get(helper, ())) for helper in helpers)
    return Prepare(brief.step, brief.attempt, brief.version, winners, brief.low, brief.high)
