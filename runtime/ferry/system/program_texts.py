"""Texts that travel with their program: each process of a run writes them below its own directory, and imports them there.

On Kubernetes no folder is shared: the journal has the text for drivers, Redis for instances, and Spark sends it to tasks.
"""

from __future__ import annotations

from pathlib import Path

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import is_sealed, unpacked
from ferry.contract.run_directory import PROGRAMS
from ferry.system.user_module import ProgramCopy


def written(directory: Path, file: str, text: str) -> str:
    """Write a packed text below the directory of the run; returns the folder of the copy. Raises SpecRefused."""
    try:
        return str(ProgramCopy.write_text(directory / PROGRAMS, file, unpacked(text)))
    except (OSError, ValueError) as error:
        raise SpecRefused(f"the text of {file} cannot be used: {error}") from error


def require(record: ProgramRecord, directory: Path, secret: str) -> None:
    """Write the text of a program below the directory of the run, if its record has the text.

    Raises SpecRefused for a text that another run has sealed.
    """
    if not record.text:
        return
    if not is_sealed(record.text, record.seal, secret):
        raise SpecRefused(f"the text of program {record.number} was not sealed by the driver of this run")
    folder = written(directory, record.file or "", record.text)
    if folder != record.folder:
        raise SpecRefused(f"the text of program {record.number} has the folder {folder}, not {record.folder}")
    ProgramCopy.of(folder).install()
