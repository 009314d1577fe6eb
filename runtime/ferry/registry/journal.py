"""The journal's interface, and the journal in Redis.

The journal is the truth about groups: a write is on disk before it is answered, and a write with another expected
version is refused.
"""

from __future__ import annotations

import json
import logging
import secrets
import zlib
from typing import Any, Protocol, cast

from ferry.contract import places
from ferry.contract import registry_scripts as scripts
from ferry.contract.catalogue import Catalogue
from ferry.contract.errors import StateUnavailable, Superseded, Unreachable
from ferry.contract.routing import Table, Version
from ferry.registry.connection import connected, reaching

log = logging.getLogger("ferry.registry")

GONE = "the journal is gone: a removed member could pass for a current one; bring back what {where} held, or make a new job"

DAMAGED = (
    "the journal in Redis is damaged, and groups could differ from before: bring back what Redis held, "
    "or make a new job"
)

MOVED_GENERATION = 1 << 40
"""Generation of a journal that has moved elsewhere: no driver continues it."""


class JournalStore(Protocol):
    """The store of one job's routing table. Thread-safe; every failure to reach it is Unreachable."""

    look_seconds: float
    """Interval of checks whether it can be reached."""

    def catalogue(self) -> Catalogue | None:
        """The job's operators and programs, None for a new job."""

    def record(self, catalogue: Catalogue, generation: int) -> None:
        """Replace them. Returning means that they are on disk, as with `swap`.

        Raises Superseded when the journal has a higher generation: an older driver must not give an id twice.
        """

    def read(self) -> Table | None:
        """The journaled table, None for a new job."""

    def swap(self, table: Table, expected: Version | None) -> None:
        """Make `table` the journaled one if the journal is at `expected`; a repeated write of the same table succeeds.

        Returning means that it is on disk. Raises Superseded with the present generation when the journal is at another
        version, and Unreachable when the outcome is unknown.
        """

    def is_reachable(self) -> bool:
        """Whether it can be reached now."""

    def weakness(self) -> str:
        """Why it may lose acknowledged writes; empty when it does not, or when this is unknown."""


def taken_over(generation: int) -> Superseded:
    """The journal is at another version than its writer has expected."""
    return Superseded(f"generation {generation} has taken over the journal")


class RedisJournal:
    """The journal in Redis, which has to run with `appendfsync always`."""

    look_seconds = 0.5

    def __init__(self, run: str, url: str, secret: str, patience_seconds: float = 2.0) -> None:
        self._run = run
        self._writer = secrets.token_hex(8)
        self._redis = connected(url, secret, patience_seconds)
        self._swap = self._redis.register_script(scripts.SWAP)
        self._record = self._redis.register_script(scripts.RECORD)

    def is_reachable(self) -> bool:
        try:
            with reaching("looking for the journal"):
                return bool(self._redis.ping())
        except Unreachable:
            return False

    def weakness(self) -> str:
        try:
            with reaching("asking Redis for its settings"):
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

    def catalogue(self) -> Catalogue | None:
        with reaching("looking for the pipeline"):
            text = cast("str | None", self._redis.get(places.pipeline(self._run)))
        return None if text is None else Catalogue.load(text)

    def record(self, catalogue: Catalogue, generation: int) -> None:
        keys = [places.journal(self._run), places.pipeline(self._run)]
        with reaching("publishing the pipeline"):
            answer = str(self._record(keys=keys, args=[generation, catalogue.dump()]))
        if answer != "done":
            raise taken_over(json.loads(answer)["version"][0])

    def read(self) -> Table | None:
        """Raises Superseded for a journal that has moved, StateUnavailable for a damaged one."""
        with reaching("reading the journal"):
            text = cast("str | None", self._redis.get(places.journal(self._run)))
        if text is None:
            return None
        document = _document(text)
        if "moved" in document:
            raise Superseded(GONE.format(where=document["moved"]))
        return Table.from_wire(document)

    def swap(self, table: Table, expected: Version | None) -> None:
        document = _text({**table.to_journal(), "writer": self._writer})
        args = [*(expected or ("", "")), *table.version, document, self._writer]
        with reaching("writing the journal"):
            answer = str(self._swap(keys=[places.journal(self._run)], args=args))
        if answer == "lost":
            raise Superseded(GONE.format(where="Redis"))
        if answer != "done":
            raise taken_over(json.loads(answer)["version"][0])

    def move(self, where: str) -> None:
        """The journal is elsewhere from now on: no driver of any release continues this one."""
        document = {"version": [MOVED_GENERATION, 0], "writer": "", "moved": where}
        with reaching("closing the journal"):
            self._redis.set(places.journal(self._run), json.dumps(document))


def _text(document: dict[str, Any]) -> str:
    return json.dumps({**document, "crc": zlib.crc32(json.dumps(document).encode())})


def _document(text: str) -> dict[str, Any]:
    """Journals of older releases have no checksum."""
    try:
        document: dict[str, Any] = json.loads(text)
        checksum = document.pop("crc", None)
    except (ValueError, AttributeError, TypeError) as error:
        raise StateUnavailable(f"{DAMAGED} ({error})") from error
    if checksum not in (None, zlib.crc32(json.dumps(document).encode())):
        raise StateUnavailable(DAMAGED)
    return document
