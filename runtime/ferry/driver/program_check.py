"""Builds a program that is to be deployed in a child process, as the driver would, and compares its operators with the
operators in force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.program_diff import ProgramDiff, program_diff
from ferry.contract.settings import CONTINUOUS, RunSettings
from ferry.driver.program import Program
from ferry.system.built_apart import built_apart

CHECK_SECONDS = 60.0
"""Time for a program's `sources` and `pipeline` in the child process."""


def compared(
    record: ProgramRecord, settings: RunSettings, program: Program, catalogue: Catalogue, in_force: Sequence[int]
) -> tuple[ProgramRecord, list[OperatorDescriptor], ProgramDiff]:
    """Build a program in a child process, and compare its operators and sources. `program`: with which the driver began.

    Returns: the record with its sources. Raises SpecRefused.
    """
    request = {
        "pipeline": record.pipeline,
        "arguments": [record.arguments, settings.output, settings.events],
        "spark": True,
        "operators": True,
        "sources": [*program.plan.sources],
    }
    checked = built_apart(request, CHECK_SECONDS, is_beside_job=True)
    if "refused" in checked:
        raise SpecRefused(checked["refused"])
    if changed := catalogue.changed_source(checked["sources"]):
        raise SpecRefused(changed)
    descriptors = [OperatorDescriptor.from_wire(one) for one in checked["operators"]]
    diff = program_diff(catalogue, in_force, descriptors)
    if settings.epoch_mode != "micro-batch" and program.mode == CONTINUOUS and checked["plan"]["planned"]:
        raise SpecRefused(
            f"{checked['plan']['planned']}: Spark would have to plan each epoch, and the job runs continuous epochs. "
            "Remove it, or stop the job and start it again with the new program"
        )
    sources = tuple((name, digest) for name, digest in checked["sources"])
    return replace(record, sources=sources), descriptors, diff
