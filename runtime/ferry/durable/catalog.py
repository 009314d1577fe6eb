"""The checkpoint catalog: which checkpoints a location has, how one is found, and which files may be deleted.

    manifests/NUMBER-GENERATION-TOKEN.json     one checkpoint each, never replaced
    files/...                                  named by manifests
    pins/TOKEN.json                            files that a reader needs for a while, whatever becomes of the manifest

Why no needed file is deleted, however slow its reader or writer is, and however many collectors there are:

* A reader writes its pin, THEN checks that the manifest still exists, THEN reads. A collector lists the manifests and
  THEN the pins: if the manifest is absent from the listing, a reader that has seen it had written its pin before.
* A writer has files in flight until its manifest names them. A collector asks which files are in flight and THEN lists
  the manifests: a file that stopped being in flight in between is named by one of these.
* Candidates are listed before all that, so a later file is not a candidate.

So the order of `collect` is: delete old manifests; list files; in flight; manifests; pins; then delete files. Must
never delete a file while a manifest cannot be read, because that manifest may name it.

A listing of a store may be outdated or incomplete: `collect` deletes nothing when a listing lacks a readable manifest
that this catalog has published or seen before. Clocks of machines and stores differ, and step: the age of files and
pins is the time since this catalog first saw them, by a monotonic clock.
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
"""A reader that renews its pin less often than this may lose its files."""

UNKNOWN_SECONDS = 600
"""Files younger than this, since the catalog first saw them, stay, whichever process has written them."""

_NAME = re.compile(rf"{MANIFESTS}/(\d{{10}})-(\d{{6}})-[0-9a-f]+\.json")


class Pin:
    """Protects the files of a checkpoint for its reader. Two pins overlap, so that no listing misses both."""

    def __init__(self, location: Location, files: Sequence[str]) -> None:
        """No file is protected before `renew`."""
        self._location = location
        self._files = files
        self._names: list[str] = []

    def renew(self) -> None:
        """Protect the files for another PIN_SECONDS."""
        name = f"{PINS}/{secrets.token_hex(8)}.json"
        self._location.write_new(name, json.dumps({"files": self._files}).encode())
        self._names.append(name)
        while len(self._names) > 2:
            self._location.remove(self._names.pop(0))

    def release(self) -> None:
        """Remove the pin or, if the store is unreachable, let it expire."""
        try:
            for name in self._names:
                self._location.remove(name)
        except Fault as error:
            log.warning("a pin stays until it expires: %s", error)


class CheckpointCatalog:
    """The checkpoints at one location."""

    def __init__(self, location: Location, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self.location = location
        self._clock = clock
        self._read: dict[str, Manifest] = {}
        """By name. A manifest is never replaced."""
        self._known: set[str] = set()
        """Names of manifests that were published here, or listed once, and not removed here."""
        self._first_seen: dict[str, float] = {}
        """By name of a file or pin of the last listing: when this catalog first saw it."""

    @staticmethod
    def at(url: str) -> CheckpointCatalog:
        """The catalog of a manifest, by the manifest's URL. Raises SpecRefused, and Refusal for any other URL."""
        return _catalog_of(url)[0]

    def url(self, manifest: Manifest) -> str:
        """URL of the manifest's file. Raises Missing."""
        return self.location.url_of(self._names_of(manifest)[0])

    def manifests(self) -> list[Manifest]:
        """The newest first; unreadable ones are logged and left out. Raises Unreachable, as every method does."""
        return [one for one in self._listed().values() if isinstance(one, Manifest)]

    def next_number(self) -> int:
        """A number above all existing ones."""
        return max((_order(name)[0] for name in self._names()), default=0) + 1

    def publish(self, manifest: Manifest) -> None:
        """Publish a checkpoint, whose files must all be closed in the store."""
        token = secrets.token_hex(8)
        name = f"{MANIFESTS}/{manifest.number:010d}-{manifest.generation:06d}-{token}.json"
        self.location.write_new(name, manifest.dump())
        self._known.add(name)

    def find(self, which: str) -> Manifest:
        """Find a checkpoint by `latest`, its number, its name, or the URL or path of its file, perhaps in another
        catalog.

        Raises Refusal that lists the existing ones, or says what is wrong with it: an older one is never taken instead.
        """
        if "/" in which:
            catalog, name = _catalog_of(which)
            try:
                return _found(catalog._load(name))
            except Missing as error:
                raise Refusal(f"there is no checkpoint {which}: {_described(catalog._listed())}") from error
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
        """Raises Corrupt when a file that it names is missing, or has another size."""
        there = {entry.name: entry.bytes for entry in self.location.names(FILES)}
        wrong = _wrong(manifest, there)
        if not wrong:
            return
        order = (manifest.number, manifest.generation)
        older = [one for one in self.manifests() if (one.number, one.generation) < order and not _wrong(one, there)]
        advice = "no older checkpoint is whole"
        if older:
            whole = older[0]
            advice = (
                f"`restoreFrom: {whole.number}` would begin from epoch {whole.epoch}: it is never chosen automatically"
            )
        raise Corrupt(f"checkpoint {manifest.number} at {self.location.text} lacks files: {'; '.join(wrong)}; {advice}")

    @contextmanager
    def pin(self, manifest: Manifest) -> Iterator[Pin]:
        """Protect its files as long as the pin is renewed. Raises Missing when the checkpoint was removed at the same
        time."""
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
        """Remove a checkpoint; the next `collect` deletes its files. Raises Missing."""
        for name in self._names_of(manifest):
            self._remove_manifest(name)

    def collect(self, lineage: str, keep: int, in_flight: Callable[[str, float], bool]) -> int:
        """Remove checkpoints of this lineage but for the newest `keep`, and unneeded files; returns the number of these
        files.

        Named checkpoints stay, and so do other lineages. `in_flight` gets a file's name, and the seconds since this
        catalog first saw it, and returns whether it may still become part of a checkpoint.
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
        """Begin to measure the age of existing files: a later `collect` can then delete them earlier."""
        for folder in (FILES, PINS):
            self._seen(folder)

    def _remove_manifest(self, name: str) -> None:
        self.location.remove(name)
        self._known.discard(name)

    def _lacks_known(self, listed: dict[str, Manifest | Refusal]) -> bool:
        """Whether a listing lacks an existing manifest: then it is outdated, and not reliable for other files
        either."""
        self._known.update(listed)
        for name in sorted(self._known - set(listed)):
            try:
                self.location.read(name)
            except Missing:
                self._known.discard(name)  # another process has removed it
                continue
            log.warning("nothing is removed: a listing of the store lacks %s, which exists", self.location.url_of(name))
            return True
        return False

    def _seen(self, folder: str) -> dict[str, float]:
        """Files of a folder, and when this catalog first saw each."""
        now = self._clock()
        seen_at = {entry.name: self._first_seen.get(entry.name, now) for entry in self.location.names(folder)}
        others = {name: at for name, at in self._first_seen.items() if not name.startswith(f"{folder}/")}
        self._first_seen = others | seen_at
        return seen_at

    def _names(self) -> list[str]:
        """Names of manifests, the newest first."""
        names = [entry.name for entry in self.location.names(MANIFESTS)]
        return sorted(filter(_NAME.fullmatch, names), key=_order, reverse=True)

    def _listed(self) -> dict[str, Manifest | Refusal]:
        """Manifests, or what is wrong with them, the newest first. Files that vanish meanwhile are left out."""
        manifests: dict[str, Manifest | Refusal] = {}
        for name in self._names():
            with suppress(Missing):
                manifests[name] = self._load(name)
        self._read = {name: one for name, one in manifests.items() if isinstance(one, Manifest)}
        return manifests

    def _load(self, name: str) -> Manifest | Refusal:
        found = self._read.get(name)  # Another thread may replace the map.
        if found is not None:
            return found
        data = self.location.read(name)
        try:
            return Manifest.load(data)
        except Refusal as error:
            log.warning("%s is left out: %s", self.location.url_of(name), error)
            return Refusal(f"{self.location.url_of(name)}: {error}")

    def _names_of(self, manifest: Manifest) -> list[str]:
        """Names of its file; two, if it was published twice because the success of the first write was not noticed."""
        there = Manifest.load(manifest.dump())
        names = [name for name, one in self._listed().items() if one == there]
        if not names:
            raise Missing(f"checkpoint {manifest.number} is not at {self.location.text} any more")
        return names

    def _pinned(self) -> set[str] | None:
        """Names of pinned files. None: an unreadable pin exists, which may protect any file."""
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
                continue  # Its reader is done, or has another pin.
            except (ValueError, KeyError, TypeError):
                log.warning("%s cannot be read: nothing is removed until it expires", self.location.url_of(name))
                return None
        return pinned


def _catalog_of(url: str) -> tuple[CheckpointCatalog, str]:
    """The catalog, and the name of the manifest in it."""
    parts = urlsplit(url)
    root, _, name = parts.path.rpartition(f"/{MANIFESTS}/")
    base, _, job = root.rpartition("/")
    name = f"{MANIFESTS}/{name}"
    if not job or not _NAME.fullmatch(name):
        raise Refusal(
            f"{url!r} is not the URL of a checkpoint: these are LOCATION/JOB/{MANIFESTS}/NUMBER-GENERATION-TOKEN.json"
        )
    return CheckpointCatalog(Location(urlunsplit(parts._replace(path=base)), job)), name


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
        log.warning(
            "nothing is removed as long as a manifest cannot be read; delete the manifest if it is useless: %s", error
        )
    return not wrong


def _wrong(manifest: Manifest, there: dict[str, int]) -> list[str]:
    """Problems of its files."""
    problems = []
    for file in manifest.files:
        if file.name not in there:
            problems.append(f"{file.name} is missing")
        elif there[file.name] != file.bytes:
            problems.append(f"{file.name} has {there[file.name]:,} bytes, {file.bytes:,} were written")
    return problems


def _described(listed: dict[str, Manifest | Refusal]) -> str:
    """The existing checkpoints, for people."""
    checkpoints = []
    for name, one in listed.items():
        if isinstance(one, Manifest):
            checkpoints.append(f"{one.number} ({f'{one.name!r}, ' if one.name else ''}epoch {one.epoch})")
        else:
            checkpoints.append(f"{_order(name)[0]} (cannot be read)")
    return f"there are {', '.join(checkpoints)}" if checkpoints else "there is none yet"
