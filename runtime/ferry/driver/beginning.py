"""The program that a life of the driver begins with: the newest in the journal, or the program of the settings.

no journal                              the program of the settings is program 1
a catalogue, no table                   a restore began, and its driver died: the program of the catalogue
settings as at the deploy of program N  program N, as the journal has it
settings.begins_with: journal           program N, as the journal has it; the operator deploys the program of the spec
other settings: the user edited them    their program, in place of program N: its operators must be the same
TRIES_MAX drivers have died of N        the program before N, if the table still has it: `Deploys.start` takes N back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferry.contract.catalogue import Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.differences import WHAT_TO_DO, differences
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import sealed
from ferry.contract.programs import ProgramVersion
from ferry.contract.routing import Table
from ferry.contract.settings import JOURNAL, SETTINGS, RunSettings
from ferry.driver.announcer import Announcer
from ferry.driver.errors import BeginsAgain
from ferry.driver.probation import exhausted
from ferry.system import program_texts


def beginning(catalogue: Catalogue | None, table: Table | None, settings: RunSettings) -> ProgramRecord:
    """The program to begin with; its descriptors are in the journal."""
    module, file, folder = settings.pipeline
    newest = _newest(catalogue, table, settings)
    number = newest.number if newest is not None else catalogue.programs[-1].number if catalogue is not None else 1
    if text := settings.pipeline_text:
        folder = program_texts.written(settings.path, file or "", text)
    known = catalogue.program(number) if catalogue is not None else None
    if known is not None and newest is not None and known.since is None:
        known = replace(known, since=newest.since)  # The previous driver died before it had journaled that.
    mine = ProgramRecord(
        number,
        known.operators if known is not None else (),
        known.descriptors if known is not None else (),
        module=module,
        file=file,
        folder=folder,
        arguments=settings.pipeline_args,
        deployed_at=known.deployed_at if known is not None else 0.0,
        since=known.since if known is not None else 0,
        started_with=settings.started_with,
        retires=known.retires if known is not None else (),
        settles=known.settles if known is not None else None,
        beside=known.beside if known is not None else None,
        silent=known.silent if known is not None else (),
        altered=known.altered if known is not None else (),
        drops=known.drops if known is not None else (),
        base=known.base if known is not None else 0,
        text=text,
        seal=sealed(text, settings.secret) if text else "",
    )
    if number > 1 and known is None:
        raise SpecRefused(f"the journal has no text of program {number}, which is in force: bring back the journal")
    if known is None or settings.begins_with == SETTINGS or not any(known.pipeline):
        return mine
    if settings.begins_with == JOURNAL:
        return known
    return known if known.started_with == settings.started_with else mine


def _newest(catalogue: Catalogue | None, table: Table | None, settings: RunSettings) -> ProgramVersion | None:
    """The newest program of the table; the one before it if no driver tries it again, and the user has not edited it."""
    if table is None or not table.programs:
        return None
    newest = table.programs[-1]
    known = catalogue.program(newest.number) if catalogue is not None else None
    if known is None or not exhausted(known.tries) or len(table.programs) == 1 or settings.begins_with == SETTINGS:
        return newest
    edited = settings.begins_with != JOURNAL and known.started_with != settings.started_with
    return newest if edited else table.programs[-2]


def begun_with(before: Catalogue | None, record: ProgramRecord, descriptors: Sequence[OperatorDescriptor]) -> Catalogue:
    """The catalogue of a job whose present program is built. Raises SpecRefused if its operators keep other state."""
    if before is None:
        first = first_catalogue(descriptors)
        return first.with_program(replace(record, operators=first.programs[0].operators, descriptors=first.operators))
    found = differences(record.descriptors, descriptors)
    if found or len(record.descriptors) not in (0, len(descriptors)):
        raise SpecRefused(f"{'; '.join(found)}: the pipeline's operators differ from the running job. {WHAT_TO_DO}")
    return before.with_program(replace(record, descriptors=tuple(descriptors)))


def require_newest(announcer: Announcer, record: ProgramRecord, settings: RunSettings) -> None:
    """Raises BeginsAgain when another program was deployed while this driver was a standby: the next driver has it."""
    if (newest := beginning(*announcer.journaled(), settings)).number != record.number:
        raise BeginsAgain(f"this standby has program {record.number}, and program {newest.number} is in force")
