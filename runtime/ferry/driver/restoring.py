"""Chooses the start of a run: without state, from the journal, or from a durable checkpoint.

    no journal, restoreFrom      manifest --> pin --> rewound --> a first table with an origin
    no journal, no restoreFrom   without state; if checkpoints of the job's name exist, the user must decide first
    a journal with an origin     the previous driver did not complete the restore: the same again
    a journal, and state lost    the newest manifest --> the journal gets a first table --> the next driver

Must never choose another checkpoint than the requested one, or the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import UNDECIDED, FerryError, Refusal, SpecRefused
from ferry.contract.manifest import Manifest
from ferry.contract.program_diff import RETIRED, program_diff
from ferry.contract.programs import Programs, ProgramVersion, program_at
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import LATEST, NOTHING, RunSettings
from ferry.coordinator.loop import Loop
from ferry.driver.errors import BeginsAgain, Halted
from ferry.durable.catalog import CheckpointCatalog
from ferry.protocol.coordinator import groups as g

log = logging.getLogger("ferry.driver")

RENEW_SECONDS = 60.0
"""Interval between two renewals of the pin that protects the checkpoint while it is read."""

REWIND = "rewind"
"""The halt of a job that its user has go back."""


class Restoring:
    """The restore at the begin of a driver. `rewind(manifest, loop)` rolls back offsets and sinks."""

    def __init__(
        self,
        settings: RunSettings,
        catalogue: Catalogue,
        operators: list[OperatorDescriptor],
        catalog: CheckpointCatalog | None,
        rewind: Callable[[Manifest, Loop], bool],
    ) -> None:
        self._settings = settings
        self.catalogue = catalogue
        """Of the job, with the ids of the checkpoint that it begins with."""
        self._operators = tuple(operators)
        self._catalog = catalog
        self._rewind = rewind
        self._pins = ExitStack()
        self.manifest: Manifest | None = None
        """The checkpoint that this life begins with."""
        self.is_automatic = False
        """The previous driver chose the checkpoint, not the user."""

    def begin(self, journaled: Table | None, initial: Table) -> tuple[Table, m.Commit | None]:
        """The first table of a new job, and the Commit that a table with an origin begins with."""
        if journaled is not None and journaled.restoring:
            url, self.is_automatic = journaled.origin.rpartition("#")[0], True
            return initial, self._from(CheckpointCatalog.at(url), url)
        if journaled is not None or self._settings.restore_from == NOTHING:
            return initial, None
        if self._settings.restore_from is None:
            self._require_decision()
            return initial, None
        catalog, manifest = self._chosen(self._settings.restore_from)
        self._refuse(manifest, initial.virtual_nodes)
        programs = self._taken_over(manifest)
        url = self._again(catalog, manifest, manifest.generation + 1)
        commit = self._from(catalog, url)
        log.info("the job begins with checkpoint %d: %s", manifest.number, url)
        origin = f"{url}#{manifest.generation + 1}"
        return replace(initial, version=Version(manifest.generation, 0), origin=origin, programs=programs), commit

    def _chosen(self, which: str) -> tuple[CheckpointCatalog, Manifest]:
        if "/" in which:
            catalog = CheckpointCatalog.at(which)
        elif self._catalog is not None:
            catalog = self._catalog
        else:
            raise SpecRefused(
                f"restoreFrom: {which!r} names a checkpoint in state.checkpoint.location, which is not set; set it, or give "
                "the URL of a manifest"
            )
        manifest = catalog.find(which)
        catalog.check(manifest)
        return catalog, manifest

    def _require_decision(self) -> None:
        """Without restoreFrom a job begins without state, unless checkpoints of its name exist: then raise SpecRefused."""
        if self._catalog is None or (last := self._catalog.next_number() - 1) == 0:
            return
        raise SpecRefused(
            f"{UNDECIDED}: {self._catalog.location.text} holds checkpoints of a job of this name, the last one is "
            f"{last}; set restoreFrom: {LATEST} to go on from it, or restoreFrom: {NOTHING} to begin from nothing"
        )

    def _refuse(self, manifest: Manifest, virtual_nodes: int) -> None:
        """Raise SpecRefused if this job cannot take over the state of the checkpoint."""
        if manifest.virtual_nodes != virtual_nodes:
            raise SpecRefused(
                f"restoreFrom: checkpoint {manifest.number} has {manifest.virtual_nodes} virtual nodes, this job has "
                f"{virtual_nodes}; set state.virtualNodes: {manifest.virtual_nodes}"
            )

    def _taken_over(self, manifest: Manifest) -> Programs:
        """The programs of a new job that goes on with a checkpoint, under the ids of its operators. Raises SpecRefused.

        A pipeline with other operators is a deploy: its program begins with the epoch after the checkpoint.
        """
        before, mine = _program_of(manifest), self.catalogue.programs[-1]
        written = [number for number in before.operators if number not in before.silent]
        copied = {number for pair in before.altered for number in pair}
        silent = {*before.silent} & (copied | {*before.new_half})
        gone = tuple(sorted({*manifest.void} | silent))
        try:
            diff = program_diff(Catalogue(manifest.operators, (), gone), written, self._operators)
        except SpecRefused as error:
            raise SpecRefused(
                f"restoreFrom: {error}: checkpoint {manifest.number} has other operators than this pipeline"
            ) from error
        if lost := [repr(fate.name) for fate in diff.fates if fate.fate == RETIRED]:
            raise SpecRefused(
                f"restoreFrom: checkpoint {manifest.number} has open windows of {', '.join(lost)}, and this pipeline does "
                "not: they would never fire. Restore with the operator, and remove it with `ferry deploy`"
            )
        if diff.ids == before.operators and not diff.altered:
            record = replace(mine, number=before.number, operators=before.operators, since=before.since)
            self.catalogue = Catalogue(manifest.operators, (record,), gone)
            return (before,)
        descriptors = tuple(replace(manifest.operators[n], index=i) for i, n in enumerate(before.operators))
        old = ProgramRecord(before.number, before.operators, descriptors, since=before.since)
        since, altered = manifest.epoch + 1, diff.altered
        new = replace(mine, number=before.number + 1, operators=diff.ids, since=since, altered=altered)
        self.catalogue = Catalogue(diff.operators, (old, new), gone)
        log.info("; ".join(f"operator {fate.name!r}: {fate.fate}: {fate.words}" for fate in diff.fates))
        return (before, ProgramVersion(new.number, since, diff.ids, altered))

    def _programs_of(self, manifest: Manifest, catalogue: Catalogue) -> Programs:
        """The programs of this job with a checkpoint that it goes back to."""
        before = _program_of(manifest)
        known = catalogue.program(before.number)
        first = next((one for one in catalogue.programs if one.file or one.module), None)
        if first is not None and known is None:
            raise Refusal(
                f"checkpoint {manifest.number} is of program {before.number}, which the journal does not remember any more: "
                "begin the job with that checkpoint and the file of that program (spec.restoreFrom)"
            )
        if first is None or known is None or known.file or known.module:
            return (before,)
        # The job began with a checkpoint of another job. Only that job had the text of the checkpoint's program.
        return (before, ProgramVersion(first.number, manifest.epoch + 1, first.operators, first.altered))

    def _again(self, catalog: CheckpointCatalog, manifest: Manifest, generation: int) -> str:
        """The URL to begin with. In the job's own location the checkpoint is published again as the newest, because the
        checkpoints after it belong to an ended life."""
        if self._catalog is None or self._catalog.location.text != catalog.location.text:
            return catalog.url(manifest)
        again = replace(
            manifest,
            number=catalog.next_number(),
            name=None,
            run=self._settings.run,
            generation=generation,
            made_at=time.time(),
            restored_from=str(manifest.number),
        )
        with catalog.pin(manifest):
            catalog.publish(again)
        return catalog.url(again)

    def _from(self, catalog: CheckpointCatalog, url: str) -> m.Commit:
        manifest = self.manifest = catalog.find(url)
        pin = self._pins.enter_context(catalog.pin(manifest))
        over = threading.Event()
        self._pins.callback(over.set)

        def renew() -> None:
            while not over.wait(RENEW_SECONDS):
                try:
                    pin.renew()
                except FerryError as error:
                    log.warning("the pin of checkpoint %d cannot be renewed: %s", manifest.number, error)

        threading.Thread(target=renew, name="pin", daemon=True).start()
        return m.Commit(manifest.commit_id, 0, manifest.results, manifest.meta)

    def rewind(self, loop: Loop) -> bool:
        """Roll back offsets and sinks, once no older driver can write; False: the job must stop."""
        assert self.manifest is not None
        return self._rewind(self.manifest, loop)

    def over(self) -> None:
        """Release the pin: the job has its own checkpoint, or ends."""
        try:
            self._pins.close()
        except FerryError as error:
            log.warning("a pin stays until it expires: %s", error)

    def begin_again(self, loop: Loop, why: FerryError, catalogue: Catalogue) -> FerryError:
        """After the loss of all copies of some state: have the next driver restore the newest checkpoint, if one exists.
        Failing instances get no state if they are the cause. `catalogue`: of the job, with all its programs.

        Returns the error that this driver ends with.
        """
        machine = loop.machine
        kind = why.kind if isinstance(why, Halted) else ""
        rewinds = kind == REWIND
        if (newest := self.before(machine.table, catalogue) if rewinds else self._newest(machine.table.origin)) is None:
            return why
        catalog, manifest = newest
        failing = machine.members.failing if kind == "failed" else {}
        there = [i for i in {**machine.alive, **machine.members.answers} if i not in failing]
        if kind in ("away", "failed") and not there:
            return why  # No instance is left that could load it.
        if failing and catalog.url(manifest) == machine.table.origin.rpartition("#")[0]:
            return why  # No newer checkpoint exists since the last restore: the same failure would follow.
        catalog.check(manifest)
        self._refuse(manifest, machine.table.virtual_nodes)
        url = self._again(catalog, manifest, machine.generation)
        staying, _, orphans = g.without(machine.table, failing, machine.generation)
        placed, _ = g.elsewhere(machine.table, orphans if failing else (), staying, there, machine.generation)
        groups = tuple(
            Group(g.next_term(before, machine.generation), after.in_sync)
            for before, after in zip(machine.table.groups, placed, strict=True)
        )
        version = g.next_version(machine.table, machine.generation)
        loop.swap(
            Table(
                version,
                groups,
                initial=True,
                origin=f"{url}#{machine.generation}",
                programs=self._programs_of(manifest, catalogue),
            )
        )
        return BeginsAgain(
            f"the job begins again with checkpoint {manifest.number} of epoch {manifest.epoch}, because {why}"
        )

    def before(self, table: Table, catalogue: Catalogue) -> tuple[CheckpointCatalog, Manifest] | None:
        """The newest checkpoint of this run to which a rollback may lead: of one program, which was in force before the
        present one, and which the job has not left; None: there is none."""
        if (catalog := self._catalog) is None:
            return None
        now, run = table.programs[-1], self._settings.run
        there = {one.number for one in catalogue.before(now.number)}
        there |= {one.number for one in catalogue.programs if one.settles in there}
        for one in catalog.manifests():
            program = program_at(one.programs, one.epoch)
            if one.run == run and one.epoch < now.since and program.number in there and not program.silent:
                return catalog, one
        return None

    def _newest(self, origin: str) -> tuple[CheckpointCatalog, Manifest] | None:
        """The newest checkpoint of this run, or the checkpoint that it began with. Raises Refusal for a damaged one."""
        if (catalog := self._catalog) is not None:
            mine = [manifest for manifest in catalog.manifests() if manifest.run == self._settings.run]
            if mine:
                # An unreadable manifest may be newer. Only the user may choose an older checkpoint.
                newest = catalog.find(LATEST)
                return catalog, newest if newest.run == self._settings.run else mine[0]
        if origin:
            url = origin.rpartition("#")[0]
            return CheckpointCatalog.at(url), CheckpointCatalog.at(url).find(url)
        return None


def _program_of(manifest: Manifest) -> ProgramVersion:
    """The program of its epoch. The checkpoint has the state of altered operators, so no state has to be derived. Of two
    programs side by side the pairs stay: they tell which state goes when one of them ends."""
    program = program_at(manifest.programs, manifest.epoch)
    return program if program.beside else program._replace(altered=())
