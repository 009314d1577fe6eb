"""Deaths of drivers in the user's code: a crash of native code, or no memory, takes the process along without a word.

    a driver writes down which code it calls -> dies of it -> the next one counts -> after three deaths the job stops

Must never count a driver that has died anywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ferry.contract.errors import Final
from ferry.spark.attempts import DEATHS_MAX
from ferry.system import files

NAME = "in-code"
"""File in the directory of the run: each code that is being called, or in which a driver has died."""


class CrashesInCode:
    """Knows what drivers before this one were in when they died."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / NAME

    @contextmanager
    def within(self, code: str, epoch: int) -> Iterator[None]:
        """Around a call of code of the user's. Raises Final, when so many drivers have died of the same call."""
        known = self._known()
        at, deaths = known.pop(code, (epoch, 0))
        deaths = deaths if at == epoch else 0
        if deaths == DEATHS_MAX:
            self._write(known)
            raise Final(
                f"the driver's process dies in {code}, {deaths} times in a row: a crash of native code, an exit, or no "
                "memory. Nothing is lost: mend it, and start the job again"
            )
        self._write({**known, code: (epoch, deaths + 1)})
        try:
            yield
        finally:
            self._write(known)

    def _known(self) -> dict[str, tuple[int, int]]:
        """By code: the epoch, and how many drivers have called it and not come back."""
        with suppress(OSError, ValueError):
            return {code: (epoch, deaths) for code, (epoch, deaths) in json.loads(self._file.read_bytes()).items()}
        return {}

    def _write(self, known: dict[str, tuple[int, int]]) -> None:
        """As far as there is room: a full disk ends nothing."""
        with suppress(OSError):
            if not known:
                return self._file.unlink(missing_ok=True)
            with files.replacing(self._file) as hidden:
                hidden.write_text(json.dumps(known))
