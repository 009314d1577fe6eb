"""A rollback to the state before a deploy: the next driver restores the newest checkpoint before the program in force.

State, offsets and sinks go back, and the records since are read again, by the program of the checkpoint. Must change
nothing before it is known that all of it can go back.
"""

from __future__ import annotations

from dataclasses import replace

from ferry.connectors.sink import distinct
from ferry.contract.errors import Refusal
from ferry.contract.programs import program_at
from ferry.contract.user_code import shown
from ferry.driver.life import Life
from ferry.protocol import coordinator as core
from ferry.spark.compile import CompiledPipeline


def rewind(life: Life, plan: CompiledPipeline, identity: str = "") -> int:
    """Have the job go back; returns the number of the program that will be in force. `plan`: of the program in force.

    `identity`: of the only program to which it may go back. Raises Refusal.
    """
    table = life.loop.machine.table
    now = table.programs[-1]
    if now.silent:
        raise Refusal(f"program {now.number} runs beside another one: end it by `ferry rollback` first")
    if life.checkpoint_scheduler is None:
        raise Refusal("the job takes no checkpoints, because it has no state.checkpoint.location")
    if (chosen := life.restoring.before(table, life.announcer.catalogue)) is None:
        raise Refusal(
            f"no checkpoint of this run is older than epoch {now.since}, with a program to which the job can go back (the "
            "newest ones are kept: state.checkpoint.keep). `ferry rollback` without --rewind goes back to the program before"
            f", and keeps the state{'; to deploy another program, remove spec.deploy.rewind' if identity else ''}"
        )
    catalog, manifest = chosen
    there = program_at(manifest.programs, manifest.epoch).number
    record = life.announcer.catalogue.program(there)
    if identity and (record is None or record.identity != identity):
        raise Refusal(
            f"the newest checkpoint before program {now.number} is of program {there}, and another program is wanted: roll "
            f"back with --to {there}, or without --rewind"
        )
    before = life.texts.of(there, life.announcer.catalogue).plan
    stay = dict.fromkeys(shown(sink) for sink in distinct((*before.sinks, *plan.sinks)) if not sink.takes_back)
    if stay and life.settings.restore_sink != "keep":
        raise Refusal(
            f"the rows since epoch {manifest.epoch} may stay in {', '.join(stay)}, and would be written again. Roll back "
            "without --rewind, or begin the job with sink rows that stay (spec.restoreSink: keep)"
        )
    catalog.check(manifest)
    known = life.announcer.catalogue
    for one in known.programs:
        if one.number > there:
            known = known.with_program(replace(one, rewound=True))
    if record is not None:  # The next driver begins with this program, whatever the job file names by now.
        known = known.with_program(replace(record, started_with=life.settings.started_with))
    life.announcer.record(known, life.loop.machine.generation)
    life.loop.post(core.Rewind(f"program {now.number} was rolled back with --rewind"))
    return there


def require_in_force(life: Life) -> None:
    """The driver before may have died between the marks of a rewind and the table with the checkpoint: then nothing has
    gone back, and the programs up to the one in force are not rewound."""
    known, now = life.announcer.catalogue, life.loop.machine.table.programs[-1].number
    if (record := known.program(now)) is not None and record.rewound:
        for one in known.programs:
            if one.rewound and one.number <= now:
                known = known.with_program(replace(one, rewound=False))
        life.announcer.record(known, life.loop.machine.generation)
