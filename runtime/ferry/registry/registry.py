"""Registrations, heartbeats and operator descriptors of one run (names in `ferry.contract.places`).

All of it is soft state: its writer writes it again when Redis has lost it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from ferry.contract import places
from ferry.contract import registry_scripts as scripts
from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import Superseded
from ferry.contract.signs import Pulse
from ferry.registry.connection import connected, reaching

ALIVE = "alive"
"""A heartbeat without further content."""

PLACES_MAX = 16
"""Former places of a worker; their parents are refused when they come back."""


class Changes(NamedTuple):
    """Changes of the registrations."""

    number: int
    """number of the last change"""
    whole: bool
    """these are all registrations"""
    entries: dict[str, places.Registration | None]
    """None: it was withdrawn"""


class Claim(NamedTuple):
    """A parent's claim of its worker."""

    life: int
    line: str
    """as stored in Redis: the life, and the places that have had the worker"""


class JobRegistry:
    """One process's view of the registry. Thread-safe."""

    def __init__(self, run: str, url: str, secret: str, patience_seconds: float = 2.0) -> None:
        self._run = run
        self._redis = connected(url, secret, patience_seconds)
        self._announce = self._redis.register_script(scripts.ANNOUNCE)
        self._register = self._redis.register_script(scripts.REGISTER)
        self._withdraw = self._redis.register_script(scripts.WITHDRAW)
        self._changes = self._redis.register_script(scripts.CHANGES)
        self._claim = self._redis.register_script(scripts.CLAIM)
        self._beat = self._redis.register_script(scripts.BEAT)
        self._heard = self._redis.register_script(scripts.HEARD)

    # ---- the pipeline's operators
    def publish(self, catalogue: Catalogue) -> None:
        """Publish the operators and programs, unless they are there; the journal decides whether they are allowed."""
        with reaching("publishing the pipeline"):
            if self.catalogue() != catalogue:
                self._redis.set(places.pipeline(self._run), catalogue.dump())

    def catalogue(self) -> Catalogue | None:
        """The operators and programs, None until the driver has published them."""
        with reaching("looking for the pipeline"):
            text = self._text(self._redis.get(places.pipeline(self._run)))
        return None if text is None else Catalogue.load(text)

    # ---- members
    def register(self, entry: places.Registration) -> places.Registration:
        """Register this life of an instance; returns the present registration: a later life's stays."""
        with reaching(f"registering {entry.instance}"):
            there = self._register(keys=self._roll_keys(), args=[entry.instance, entry.incarnation, entry.dump()])
        return places.Registration.load(str(there))

    def unregister(self, entry: places.Registration) -> None:
        """Withdraw the registration: the worker was released, is lost, or has a successor elsewhere."""
        with reaching(f"unregistering {entry.instance}"):
            self._withdraw(keys=self._roll_keys(), args=[entry.instance, entry.dump()])

    def changes(self, known: int) -> Changes:
        """Changes after this change number; 0: everything. `MemberCache` keeps it."""
        with reaching("looking for instances"):
            # Usually there are none, and every process asks all the time: the answer has to be few bytes.
            if known and self._text(self._redis.get(places.last_change(self._run))) == str(known):
                return Changes(known, False, {})
            number, *found = cast("list[Any]", self._changes(keys=self._roll_keys(), args=[known]))
        loaded = [None if text is None else places.Registration.load(text) for text in found[1::2]]
        return Changes(number, known == 0 or number < known, dict(zip(found[::2], loaded, strict=True)))

    def claim(self, worker: int, place: str) -> Claim:
        """A life for the parent of a worker that was started at `place` (a pod, say): it owns the worker from now on.

        Raises Superseded when the worker has a parent elsewhere that came after an earlier one of this place.
        """
        with reaching(f"claiming worker {worker}"):
            line = str(self._claim(keys=[places.parents(self._run)], args=[worker, place, PLACES_MAX]))
        if not line:
            raise Superseded(f"worker {worker} was started again elsewhere: this place does not own it any more")
        return Claim(int(line.partition(" ")[0]), line)

    def beat(self, worker: int, claim: Claim, ttl_ms: int, pulses: Sequence[Pulse] = ()) -> None:
        """This worker is alive for the next milliseconds. Raises Superseded when a later life of its parent owns it.

        A Redis that has lost the claim gets it again, with all places that have lost the worker. `pulses`: signs of
        life that the parent sends for busy instances.
        """
        beat = json.dumps([[one.instance, one.busy_ms, one.code, one.code_ms] for one in pulses]) if pulses else ALIVE
        with reaching(f"heartbeat of worker {worker}"):
            done = self._beat(keys=[places.parents(self._run)], args=[worker, claim.life, ttl_ms, claim.line, beat])
        if not done:
            raise Superseded(f"worker {worker} was started again elsewhere")

    def heard(self, workers: list[int]) -> tuple[list[int], list[Pulse]]:
        """(Workers without a heartbeat, signs of life that parents of the others send for their instances)."""
        with reaching("looking for heartbeats"):
            found = self._heard(keys=[places.beat(self._run)], args=[",".join(map(str, workers)), ALIVE])
        beats = [json.loads(one) for one in cast("list[Any]", found) if not isinstance(one, int)]
        return [one for one in found if isinstance(one, int)], [Pulse(*pulse) for beat in beats for pulse in beat]

    # ---- calls that may kill drivers
    def enter(self, call: str) -> int:
        """A driver begins a call that may have killed drivers before; returns how many began it and did not return."""
        with reaching("noting what is about to be called"):
            pipe = self._redis.pipeline()
            pipe.hget(places.in_sink(self._run), call)
            pipe.hincrby(places.in_sink(self._run), call, 1)
            before, _ = pipe.execute()
        return int(before or 0)

    def leave(self) -> None:
        """The driver has survived the call."""
        with reaching("noting what was called"):
            self._redis.delete(places.in_sink(self._run))

    # ---- the driver's address
    def announce(self, place: places.DriverPlace) -> bool:
        """Publish this driver's address. False when a stronger claim exists."""
        args: list[str | int] = [place.generation, int(place.claimed), place.dump()]
        with reaching("announcing the driver"):
            return bool(self._announce(keys=[places.driver(self._run)], args=args))

    def driver(self) -> places.DriverPlace | None:
        """The driver's address, None until a driver has announced one."""
        with reaching("looking for the driver"):
            text = self._text(self._redis.get(places.driver(self._run)))
        return None if text is None else places.DriverPlace.load(text)

    def _roll_keys(self) -> list[str]:
        return [places.instances(self._run), places.changed(self._run), places.last_change(self._run)]

    @staticmethod
    def _text(value: Any) -> str | None:
        return None if value is None else str(value)
