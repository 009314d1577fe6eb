"""The shelf: which checkpoints a location has, how one is found, and what may go.

    manifests/NUMBER-GENERATION-TOKEN.json     one checkpoint each, never replaced
    files/...                                  what they name
    pins/TOKEN.json                            what a reader needs, whatever becomes of the manifest, for a while

Why no file goes that somebody needs, however slow they are, and whoever else collects:

* A reader writes its pin, THEN looks that the manifest is still there, THEN reads. Whoever removes files lists the manifests
  and THEN the pins: was the manifest gone from that listing, then a reader that has seen it had written its pin before.
* A writer has files in flight until its manifest names them. Whoever removes files asks what is in flight and THEN lists the
  manifests: what stopped being in flight in between is named by one of these.
* Candidates are listed before all that, so a file that came later is none.

So the order of `collect` is: old manifests go; files; in flight; manifests; pins; then files go. Must never remove a file
while a manifest cannot be read, for that one may name it.

A listing of a store may be old, or half of one: `collect` removes nothing when a listing lacks a manifest that can be read,
and this shelf has published it or seen it before. Clocks of machines and stores differ, and step: files and pins are as old
as the time since this shelf saw them first, by a clock that never steps.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from ferry.contract.errors import Fault, Refusal
from ferry.contract.manifest import Manifest
from ferry.durable.location import Location, Missing, final_name
from ferry.durable.parts import Corrupt

log = logging.getLogger("ferry.durable")

MANIFESTS, FILES, PINS = "manifests", "files", "pins"

PIN_SECONDS = 1800
"""A reader that renews its pin less often than this may find that files are gone."""

UNKNOWN_SECONDS = 600
"""Files that a shelf has not seen for this long stay, whoever has written them."""

_NAME = re.compile(rf"{MANIFESTS}/(\d{{10}})-(\d{{6}})-[0-9a-f]+\.json")


class Pin:
    """What keeps the files of a checkpoint for its reader. There are two for a while, lest a listing finds neither."""

    def __init__(self, location: Location, files: Sequence[str]) -> None:
        """Nothing is pinned before `renew`."""
        self._location = location
        self._files = files
        self._names: list[str] = []

    def renew(self) -> None:
        """For another PIN_SECONDS."""
        name = f"{PINS}/{secrets.token_hex(8)}.json"
        self._location.write_new(name, json.dumps({"files": self._files}).encode())
        self._names.append(name)
        while len(self._names) > 2:
            self._location.remove(self._names.pop(0))

    def release(self) -> None:
        """It is removed now, or, if the store cannot be reached, expires."""
        try:
            for name in self._names:
                self._location.remove(name)
        except Fault as error:
            log.warning("a pin stays until it expires: %s", error)


class Shelf:
    """The checkpoints at one location."""

    def __init__(self, location: Location, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds since any moment; it never steps."""
        self.location = location
        self._clock = clock
        self._read: dict[str, Manifest] = {}
        """By name. A manifest is never replaced."""
        self._known: set[str] = set()
        """Names of manifests that were published here, or listed once, and not removed here."""
        self._first_seen: dict[str, float] = {}
        """By name of a file or pin of the last listing, when this shelf saw it first."""

    @staticmethod
    def at(url: str) -> Shelf:
        """The shelf that a manifest lies on, by its URL. Raises SpecRefused, and Refusal for what is no such URL."""
        return _shelf_of(url)[0]

    def url(self, manifest: Manifest) -> str:
        """Of the manifest's file. Raises Missing."""
        return self.location.url_of(self._names_of(manifest)[0])

    def manifests(self) -> list[Manifest]:
        """The newest first; what cannot be read is logged and left out. Raises Unreachable, as all of it does."""
        return [one for one in self._listed().values() if isinstance(one, Manifest)]

    def next_number(self) -> int:
        """Above all that are there."""
        return max((_order(name)[0] for name in self._names()), default=0) + 1

    def publish(self, manifest: Manifest) -> None:
        """It is a checkpoint from now on. All that it names must be in the store, closed."""
        token = secrets.token_hex(8)
        name = f"{MANIFESTS}/{manifest.number:010d}-{manifest.generation:06d}-{token}.json"
        self.location.write_new(name, manifest.dump())
        self._known.add(name)

    def find(self, which: str) -> Manifest:
        """By `latest`, its number, its name, or the URL or path of its file, which may lie on another shelf.

        Raises Refusal that says what there is, or what is wrong with it: the one before is never taken instead.
        """
        if "/" in which:
            shelf, name = _shelf_of(which)
            try:
                return _found(shelf._load(name))
            except Missing as error:
                raise Refusal(f"there is no checkpoint {which}: {_described(shelf._listed())}") from error
        listed = self._listed()
        if which == "latest":
            chosen = [*listed]
        elif which.isdecimal():
            chosen = [name for name in listed if _order(name)[0] == int(which)]
        else:
            chosen = [name for name, one in listed.items() if isinstance(one, Manifest) and one.name == which]
        if not chosen:
            raise Refusal(f"there is no checkpoint {which!r} at {self.location.text}: {_described(listed)}")
        return _found(listed[chosen[0]])

    def check(self, manifest: Manifest) -> None:
        """Raises Corrupt when a file that it names is not there, or not of its size."""
        there = {entry.name: entry.bytes for entry in self.location.names(FILES)}
        wrong = _wrong(manifest, there)
        if not wrong:
            return
        order = (manifest.number, manifest.generation)
        older = [one for one in self.manifests() if (one.number, one.generation) < order and not _wrong(one, there)]
        advice = "no older checkpoint is whole"
        if older:
            whole = older[0]
            advice = f"`restoreFrom: {whole.number}` would begin from epoch {whole.epoch}: it is not taken by itself"
        raise Corrupt(f"checkpoint {manifest.number} at {self.location.text} lacks files: {'; '.join(wrong)}; {advice}")

    @contextmanager
    def pin(self, manifest: Manifest) -> Iterator[Pin]:
        """Its files stay, as long as the pin is renewed. Raises Missing when the checkpoint was removed meanwhile."""
        names = self._names_of(manifest)
        pin = Pin(self.location, [file.name for file in manifest.files])
        try:
            pin.renew()
            if not {*names} & {*self._names()}:
                raise Missing(
                    f"checkpoint {manifest.number} at {self.location.text} was removed just now: choose another"
                )
            yield pin
        finally:
            pin.release()

    def remove(self, manifest: Manifest) -> None:
        """It is no checkpoint any more; its files go with the next `collect`. Raises Missing."""
        for name in self._names_of(manifest):
            self._remove_manifest(name)

    def collect(self, lineage: str, keep: int, in_flight: Callable[[str, float], bool]) -> int:
        """Remove checkpoints of this lineage but for the newest `keep`, and files that nobody needs; how many of these.

        Checkpoints that have a name stay, and so do those of other lineages. `in_flight` says of a file's name, and of the
        seconds since this shelf saw it first, whether it may still become part of a checkpoint.
        """
        before = self._listed()
        if not _readable(before) or self._lacks_known(before):
            return 0
        counted = {
            name: one for name, one in before.items() if isinstance(one, Manifest) and _goes_by_age(one, lineage)
        }
        kept = sorted({one.number for one in counted.values()}, reverse=True)[:keep]
        for name, one in counted.items():
            if one.number not in kept:
                self._remove_manifest(name)
        ages = {name: self._clock() - at for name, at in self._seen(FILES).items()}
        candidates = [
            name for name, age in ages.items() if age > UNKNOWN_SECONDS and not in_flight(final_name(name), age)
        ]
        after = self._listed()
        if not _readable(after) or self._lacks_known(after):
            return 0
        pinned = self._pinned()
        if pinned is None:
            return 0
        named = {file.name for one in after.values() if isinstance(one, Manifest) for file in one.files}
        unneeded = [name for name in candidates if name not in named | pinned]
        for name in unneeded:
            self.location.remove(name)
        return len(unneeded)

    def look(self) -> None:
        """Begin to count the age of what is there: a shelf that collects later removes so much earlier."""
        for folder in (FILES, PINS):
            self._seen(folder)

    def _remove_manifest(self, name: str) -> None:
        self.location.remove(name)
        self._known.discard(name)

    def _lacks_known(self, listed: dict[str, Manifest | Refusal]) -> bool:
        """Whether a listing lacks a manifest that is there: then it is none of now, and says nothing of any other."""
        self._known.update(listed)
        for name in sorted(self._known - set(listed)):
            try:
                self.location.read(name)
            except Missing:
                self._known.discard(name)  # somebody else has removed it
                continue
            log.warning(
                "nothing is removed: a listing of the store lacks %s, which is there", self.location.url_of(name)
            )
            return True
        return False

    def _seen(self, folder: str) -> dict[str, float]:
        """What is in a folder, and when this shelf saw it first."""
        now = self._clock()
        seen_at = {entry.name: self._first_seen.get(entry.name, now) for entry in self.location.names(folder)}
        others = {name: at for name, at in self._first_seen.items() if not name.startswith(f"{folder}/")}
        self._first_seen = others | seen_at
        return seen_at

    def _names(self) -> list[str]:
        """Of manifests, the newest first."""
        names = [entry.name for entry in self.location.names(MANIFESTS)]
        return sorted(filter(_NAME.fullmatch, names), key=_order, reverse=True)

    def _listed(self) -> dict[str, Manifest | Refusal]:
        """Manifests, or what is wrong with them, the newest first. What goes away meanwhile is left out."""
        found: dict[str, Manifest | Refusal] = {}
        for name in self._names():
            with suppress(Missing):
                found[name] = self._load(name)
        self._read = {name: one for name, one in found.items() if isinstance(one, Manifest)}
        return found

    def _load(self, name: str) -> Manifest | Refusal:
        found = self._read.get(name)  # Another thread may replace it meanwhile.
        if found is not None:
            return found
        data = self.location.read(name)
        try:
            return Manifest.load(data)
        except Refusal as error:
            log.warning("%s is left out: %s", self.location.url_of(name), error)
            return Refusal(f"{self.location.url_of(name)}: {error}")

    def _names_of(self, manifest: Manifest) -> list[str]:
        """Of its file; of two, if it was published twice because the first time nobody found that it had worked."""
        there = Manifest.load(manifest.dump())
        names = [name for name, one in self._listed().items() if one == there]
        if not names:
            raise Missing(f"checkpoint {manifest.number} is not at {self.location.text} any more")
        return names

    def _pinned(self) -> set[str] | None:
        """Names of files that readers need. None: there is a pin that cannot be read, and may be about any."""
        pinned: set[str] = set()
        for name, seen_at in self._seen(PINS).items():
            if final_name(name) != name:
                continue
            if self._clock() - seen_at > PIN_SECONDS:
                self.location.remove(name)
                continue
            try:
                pinned.update(json.loads(self.location.read(name))["files"])
            except Missing:
                continue  # Its reader is done, or another pin of it is here.
            except (ValueError, KeyError, TypeError):
                log.warning("%s cannot be read: nothing is removed until it expires", self.location.url_of(name))
                return None
        return pinned


def _shelf_of(url: str) -> tuple[Shelf, str]:
    """The shelf, and the name of the manifest on it."""
    parts = urlsplit(url)
    root, _, name = parts.path.rpartition(f"/{MANIFESTS}/")
    base, _, job = root.rpartition("/")
    name = f"{MANIFESTS}/{name}"
    if not job or not _NAME.fullmatch(name):
        raise Refusal(
            f"{url!r} is not the URL of a checkpoint: these are LOCATION/JOB/{MANIFESTS}/NUMBER-GENERATION-TOKEN.json"
        )
    return Shelf(Location(urlunsplit(parts._replace(path=base)), job)), name


def _found(one: Manifest | Refusal) -> Manifest:
    if isinstance(one, Refusal):
        raise one
    return one


def _order(name: str) -> tuple[int, int, str]:
    number, generation = name.removeprefix(f"{MANIFESTS}/").split("-")[:2]
    return int(number), int(generation), name


def _goes_by_age(manifest: Manifest, lineage: str) -> bool:
    return manifest.lineage == lineage and manifest.name is None


def _readable(listed: dict[str, Manifest | Refusal]) -> bool:
    wrong = [one for one in listed.values() if isinstance(one, Refusal)]
    for error in wrong:
        log.warning("nothing is removed as long as a manifest cannot be read, remove it if it is of no use: %s", error)
    return not wrong


def _wrong(manifest: Manifest, there: dict[str, int]) -> list[str]:
    """What is wrong with its files."""
    found = []
    for file in manifest.files:
        if file.name not in there:
            found.append(f"{file.name} is missing")
        elif there[file.name] != file.bytes:
            found.append(f"{file.name} has {there[file.name]:,} bytes, {file.bytes:,} were written")
    return found


def _described(listed: dict[str, Manifest | Refusal]) -> str:
    """What there is, for people."""
    found = []
    for name, one in listed.items():
        if isinstance(one, Manifest):
            found.append(f"{one.number} ({f'{one.name!r}, ' if one.name else ''}epoch {one.epoch})")
        else:
            found.append(f"{_order(name)[0]} (cannot be read)")
    return f"there are {', '.join(found)}" if found else "there is none yet"
