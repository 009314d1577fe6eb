"""Builds a program that is to be deployed in a child process, as the driver would: its errors and its time are its own.

Its operators are compared with the operators in force.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.last_words import last_words
from ferry.contract.program_diff import ProgramDiff, program_diff
from ferry.contract.settings import CONTINUOUS, RunSettings
from ferry.driver.program import Program
from ferry.system.priority import NICE

CHECK_SECONDS = 60.0
"""Time for a program's `sources` and `pipeline` in the child process."""


def built_apart(request: dict[str, Any], is_copy: bool) -> dict[str, Any]:
    """The answer of `ferry.driver.check` to a request. `is_copy`: the program imports modules of its copy only.

    Raises SpecRefused for a process that does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="ferry-deploy-") as folder:
        asked, answer, errors = (Path(folder) / name for name in ("request", "answer", "errors"))
        asked.write_text(json.dumps(request), "utf-8")
        nice = ["nice", "-n", str(NICE)]  # Beside the job, whose epochs would wait for processors.
        command = [*nice, sys.executable, "-m", "ferry.driver.check", str(asked), str(answer)]
        environment = {**os.environ, **({"PYTHONSAFEPATH": "1"} if is_copy else {})}
        with errors.open("wb") as output:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    timeout=CHECK_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                raise SpecRefused(f"sources() and pipeline() have not returned within {CHECK_SECONDS:g} s") from None
        if not answer.is_file():
            words = last_words(errors.read_text("utf-8", "replace").splitlines()) or "it printed nothing"
            raise SpecRefused(f"the process that builds the pipeline ended with code {code}: {words}")
        built: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return built


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
    checked = built_apart(request, record.folder is not None)
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
