"""A Prepare on its way to all instances: encoded once, though each gets its own fragments. Inverse: `messages.decode`."""

from __future__ import annotations

from dataclasses import fields
from itertools import accumulate, pairwise

import msgpack

from ferry.contract.messages import Prepare, plain
from ferry.contract.names import InstanceId


class Parts:
    """A Prepare, encoded once for all: each helper gets its own fragments, and everybody the names of all helpers."""

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
        """What `to` gets: as `encode` would make it."""
        start, own, end = self._own.get(to, (0, b"", 0))
        return b"".join((self._head, self._named[:start], own, self._named[end:], self._tail))
