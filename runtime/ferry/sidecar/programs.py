"""The programs that an instance knows: loaded before they are deployed, or read from the registry when a table names them.

The user's code is loaded on a thread of its own; states of new operators are opened on the instance's loop. Must never
decide which program an epoch has: the table does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused, Unreachable, UserCodeFailed
from ferry.contract.names import InstanceId
from ferry.contract.programs import Programs
from ferry.contract.settings import RunSettings
from ferry.registry import JobRegistry
from ferry.sidecar.altering import check_derive
from ferry.sidecar.data import BeginsAnew, Data
from ferry.sidecar.rehearsal import rehearse_operator
from ferry.system import program_texts, user_module

log = logging.getLogger("ferry.sidecar")

GIVEN_UP = "it is given up"


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """Event: a program is loaded; `error`: why it cannot be loaded."""

    number: int
    catalogue: Catalogue | None
    error: str


def load_classes(settings: RunSettings, catalogue: Catalogue) -> None:
    """Have all classes of the user's that a program of the job names; an epoch reports a missing class when it needs it."""
    if settings.program is not None:
        user_module.ProgramCopy.of(settings.program).install()
    for program in catalogue.programs:
        if not program.refused:
            try:
                load_program(settings, program)
            except SpecRefused as error:
                log.error("%s", error)


def load_program(settings: RunSettings, program: ProgramRecord) -> None:
    """Import the user's module if an operator has a class of it. Classes of a copied text are found by their name.

    Raises SpecRefused.
    """
    program_texts.require(program, settings.path, settings.secret)
    if program.folder is None and has_own_classes(program.descriptors):
        user_module.load(*(program.pipeline if any(program.pipeline) else settings.pipeline))


def has_own_classes(descriptors: Sequence[OperatorDescriptor]) -> bool:
    """Whether an operator has a class of the user's."""
    own = (name for d in descriptors if d.kind == "process" for name in d.shape.classes)
    return any(not name.startswith("ferry.process.") for name in own)


class ProgramLoader:
    """The programs of one instance. `put(event)` hands its loop a `LoadedProgram`."""

    def __init__(
        self,
        me: InstanceId,
        settings: RunSettings,
        directory: Path,
        registry: JobRegistry,
        data: Data,
        put: Callable[[LoadedProgram], None],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called between the parts of a long operation."""
        self._alive = alive
        self._me = me
        self._settings = settings
        self._directory = directory
        self._registry = registry
        self._data = data
        self._put = put
        self._deriving: int | None = None
        """The program whose altered operators were derived last."""
        self._outcomes: dict[int, str | None] = {}
        """By number of a program: why it cannot be loaded; empty: it is loaded; None: not yet."""

    def load(self, request: m.LoadProgram) -> None:
        """Begin to load a program; returns at once. A repeated request gets the same answer."""
        if request.given_up:
            self._put(LoadedProgram(request.number, None, GIVEN_UP))
        elif self._outcomes.get(request.number, GIVEN_UP) == GIVEN_UP:
            self._outcomes[request.number] = None
            threading.Thread(target=self._load, args=(request,), name="load-program", daemon=True).start()
        elif (error := self._outcomes[request.number]) is not None:
            self._put(LoadedProgram(request.number, None, error))

    def _load(self, request: m.LoadProgram) -> None:
        error, catalogue, began = "", None, time.monotonic()
        try:
            catalogue = Catalogue.load(request.program.decode())
            if (program := catalogue.program(request.number)) is None:
                raise SpecRefused(f"the request has no program {request.number}")
            load_program(self._settings, program)
            # Operators that differ in their names run the same functions: with 1,000 operators that is much time.
            shapes = {replace(one, name="", index=0): one for one in program.descriptors}
            for number, descriptor in enumerate(shapes.values()):
                rehearse_operator(descriptor, self._directory / f"rehearsal-{request.number}-{number}")
            for after, before in program.altered:
                check_derive(catalogue.operators[before], catalogue.operators[after])
        except (SpecRefused, UserCodeFailed) as refused:
            error = str(refused)
        except BaseException as failed:
            log.warning("program %d cannot be loaded", request.number, exc_info=True)
            error = f"{type(failed).__name__}: {failed}"
        log.info("program %d is loaded after %.3f s %s", request.number, time.monotonic() - began, error)
        self._put(LoadedProgram(request.number, catalogue, error))

    def loaded(self, event: LoadedProgram) -> m.ProgramLoaded | None:
        """On the loop: open the states of new operators. Returns the answer to the driver; None: it comes from `derived`."""
        if event.error == GIVEN_UP:
            self._outcomes[event.number] = GIVEN_UP
            if self._deriving == event.number:
                self._deriving = None
                self._data.altering.begin(())
        if self._outcomes.get(event.number) == GIVEN_UP:
            return None
        self._outcomes[event.number] = event.error
        if event.catalogue is not None and not event.error:
            self._data.add(event.catalogue)
            program = event.catalogue.program(event.number)
            if program is not None:
                self._data.altering.begin(program.altered)
                if self._data.altering.left_out:
                    self._outcomes[event.number], self._deriving = None, event.number
                    return None
        return m.ProgramLoaded(self._me, event.number, event.error)

    def derive(self) -> bool:
        """On the loop: derive a piece of the state of altered operators; False when no piece is left."""
        return self._data.altering.step()

    def derived(self) -> m.ProgramLoaded | None:
        """The answer to the driver, after the last piece; and again if the user's code fails later, before the switch."""
        number, error = self._deriving, self._data.altering.failure
        if number is None or self._outcomes[number] == error or self._outcomes[number]:
            return None
        self._outcomes[number] = error
        return m.ProgramLoaded(self._me, number, error)

    def require(self, programs: Programs, restoring: bool = False) -> None:
        """Know the programs of a table, also if the driver that deployed one died before this instance had loaded it.
        `restoring`: a checkpoint brings the state of two programs that run side by side.

        Raises BeginsAnew when the registry cannot tell.
        """
        if not programs:
            return  # a driver of release 0.1: its job has the program with which this instance began
        if not all(program.number in self._data.programs for program in programs):
            with suppress(Unreachable):
                if (catalogue := self._registry.catalogue()) is not None:
                    load_classes(self._settings, catalogue)
                    self._data.add(catalogue)
        newest = programs[-1]
        if newest.number not in self._data.programs:
            raise BeginsAnew(f"{self._me}: program {newest.number} is in force, and its operators are not known here")
        if not (restoring and newest.beside) and self._data.altering.missing(newest.altered):
            self._data.altering.begin(newest.altered)
            while self._data.altering.step():
                self._alive()

    def require_same_code(self) -> None:
        """A new driver: its program may contain a fix. Raises BeginsAnew, to load the program with all state kept."""
        with suppress(Unreachable):
            if (catalogue := self._registry.catalogue()) is None:
                return
            mine = self._data.programs
            if any(mine.get(one.number, one.descriptors) != one.descriptors for one in catalogue.programs):
                raise BeginsAnew(f"{self._me}: the program has changed since this instance started: it restarts")
