"""The begin of a life of a job: from nothing, from what the journal says, or from a durable checkpoint.

    no journal, restoreFrom      manifest --> pin --> rewound --> a first table with an origin
    no journal, no restoreFrom   from nothing; where checkpoints of its name lie, the user is asked first
    a journal with an origin     the driver before did not come to its end: the same again
    a journal, and state lost    the newest manifest --> the journal gets a first table --> the next driver

Must never choose another checkpoint than the one that was asked for, or the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from ferry.contract import messages as m
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.differences import differences
from ferry.contract.errors import UNDECIDED, FerryError, SpecRefused
from ferry.contract.manifest import Manifest
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import LATEST, NOTHING, RunSettings
from ferry.coordinator.loop import Loop
from ferry.driver.ends import BeginsAgain, Halted
from ferry.durable.catalog import CheckpointCatalog
from ferry.protocol.coordinator import groups as g

log = logging.getLogger("ferry.driver")

RENEW_SECONDS = 60.0
"""Between two signs that the checkpoint is still read."""


class Restoring:
    """What a driver begins with. `rewind(manifest, loop)` puts back what is outside of the state: offsets and sinks."""

    def __init__(
        self,
        settings: RunSettings,
        operators: list[OperatorDescriptor],
        shelf: CheckpointCatalog | None,
        rewind: Callable[[Manifest, Loop], bool],
    ) -> None:
        self._settings = settings
        self._operators = tuple(operators)
        self._shelf = shelf
        self._rewind = rewind
        self._pins = ExitStack()
        self.manifest: Manifest | None = None
        """That this life begins with."""
        self.by_itself = False
        """A driver before has chosen it."""

    def begin(self, journaled: Table | None, initial: Table) -> tuple[Table, m.Commit | None]:
        """The first table of a new job, and the Commit that a table with an origin begins with."""
        if journaled is not None and journaled.restoring:
            url, self.by_itself = journaled.origin.rpartition("#")[0], True
            return initial, self._from(CheckpointCatalog.at(url), url)
        if journaled is not None or self._settings.restore_from == NOTHING:
            return initial, None
        if self._settings.restore_from is None:
            self._ask()
            return initial, None
        shelf, manifest = self._chosen(self._settings.restore_from)
        self._refuse(manifest, initial.virtual_nodes)
        url = self._again(shelf, manifest, manifest.generation + 1)
        commit = self._from(shelf, url)
        log.info("the job begins with checkpoint %d: %s", manifest.number, url)
        origin = f"{url}#{manifest.generation + 1}"
        return replace(initial, version=Version(manifest.generation, 0), origin=origin), commit

    def _chosen(self, which: str) -> tuple[CheckpointCatalog, Manifest]:
        if "/" in which:
            shelf = CheckpointCatalog.at(which)
        elif self._shelf is not None:
            shelf = self._shelf
        else:
            raise SpecRefused(
                f"restoreFrom: {which!r} is looked for in state.checkpoint.location, and there is none; give that, or the "
                "URL of a manifest"
            )
        manifest = shelf.find(which)
        shelf.check(manifest)
        return shelf, manifest

    def _ask(self) -> None:
        """Nobody has said where this job begins. Where no checkpoint has its name, it begins from nothing; else it asks."""
        if self._shelf is None or (last := self._shelf.next_number() - 1) == 0:
            return
        raise SpecRefused(
            f"{UNDECIDED}: {self._shelf.location.text} holds checkpoints of a job of this name, the last one is "
            f"{last}; set restoreFrom: {LATEST} to go on from it, or restoreFrom: {NOTHING} to begin from nothing"
        )

    def _refuse(self, manifest: Manifest, virtual_nodes: int) -> None:
        """What the state of this checkpoint cannot be taken over by."""
        if manifest.virtual_nodes != virtual_nodes:
            raise SpecRefused(
                f"restoreFrom: checkpoint {manifest.number} has {manifest.virtual_nodes} virtual nodes, this job has "
                f"{virtual_nodes}; set state.virtualNodes: {manifest.virtual_nodes}"
            )
        if found := differences(manifest.operators, self._operators):
            raise SpecRefused(
                f"restoreFrom: {'; '.join(found)}: the operators of this pipeline are not those of checkpoint "
                f"{manifest.number}, and cannot take over its state. Put them back as they were, or take restoreFrom away"
            )

    def _again(self, shelf: CheckpointCatalog, manifest: Manifest, generation: int) -> str:
        """The URL to begin with. In its own place a checkpoint gets another number for that, the newest: what came after it
        is of a life that is over."""
        if self._shelf is None or self._shelf.location.text != shelf.location.text:
            return shelf.url(manifest)
        again = replace(
            manifest,
            number=shelf.next_number(),
            name=None,
            run=self._settings.run,
            generation=generation,
            made_at=time.time(),
            restored_from=str(manifest.number),
        )
        with shelf.pin(manifest):
            shelf.publish(again)
        return shelf.url(again)

    def _from(self, shelf: CheckpointCatalog, url: str) -> m.Commit:
        manifest = self.manifest = shelf.find(url)
        pin = self._pins.enter_context(shelf.pin(manifest))
        over = threading.Event()
        self._pins.callback(over.set)

        def renew() -> None:
            while not over.wait(RENEW_SECONDS):
                try:
                    pin.renew()
                except FerryError as error:
                    log.warning("checkpoint %d is read, and that cannot be said: %s", manifest.number, error)

        threading.Thread(target=renew, name="pin", daemon=True).start()
        return m.Commit(manifest.commit_id, 0, manifest.results, manifest.meta)

    def rewind(self, loop: Loop) -> bool:
        """Put back what is outside of the state, once no older driver can write any more; False: the job is to stop."""
        assert self.manifest is not None
        return self._rewind(self.manifest, loop)

    def over(self) -> None:
        """The job has a checkpoint of its own, or ends: nobody reads that one any more."""
        try:
            self._pins.close()
        except FerryError as error:
            log.warning("a pin stays until it expires: %s", error)

    def begin_again(self, loop: Loop, why: FerryError) -> FerryError:
        """All copies of something are lost: have the next driver begin with the newest checkpoint, if there is one; without
        the instances that cannot go on, if that is why.

        Returns what this driver ends with.
        """
        machine = loop.machine
        if (found := self._newest(machine.table.origin)) is None:
            return why
        shelf, manifest = found
        kind = why.kind if isinstance(why, Halted) else ""
        failing = machine.members.failing if kind == "failed" else {}
        there = [i for i in {**machine.alive, **machine.members.answers} if i not in failing]
        if kind in ("away", "failed") and not there:
            return why  # Nobody is left who could load it.
        if failing and shelf.url(manifest) == machine.table.origin.rpartition("#")[0]:
            return why  # There was no checkpoint since the last time: it would be the same again.
        shelf.check(manifest)
        self._refuse(manifest, machine.table.virtual_nodes)
        url = self._again(shelf, manifest, machine.generation)
        staying, _, orphans = g.without(machine.table, failing, machine.generation)
        placed, _ = g.elsewhere(machine.table, orphans if failing else (), staying, there, machine.generation)
        groups = tuple(
            Group(g.next_term(before, machine.generation), after.in_sync)
            for before, after in zip(machine.table.groups, placed, strict=True)
        )
        version = g.next_version(machine.table, machine.generation)
        loop.swap(Table(version, groups, initial=True, origin=f"{url}#{machine.generation}"))
        return BeginsAgain(
            f"the job begins again with checkpoint {manifest.number} of epoch {manifest.epoch}, for {why}"
        )

    def _newest(self, origin: str) -> tuple[CheckpointCatalog, Manifest] | None:
        """The newest of this run; before the first one, that which it began with. Raises Refusal for one that is damaged."""
        if (shelf := self._shelf) is not None:
            mine = [one for one in shelf.manifests() if one.run == self._settings.run]
            if mine:
                # One that cannot be read may be newer: an older one is taken by nobody but its user.
                newest = shelf.find(LATEST)
                return shelf, newest if newest.run == self._settings.run else mine[0]
        if origin:
            url = origin.rpartition("#")[0]
            return CheckpointCatalog.at(url), CheckpointCatalog.at(url).find(url)
        return None
