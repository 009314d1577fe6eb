"""Registrations, heartbeats, shapes and the journal of one run (names in `ferry.contract.places`)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import redis

from ferry.contract import places
from ferry.contract.errors import Bug, Superseded, Unreachable
from ferry.contract.routing import Table, Version
from ferry.contract.shapes import Shape

SWAP = """
local now = redis.call('GET', KEYS[1])
if now then
  local doc = cjson.decode(now)
  local version = doc['version']
  if doc['writer'] == ARGV[6] and version[1] == tonumber(ARGV[3]) and version[2] == tonumber(ARGV[4]) then
    return 'done'
  end
  if ARGV[1] == '' or version[1] ~= tonumber(ARGV[1]) or version[2] ~= tonumber(ARGV[2]) then return now end
elseif ARGV[1] ~= '' then return 'lost' end
redis.call('SET', KEYS[1], ARGV[5])
return 'done'
"""
"""Swap the journal if its version is the expected one; the same writer's repeated write is done already.

The writer counts: two drivers that read the same journal both claim the next generation, and only one of them has it.
"""


ANNOUNCE = """
local now = redis.call('GET', KEYS[1])
if now then
  local doc = cjson.decode(now)
  local mine = tonumber(ARGV[1])
  if doc['generation'] > mine then return 0 end
  if doc['generation'] == mine and doc['claimed'] and ARGV[2] == '0' then return 0 end
end
redis.call('SET', KEYS[1], ARGV[3])
return 1
"""
"""Say where the driver is, unless a stronger claim is there: a newer generation, or the same and claimed."""


WITHDRAW = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end"
"""Take a registration back, but never that of a successor."""


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise Unreachable(f"{what}: Redis does not answer: {error}") from error


class Board:
    """One process's view of the board. Thread-safe."""

    def __init__(self, run: str, url: str, secret: str, patience_seconds: float = 2.0) -> None:
        """The password: of the URL if it names one, else the run's secret for a private Redis (unix socket), else none."""
        self._run = run
        self._writer = secrets.token_hex(8)
        password = secret if url.startswith("unix:") else None
        self._redis = redis.Redis.from_url(
            url, password=password, socket_timeout=patience_seconds, socket_connect_timeout=1.0, decode_responses=True
        )
        self._swap = self._redis.register_script(SWAP)
        self._announce = self._redis.register_script(ANNOUNCE)
        self._withdraw = self._redis.register_script(WITHDRAW)

    def ping(self) -> bool:
        """Whether Redis answers."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    # ---- the pipeline's state
    def publish_shapes(self, shapes: list[Shape]) -> None:
        """Say what the stateful operators are. Raises Bug when the running job has others."""
        text = json.dumps({"shapes": [shape.to_wire() for shape in shapes]})
        with _reaching("publishing the pipeline"):
            before = self._text(self._redis.get(places.pipeline(self._run)))
            if before is not None and json.loads(before) != json.loads(text):
                raise Bug(
                    "the pipeline of a running job changed its operators: replacing a program is not possible yet"
                )
            self._redis.set(places.pipeline(self._run), text)

    def shapes(self) -> list[Shape] | None:
        """The stateful operators, None as long as the driver has not said."""
        with _reaching("looking for the pipeline"):
            text = self._text(self._redis.get(places.pipeline(self._run)))
        return None if text is None else [Shape.from_wire(doc) for doc in json.loads(text)["shapes"]]

    # ---- who is there
    def register(self, entry: places.Registration) -> None:
        """Say where this life of an instance is."""
        with _reaching(f"registering {entry.instance}"):
            self._redis.hset(places.instances(self._run), entry.instance, entry.dump())

    def register_again(self, entry: places.Registration) -> None:
        """The same, unless there is an entry of this instance: then another life of it is there."""
        with _reaching(f"registering {entry.instance} again"):
            self._redis.hsetnx(places.instances(self._run), entry.instance, entry.dump())

    def unregister(self, entry: places.Registration) -> None:
        """This life will not come back by itself: its worker was released, or has a successor elsewhere."""
        with _reaching(f"signing off {entry.instance}"):
            self._withdraw(keys=[places.instances(self._run)], args=[entry.instance, entry.dump()])

    def registrations(self) -> list[places.Registration]:
        """All instances that ever registered, each with its last life."""
        with _reaching("looking for instances"):
            entries = cast("dict[str, str]", self._redis.hgetall(places.instances(self._run)))
        return [places.Registration.load(text) for text in entries.values()]

    def registration(self, instance: str) -> places.Registration | None:
        """Where one instance is."""
        with _reaching(f"looking for {instance}"):
            text = self._text(self._redis.hget(places.instances(self._run), instance))
        return None if text is None else places.Registration.load(text)

    def beat(self, worker: int, ttl_ms: int) -> None:
        """This worker is alive for the next milliseconds."""
        with _reaching(f"heartbeat of worker {worker}"):
            self._redis.set(places.beat(self._run, worker), "alive", px=ttl_ms)

    def beating(self, workers: list[int]) -> list[bool]:
        """Which of these workers are alive."""
        if not workers:
            return []
        with _reaching("looking for heartbeats"):
            found = cast("list[Any]", self._redis.mget([places.beat(self._run, w) for w in workers]))
        return [value is not None for value in found]

    # ---- where the driver is
    def announce(self, place: places.DriverPlace) -> bool:
        """Say where this driver is. False when a stronger claim is there already."""
        args: list[str | int] = [place.generation, int(place.claimed), place.dump()]
        with _reaching("announcing the driver"):
            return bool(self._announce(keys=[places.driver(self._run)], args=args))

    def driver(self) -> places.DriverPlace | None:
        """Where the driver is, None as long as none has said so."""
        with _reaching("looking for the driver"):
            text = self._text(self._redis.get(places.driver(self._run)))
        return None if text is None else places.DriverPlace.load(text)

    # ---- the journal
    def journal(self) -> Table | None:
        """The journaled table, None for a new job."""
        with _reaching("reading the journal"):
            text = self._text(self._redis.get(places.journal(self._run)))
        return None if text is None else Table.from_wire(json.loads(text))

    def swap_journal(self, table: Table, expected: Version | None) -> None:
        """Make `table` the journaled one if the journal is at `expected`; the same table again is done already.

        Redis runs with `appendfsync always`: returning means that it is on disk. Raises Superseded with the generation
        found when the journal is at another version, and Unreachable when the outcome is unknown.
        """
        document = json.dumps({**table.to_wire(), "writer": self._writer})
        args = [*(expected or ("", "")), *table.version, document, self._writer]
        with _reaching("writing the journal"):
            answer = str(self._swap(keys=[places.journal(self._run)], args=args))
        if answer == "lost":
            raise Superseded(
                "the journal is gone: a removed member could pass for a current one; "
                "bring back what Redis held, or make a new job"
            )
        if answer != "done":
            raise Superseded(f"generation {json.loads(answer)['version'][0]} has taken over the journal")

    @staticmethod
    def _text(value: Any) -> str | None:
        return None if value is None else str(value)
