"""Bids in open loop: a process of its own that writes a known sequence of them to a topic; and their counts, told another way.

    python -m tests.cluster.bids SERVERS SECONDS

writes them at `RATE` whatever becomes of the broker meanwhile, tells once a second how far it is (a line of JSON each), and
ends when the broker has all of them, once. Of Ferry nothing is imported.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer

TOPIC, PARTITIONS = "bids", 4
RATE, BLOCK = 50_000, 1_000
"""Bids in a second; how many of them are handed over at once."""
AUCTIONS = 1_000
BASE_MS = 1_500_000_000_000
DISORDER_MS = 500
END_MS = 3_600_000
"""So far behind everything are the last bids, one of each partition, by which all seconds are over."""

ROOM = {
    "queue.buffering.max.messages": 8_000_000,
    "queue.buffering.max.kbytes": 2_000_000,
    "message.timeout.ms": 600_000,
    "batch.num.messages": 20_000,
    "linger.ms": 20,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 0,
}
"""What comes while the broker is away waits in the producer: open loop."""


def block(number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(times, auctions) of a block of bids. Some auctions are bid for much more than others."""
    draw = np.random.default_rng([61, number])
    due = (np.arange(number * BLOCK, (number + 1) * BLOCK) * 1000) // RATE
    times = BASE_MS + DISORDER_MS + due - draw.integers(0, DISORDER_MS, BLOCK)
    return times, (AUCTIONS * draw.random(BLOCK) ** 2).astype(np.int64)


def blocks(seconds: float) -> int:
    """How many there are in so long a time."""
    return int(seconds * RATE) // BLOCK


def counts(seconds: float) -> npt.NDArray[np.int64]:
    """Bids by second since BASE_MS and by auction."""
    found = np.zeros((int(seconds) + 2) * AUCTIONS, np.int64)
    for number in range(blocks(seconds)):
        times, auctions = block(number)
        cells = (times - BASE_MS) // 1000 * AUCTIONS + auctions
        found += np.bincount(cells, minlength=len(found))
    return found.reshape(-1, AUCTIONS)


class Bidder:
    """Writes them."""

    def __init__(self, servers: str) -> None:
        self._failed = 0
        self._fatal = ""
        more: dict[str, Any] = {"on_delivery": self._note, "delivery.report.only.error": True, "error_cb": self._heed}
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **ROOM, **more})
        self._sent = 0
        self._late = 0.0
        """seconds that a block came later than it was due, at most"""

    def run(self, seconds: float) -> int:
        """All of them; 0 if the broker has them."""
        began, told = time.monotonic(), 0.0
        self.tell(began=time.time())
        for number in range(blocks(seconds)):
            due = began + number * BLOCK / RATE
            time.sleep(max(due - time.monotonic(), 0.0))
            now = time.monotonic()
            self._late = max(self._late, now - due)
            times, auctions = block(number)
            for i, (at, auction) in enumerate(zip(times.tolist(), auctions.tolist(), strict=True)):
                self._write(i % PARTITIONS, at, auction)
            self._producer.poll(0)
            if now >= told + 1.0:
                told = now
                self.tell()
        for partition in range(PARTITIONS):
            self._write(partition, BASE_MS + int(seconds) * 1000 + END_MS, 0)
        left = self._producer.flush(120)
        self.tell(left=left, seconds=time.monotonic() - began)
        return 1 if left or self._failed or self._fatal else 0

    def tell(self, **more: Any) -> None:
        """How far it is."""
        waiting = len(self._producer)
        about = {"sent": self._sent, "waiting": waiting, "failed": self._failed, "late": round(self._late, 3)}
        print(json.dumps({**about, "fatal": self._fatal, **more}), flush=True)

    def _write(self, partition: int, at: int, auction: int) -> None:
        self._producer.produce(TOPIC, b'{"ts":%d,"auction":%d}' % (at, auction), partition=partition)
        self._sent += 1

    def _note(self, error: Any, record: Any) -> None:
        self._failed += error is not None

    def _heed(self, error: Any) -> None:
        if error.fatal():
            self._fatal = error.str()


if __name__ == "__main__":
    sys.exit(Bidder(sys.argv[1]).run(float(sys.argv[2])))
