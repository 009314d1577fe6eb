"""Writes a topic of Kafka at the pace of the clock: `python -m bench.parts.latency.feed SERVERS RATE BEGIN SECONDS`.

Record i is due at BEGIN + i / RATE, whatever the broker does, and its key is i modulo `KEYS`.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import Producer

IN, OUT = "latency-in", "latency-out"
PARTITIONS = 2
KEYS = 1000
VALUES = [b'{"k":%d}' % key for key in range(KEYS)]


def producer(servers: str) -> Producer:
    """One that sends at once."""
    return Producer({"bootstrap.servers": servers, "linger.ms": 0.5, "enable.idempotence": True})


def write(to: Producer, numbers: range) -> None:
    """Records of these numbers, as they can be taken."""
    for i in numbers:
        while True:
            try:
                to.produce(IN, VALUES[i % KEYS], partition=i % PARTITIONS)
                break
            except BufferError:
                to.poll(0.001)


def main() -> None:
    """Write all of it."""
    servers, rate, begin, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    to, written, last = producer(servers), 0, int(rate * seconds)
    while written < last:
        due = min(int((time.time() - begin) * rate), last)
        write(to, range(written, due))
        written = max(written, due)
        to.poll(0)
        time.sleep(0.001)
    if to.flush(60):
        sys.exit("not all records were taken")


if __name__ == "__main__":
    main()
