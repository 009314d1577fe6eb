"""Registrations, heartbeats, operator descriptors and the journal of one run (names in `ferry.contract.places`)."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import redis

from ferry.contract import places
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused, Superseded, Unreachable
from ferry.contract.routing import Table, Version
from ferry.contract.tickets import derived
from ferry.registry import scripts

log = logging.getLogger("ferry.registry")

PLACES_MAX = 16
"""Places that had a worker, whose parents are told so when they come back."""


class Changes(NamedTuple):
    """What became of the registrations."""

    number: int
    """of the last change"""
    whole: bool
    """these are all there are"""
    entries: dict[str, places.Registration | None]
    """None: it was taken back"""


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise Unreachable(f"{what}: Redis does not answer: {error}") from error


class JobRegistry:
    """One process's view of the registry. Thread-safe."""

    def __init__(self, run: str, url: str, secret: str, patience_seconds: float = 2.0) -> None:
        """The password: of the URL if it names one, else what is derived for a private Redis (unix socket), else none."""
        self._run = run
        self._writer = secrets.token_hex(8)
        password = derived(secret, "redis") if url.startswith("unix:") else None
        self._redis = redis.Redis.from_url(
            url, password=password, socket_timeout=patience_seconds, socket_connect_timeout=1.0, decode_responses=True
        )
        self._swap = self._redis.register_script(scripts.SWAP)
        self._announce = self._redis.register_script(scripts.ANNOUNCE)
        self._register = self._redis.register_script(scripts.REGISTER)
        self._withdraw = self._redis.register_script(scripts.WITHDRAW)
        self._changes = self._redis.register_script(scripts.CHANGES)
        self._claim = self._redis.register_script(scripts.CLAIM)
        self._beat = self._redis.register_script(scripts.BEAT)
        self._silent = self._redis.register_script(scripts.SILENT)

    def ping(self) -> bool:
        """Whether Redis answers."""
        try:
            return bool(self._redis.ping())
        except redis.RedisError:
            return False

    def weakness(self) -> str:
        """Why Redis may lose a journal that it has acknowledged; empty when it does not, or does not say."""
        try:
            with _reaching("asking Redis how it keeps what it is given"):
                found = cast("dict[str, str]", self._redis.config_get("append*"))
        except Unreachable as error:
            log.warning("%s: it has to be `appendonly yes` and `appendfsync always`", error)
            return ""
        now = {name: found.get(name, "?") for name in ("appendonly", "appendfsync")}
        if now == {"appendonly": "yes", "appendfsync": "always"}:
            return ""
        return (
            f"Redis is set to {', '.join(f'{name} {value}' for name, value in now.items())}: when it fails it may lose a "
            "change of groups, and the job with it; set `appendonly yes` and `appendfsync always`"
        )

    # ---- the pipeline's state
    def publish_descriptors(self, descriptors: list[OperatorDescriptor]) -> None:
        """Say what the stateful operators are. Raises SpecRefused when the running job has others."""
        text = json.dumps({"operators": [descriptor.to_wire() for descriptor in descriptors]})
        with _reaching("publishing the pipeline"):
            before = self._text(self._redis.get(places.pipeline(self._run)))
            if before is not None and _descriptors(before) != descriptors:
                names = [[one["name"] for one in json.loads(document)["operators"]] for document in (before, text)]
                raise SpecRefused(
                    f"the pipeline's operators are not those of the running job (they were {', '.join(names[0])}, now they "
                    f"are {', '.join(names[1])}; keys, windows and aggregates count as well), and their state cannot be "
                    "taken over yet. Put them back as they were, or delete the job and start it under the new program"
                )
            self._redis.set(places.pipeline(self._run), text)

    def descriptors(self) -> list[OperatorDescriptor] | None:
        """The stateful operators, None as long as the driver has not said."""
        with _reaching("looking for the pipeline"):
            text = self._text(self._redis.get(places.pipeline(self._run)))
        return None if text is None else _descriptors(text)

    # ---- who is there
    def register(self, entry: places.Registration) -> places.Registration:
        """Say where this life of an instance is; which registration is there now: a later life's stays."""
        with _reaching(f"registering {entry.instance}"):
            there = self._register(keys=self._roll_keys(), args=[entry.instance, entry.incarnation, entry.dump()])
        return places.Registration.load(str(there))

    def unregister(self, entry: places.Registration) -> None:
        """This life will not come back by itself: its worker was released, is gone, or has a successor elsewhere."""
        with _reaching(f"signing off {entry.instance}"):
            self._withdraw(keys=self._roll_keys(), args=[entry.instance, entry.dump()])

    def changes(self, known: int) -> Changes:
        """What has changed after the change of that number; 0: everything. `Roll` keeps it."""
        with _reaching("looking for instances"):
            # Mostly nothing has, and this is what everybody asks all the time: it has to be few bytes.
            if known and self._text(self._redis.get(places.last_change(self._run))) == str(known):
                return Changes(known, False, {})
            number, *found = cast("list[Any]", self._changes(keys=self._roll_keys(), args=[known]))
        loaded = [None if text is None else places.Registration.load(text) for text in found[1::2]]
        return Changes(number, known == 0 or number < known, dict(zip(found[::2], loaded, strict=True)))

    def claim(self, worker: int, place: str) -> int:
        """A life for the parent of a worker that was started at `place` (a pod, say): it has the worker from now on.

        Raises Superseded when the worker has a parent elsewhere that came after an earlier one of this place.
        """
        with _reaching(f"claiming worker {worker}"):
            life = int(self._claim(keys=[places.parents(self._run)], args=[worker, place, PLACES_MAX]))
        if not life:
            raise Superseded(f"worker {worker} was started anew elsewhere: this place has it no more")
        return life

    def beat(self, worker: int, life: int, ttl_ms: int) -> None:
        """This worker is alive for the next milliseconds. Raises Superseded when a later life of its parent has it."""
        with _reaching(f"heartbeat of worker {worker}"):
            done = self._beat(keys=[places.parents(self._run)], args=[worker, life, ttl_ms])
        if not done:
            raise Superseded(f"worker {worker} was started anew elsewhere")

    def silent(self, workers: list[int]) -> list[int]:
        """Which of these workers have no heartbeat."""
        with _reaching("looking for heartbeats"):
            found = self._silent(keys=[places.beat(self._run)], args=[",".join(map(str, workers))])
        return cast("list[int]", found)

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

    def _roll_keys(self) -> list[str]:
        return [places.instances(self._run), places.changed(self._run), places.last_change(self._run)]

    @staticmethod
    def _text(value: Any) -> str | None:
        return None if value is None else str(value)


def _descriptors(text: str) -> list[OperatorDescriptor]:
    return [OperatorDescriptor.from_wire(doc) for doc in json.loads(text)["operators"]]
