"""The transports of an instance's links to its peers: for its log, its metrics and the driver.

Links to drivers are TCP by design, and do not count. Must never influence a link.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from ferry.channel.choice import Choice
from ferry.contract.names import driver_generation
from ferry.contract.status import Links
from ferry.sidecar.metrics import LinkCount

log = logging.getLogger("ferry.sidecar")


class LinkWatch:
    """Polled by one thread."""

    def __init__(self, chosen: Choice) -> None:
        self._chosen = chosen
        self._before: dict[str, str] = {}
        """at the last look: why the link to a peer was not RDMA"""
        self._reported: dict[str, str] = {}
        self.links = Links(reason=chosen.reason if chosen.expected else "")
        self.rows: tuple[LinkCount, ...] = (LinkCount(self._labels(chosen.kind, chosen.reason), 0),)
        """The first is this side's own transport, even without a link of that kind."""
        self.lent_bytes = 0
        self.huge_bytes = 0

    def look(self) -> None:
        """Count the open links, and warn of links on an unexpected transport, once for each change."""
        self.lent_bytes = self._chosen.lent_bytes
        self.huge_bytes = self._chosen.huge_bytes
        links = [one for one in self._chosen.endpoint.links() if driver_generation(one.peer) is None]
        counts = Counter({self.rows[0].labels: 0})
        counts.update(self._labels(one.kind, one.reason) for one in links)
        self.rows = tuple(LinkCount(labels, count) for labels, count in counts.items())
        slow = {one.peer: one.reason or self._chosen.reason for one in links if one.kind != "rdma"}
        # A link begins on TCP: it counts if it still is at the next look.
        lasting = {peer: reason for peer, reason in slow.items() if peer in self._before}
        self._before = slow
        reason = self._chosen.reason
        if self._chosen.expected and not reason:
            self._tell(lasting, {one.peer for one in links if one.kind == "rdma"})
            reason = commonest(lasting.values())
        shown = reason if self._chosen.expected else ""
        self.links = Links(len(links) - len(slow), len(slow), shown, self._chosen.small_pages)

    def _tell(self, lasting: dict[str, str], fast: set[str]) -> None:
        for peer, reason in lasting.items():
            if self._reported.get(peer) != reason:
                log.warning("the link to %s is TCP although RDMA is expected: %s", peer, reason)
        for peer in self._reported:
            if peer in fast:
                log.info("the link to %s is RDMA again", peer)
        self._reported = lasting

    def _labels(self, kind: str, reason: str) -> tuple[str, ...]:
        one = self._chosen
        if kind == "rdma":
            return kind, one.device, one.gid, str(one.mtu), one.notify, ""
        return kind, "", "", "", "", reason or one.reason


def commonest(reasons: Iterable[str]) -> str:
    """The most frequent reason, the first in order if several are; empty without reasons."""
    counts = Counter(sorted(reason for reason in reasons if reason))
    return counts.most_common(1)[0][0] if counts else ""
