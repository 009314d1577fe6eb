"""The journal in Redis: the routing table, changed only by compare-and-swap of its version.

Redis runs with `appendfsync always`, so an answer means that the change is on disk. While Redis is away a write waits
and is tried again: its outcome is unknown until then, so nothing is prepared meanwhile.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable

import redis

from ferry.contract import places
from ferry.contract.documents import RunSettings
from ferry.contract.routing import Table, Version
from ferry.protocol import coordinator as core

log = logging.getLogger("ferry.coordinator")

SWAP = """
local now = redis.call('GET', KEYS[1])
if now then
  local doc = cjson.decode(now)
  local version = doc['version']
  if version[1] == tonumber(ARGV[3]) and version[2] == tonumber(ARGV[4]) then return 'done' end
  if ARGV[1] == '' or version[1] ~= tonumber(ARGV[1]) or version[2] ~= tonumber(ARGV[2]) then return now end
elseif ARGV[1] ~= '' then return 'lost' end
redis.call('SET', KEYS[1], ARGV[5])
return 'done'
"""
"""Swap the journal if its version is the expected one; a repeated write of the same table is done already."""


class JournalStore:
    """Reads and swaps the journal; reports to the loop through `post`."""

    def __init__(self, settings: RunSettings) -> None:
        self._key = places.journal(settings.run)
        self._redis = redis.Redis.from_url(
            settings.redis, password=settings.secret, socket_timeout=2.0, socket_connect_timeout=1.0
        )
        self._swap = self._redis.register_script(SWAP)
        self._writes: queue.SimpleQueue[core.Journal | None] = queue.SimpleQueue()
        self._post: Callable[[core.Event], None] = lambda event: None

    def read(self) -> Table | None:
        """The journaled table, None for a new job. Waits for Redis."""
        while True:
            try:
                text = self._redis.get(self._key)
                return Table.from_wire(json.loads(text)) if text else None
            except redis.RedisError as error:
                log.warning("waiting for the journal: %s", error)
                time.sleep(0.5)

    def start(self, post: Callable[[core.Event], None]) -> None:
        """Begin to serve writes."""
        self._post = post
        threading.Thread(target=self._run, name="journal", daemon=True).start()
        threading.Thread(target=self._watch, name="journal-watch", daemon=True).start()

    def write(self, effect: core.Journal) -> None:
        """Queue a swap; the answer comes as an event."""
        self._writes.put(effect)

    def _run(self) -> None:
        while (effect := self._writes.get()) is not None:
            expected = tuple(effect.expected) if effect.expected else ("", "")
            args = [*expected, *effect.table.version, json.dumps(effect.table.to_wire())]
            while True:
                try:
                    answer = self._swap(keys=[self._key], args=args)
                    break
                except redis.RedisError as error:
                    log.warning("the journal is away, group changes wait: %s", error)
                    self._post(core.JournalReachable(False))
                    time.sleep(0.3)
            answer = answer if isinstance(answer, bytes) else str(answer).encode()
            if answer == b"done":
                self._post(core.Journaled(effect.table.version))
            elif answer == b"lost":
                self._post(core.JournalRefused(-1))
            else:
                self._post(core.JournalRefused(Version(*json.loads(answer)["version"]).generation))

    def _watch(self) -> None:
        """Tell the loop whether group changes are possible now."""
        up = True
        while True:
            try:
                self._redis.ping()
                now = True
            except redis.RedisError:
                now = False
            if now != up:
                log.warning("the journal is %s", "back" if now else "away: group changes wait, epochs go on")
                self._post(core.JournalReachable(now))
            up = now
            time.sleep(0.5)
