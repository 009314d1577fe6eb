"""All operators that a job ever had, by id, and its programs, by number: journaled before a table names them.

catalogue   id -> descriptor of the state; `OperatorDescriptor.index` is the id here, and a position in a program
programs    number -> the operators in order, where the text is, arguments, and the outcome of its deploy
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.lenient import known
from ferry.contract.program_text import identity
from ferry.contract.programs import ROLLED_BACK, WITHDRAWN, Programs, ProgramVersion

RECORDS_MAX = 20
"""Deployed programs that are remembered, and as many refused ones; older ones are forgotten, their operators never."""

PROCESSES_MAX = 400
"""Operators with state of a process, also of refused deploys: each maps 256 GiB, and a process has addresses for 512."""

TEXTS_MAX = 512 << 10
"""Bytes of all packed texts; texts of older programs are forgotten, and these programs cannot be deployed by number."""

TRIES_MAX = 3
"""Drivers that begin with a program on probation, one after the other; the next one begins with the program before."""

PROBATION_SECONDS, SLOWER = 30.0, 0.0
"""Defaults of the probation: its time, and how many times longer than before an epoch may last; 0: any time, because a busy
machine is not the program's fault."""


class Retired(NamedTuple):
    """An operator that a program does not have any more: it reads nothing, and its open windows still fire."""

    operator: int
    """its id"""
    program: int
    """the number of the program whose text has it"""


class Beside(NamedTuple):
    """A program that runs together with the program before it, on the same records; the rows of only one are written."""

    program: int
    """the number of the program before, whose operators are the last ones"""
    shadow: int
    """epochs with rows in which both are compared while only the program before writes; 0: it is kept"""
    keep: float
    """seconds for which the program before goes on, so that a rollback finds its state up to date"""


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One program of a job."""

    number: int
    operators: tuple[int, ...]
    """Ids, by position."""
    descriptors: tuple[OperatorDescriptor, ...]
    """By position. Of two programs with the same operator, its class may have another text."""
    module: str | None = None
    file: str | None = None
    folder: str | None = None
    """the copy of its text; None: the text is in the image, or on a volume"""
    arguments: dict[str, Any] = field(default_factory=dict)
    deployed_at: float = 0.0
    """seconds since 1970"""
    since: int | None = None
    """The first epoch; None: it is not in force, and never was."""
    at: int = 0
    """The first epoch, at the earliest."""
    at_time: int | None = None
    """The event time, in milliseconds since 1970, that all watermarks have reached before its first epoch."""
    refused: str = ""
    """Why it was not deployed."""
    started_with: str = ""
    """`started_with` of the settings at its deploy: a later start with other settings is another program."""
    retires: tuple[Retired, ...] = ()
    """the last of its operators"""
    altered: tuple[tuple[int, int], ...] = ()
    """Pairs of ids: the state of the first operator is derived from the state of the second one."""
    base: int = 0
    """The program in force with which it was compared."""
    settles: int | None = None
    """The program that it goes on with, without the operators that are retired by now; None: the user deployed it."""
    text: str = ""
    """Its packed text, if the text travels with the program."""
    seal: str = ""
    """Of this text."""
    attempt: str = ""
    """Of the same program with another word here, a refused deploy is tried again."""
    beside: Beside | None = None
    """Set while it runs together with the program before it."""
    silent: tuple[int, ...] = ()
    """Ids of its operators whose rows are not written."""
    drops: tuple[int, ...] = ()
    """Ids whose state goes once it is in force: of the other half of the program before it."""
    compared: dict[str, Any] = field(default_factory=dict)
    """Of a shadow: how the rows of both programs differed."""
    probation: float = 0.0
    """Seconds in which the job may go back from it automatically; 0: it has no probation, or has passed it."""
    slower: float = 0.0
    """How many times longer than before its epochs may last meanwhile; 0: as long as they want."""
    tries: int = 0
    """Drivers that have begun with it; 0: it has passed."""
    back_from: int = 0
    """The program from which the job went back automatically, to this one; 0: the user deployed it."""
    because: str = ""
    """Why."""
    rewound: bool = False
    """The user has had the job go back to a state before it: it is not deployed again, and no rollback leads to it."""
    begins: tuple[int, ...] = ()
    """Ids of its operators that no program had before."""
    failed: str = ""
    """Why its half that was not written ended before its time: its code failed."""
    sources: tuple[tuple[str, str], ...] = ()
    """Names of its sources, and digests of their settings: the position of a source that comes back is kept by name."""

    @property
    def is_shadow(self) -> bool:
        """Whether the rows of the program before it are written."""
        return self.beside is not None and self.beside.shadow > 0

    @property
    def is_withdrawn(self) -> bool:
        """Whether a user gave up its deploy: nothing is wrong with the program."""
        return self.refused in (WITHDRAWN, ROLLED_BACK)

    @property
    def is_refused_follower(self) -> bool:
        """Whether no user deployed it: the driver could not go on, or back, with it."""
        return bool(self.refused) and (self.settles is not None or self.back_from > 0)

    def since_in(self, now: ProgramVersion) -> int | None:
        """Its first epoch. The table knows it a moment before the journal does, if the program is `now`, in force."""
        return now.since if self.number == now.number else self.since

    def listed(self, now: ProgramVersion, state: str) -> dict[str, Any]:
        """Its entry in the list of all programs, as `ferry versions` shows it. `now`: the program in force."""
        return {
            "number": self.number,
            "state": state,
            "since": self.since_in(now),
            "file": self.file,
            "module": self.module,
            "folder": self.folder,
            "arguments": self.arguments,
            "operators": [descriptor.name for descriptor in self.descriptors],
            "deployedAt": self.deployed_at,
            "refused": self.refused,
            "compared": self.compared,
            "probation": self.probation,
            "settles": self.settles,
            "failed": self.failed,
            "beside": None if self.beside is None else self.beside._asdict(),
        }

    @property
    def pipeline(self) -> tuple[str | None, str | None, str | None]:
        """How the user's module is loaded."""
        return self.module, self.file, self.folder

    @property
    def hash(self) -> str:
        """Of its text; empty: the text is in the image, or on a volume."""
        return "" if self.folder is None else self.folder.rpartition("/")[2]

    @property
    def identity(self) -> str:
        """Equal for equal programs."""
        return identity(self.module, self.file, self.hash, self.arguments)


@dataclass(frozen=True, slots=True)
class DeployRequest:
    """A request to deploy a program."""

    module: str | None = None
    file: str | None = None
    folder: str | None = None
    """copy of the text, below `programs/` of the run; None: the text is in the image"""
    arguments: dict[str, Any] | None = None
    """None: as in the program in force"""
    at: int = 0
    """The first epoch, at the earliest."""
    text: str = ""
    """The packed text of the program, which `file` only names then."""
    attempt: str = ""
    """See `ProgramRecord`."""
    shadow: int = 0
    """See `Beside`."""
    keep: float = 0.0
    """See `Beside`."""
    at_time: int | None = None
    """See `ProgramRecord`."""
    probation: float = PROBATION_SECONDS
    """See `ProgramRecord`."""
    slower: float = SLOWER
    """See `ProgramRecord`."""
    rewind: bool = False
    """Go back to the newest checkpoint before the program in force, which has to be of this program."""
    base: int = 0
    """The program that the user looked at: if another one is in force, the request is refused. 0: no matter which one is."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The operators and programs of a job."""

    operators: tuple[OperatorDescriptor, ...]
    """By id."""
    programs: tuple[ProgramRecord, ...]
    """Ordered by number."""
    void: tuple[int, ...] = ()
    """Ids without a state, which are never used again: of new and altered operators of a refused deploy, or of a program
    that was rolled back with `--rewind`, and dropped ones.

    So such a program takes no name: the next one may have another operator of that name.
    """

    @property
    def ids(self) -> dict[str, int]:
        """By name of an operator: its id; of an operator that was altered its last one."""
        void = frozenset(self.void)
        return {one.name: number for number, one in enumerate(self.operators) if number not in void}

    def live(self, programs: Programs) -> set[int]:
        """Ids whose event times a later epoch may need. `programs`: of the table.

        An operator that is altered, or runs as a copy, has another id each time; the ids before never come back.
        """
        later = [one for one in self.programs if one.number > programs[-1].number and not one.refused]
        pairs = [(one.operators, one.altered) for one in programs]
        pairs += [(one.operators, one.altered) for one in later]
        ids = {number for operators, altered in pairs for number in (*operators, *(before for _, before in altered))}
        return ids | {*self.ids.values()}

    def before(self, number: int) -> list[ProgramRecord]:
        """The programs that were in force before the program in force, which has this number: to these a job can go back.

        Without programs that only went on without retired operators, programs beside another one that did not go on alone,
        programs from which the job went back automatically or by `--rewind`, and the program that this one goes on with.
        """
        now = self.program(number)
        settled = number if now is None or now.settles is None else now.settles
        left = {p.back_from for p in self.programs} | {p.number for p in self.programs if p.rewound}
        before = [p for p in self.programs if p.since is not None and p.settles is None and p.number < settled]
        alone = {p.settles for p in self.programs if p.since is not None}
        return [p for p in before if (p.beside is None or p.number in alone) and p.number not in left]

    def shadow_before(self, record: ProgramRecord) -> ProgramRecord | None:
        """The shadow whose comparison decided that this program goes on; None: there was none."""
        shadow = self.program(record.base)
        return shadow if shadow is not None and shadow.is_shadow and shadow.compared else None

    def back_from(self, number: int) -> str:
        """Why the job went back from this program automatically; empty: it has not."""
        return next((p.because for p in self.programs if p.back_from == number and not p.refused), "")

    def program(self, number: int) -> ProgramRecord | None:
        """The program with this number, unless it is forgotten."""
        return next((program for program in self.programs if program.number == number), None)

    def changed_source(self, sources: Iterable[tuple[str, str]]) -> str:
        """Why a program with these sources (see `ProgramRecord.sources`) cannot follow; empty: it can.

        A source that an earlier program had goes on where it ended. Sources of the program in force are compared with
        their settings in words, when the program is built.
        """
        had = [dict(one.sources) for one in reversed(self.programs) if one.since is not None and not one.rewound]
        for name, digest in sources if had else ():
            known = next((one[name] for one in had if name in one), digest)
            if known != digest and name not in had[0]:
                return (
                    f"source {name!r} comes back with other settings, and its position means other records: give it another "
                    "name, or its settings as before"
                )
        return ""

    def deployed_as(self, number: int) -> list[ProgramRecord]:
        """The program with this number, after the program that it goes on with."""
        now = self.program(number)
        return [one for one in self.programs if now is not None and one.number in (number, now.settles)]

    @property
    def wanted(self) -> ProgramRecord | None:
        """The newest program whose deploy was not refused, unless the job went back to a state before it."""
        newest = next((one for one in reversed(self.programs) if not one.refused), None)
        return None if newest is None or newest.rewound else newest

    def with_program(self, program: ProgramRecord, operators: Sequence[OperatorDescriptor] = ()) -> Catalogue:
        """With this program in place of the one with its number, and these operators. Raises SpecRefused for too many."""
        if sum(one.kind == "process" for one in operators) > PROCESSES_MAX:
            raise SpecRefused(
                f"the job has had {PROCESSES_MAX} operators with state of a process, with copies of --shadow and --keep, "
                "and an instance opens no more: stop the job, and start it again from its newest checkpoint"
            )
        known = self.program(program.number)
        begun = {*(known.begins if known is not None else ()), *range(len(self.operators), len(operators))}
        program = replace(program, begins=tuple(number for number in program.operators if number in begun))
        others = [one for one in self.programs if one.number != program.number]
        programs = sorted((*others, program), key=lambda one: one.number)
        refused = [one for one in programs if one.refused][-RECORDS_MAX:]
        deployed = [one for one in programs if not one.refused]
        valid = [
            one for one in deployed if not one.rewound
        ]  # After a rewind the program in force is not the newest one.
        needed = {retired.program for one in deployed[-2:] for retired in one.retires}
        needed |= {one.beside.program for one in deployed[-2:] if one.beside is not None}
        needed |= {one.number for one in valid[-2:]}
        deployed = [one for one in deployed if one.number in needed or one in deployed[-RECORDS_MAX:]]
        kept = [*(replace(one, text="") for one in refused), *_with_texts(deployed, needed)]
        if program.refused or program.rewound:
            # Operators that it dropped have their state again, except operators that a rewound program had begun.
            gone = {number for one in self.programs if one.rewound for number in one.begins}
            void = {*self.void, *program.begins} - ({*program.drops} - gone)
        else:
            void = {*self.void, *(program.drops if program.since is not None else ())}
            void -= {*(program.begins if known is not None and known.rewound else ())}
        return Catalogue(
            tuple(operators) or self.operators,
            tuple(sorted(kept, key=lambda one: one.number)),
            tuple(sorted(void)),
        )

    def as_of(self, program: ProgramVersion) -> Catalogue:
        """As of an epoch of this program: operators that only later programs have begun have no state there, and no name."""
        later = {number for one in self.programs if one.number > program.number for number in one.begins}
        return replace(self, void=tuple(sorted({*self.void, *later} - {*program.operators})))

    def dump(self) -> str:
        """JSON."""
        programs = [
            {
                **{one.name: getattr(p, one.name) for one in fields(p)},
                "descriptors": [d.to_wire() for d in p.descriptors],
            }
            for p in self.programs
        ]
        return json.dumps(
            {"operators": [one.to_wire() for one in self.operators], "programs": programs, "void": self.void}
        )

    @staticmethod
    def load(text: str) -> Catalogue:
        """Inverse of dump; the text of the first release has no programs."""
        doc = json.loads(text)
        operators = tuple(OperatorDescriptor.from_wire(document) for document in doc["operators"])
        if "programs" not in doc:
            return first_catalogue(operators)
        programs = tuple(
            ProgramRecord(
                **{
                    **known(ProgramRecord, document),
                    "operators": tuple(document["operators"]),
                    "retires": tuple(Retired(*one) for one in document.get("retires", ())),
                    "beside": Beside(*document["beside"]) if document.get("beside") else None,
                    "silent": tuple(document.get("silent", ())),
                    "drops": tuple(document.get("drops", ())),
                    "begins": tuple(document.get("begins", ())),
                    "sources": tuple((name, digest) for name, digest in document.get("sources", ())),
                    "altered": tuple((after, before) for after, before in document.get("altered", ())),
                    "descriptors": tuple(OperatorDescriptor.from_wire(d) for d in document["descriptors"]),
                }
            )
            for document in doc["programs"]
        )
        return Catalogue(operators, programs, tuple(doc.get("void", ())))


def _with_texts(deployed: Sequence[ProgramRecord], needed: Collection[int]) -> list[ProgramRecord]:
    """The programs with the texts of the newest ones, together at most TEXTS_MAX.

    Never without the texts of the program in force, of the program before it, and of `needed` ones: a driver that starts
    builds these.
    """
    built = {*needed, *(record.number for record in deployed[-2:])}
    kept, left = list[ProgramRecord](), TEXTS_MAX - sum(len(r.text) for r in deployed if r.number in built)
    for record in reversed(deployed):
        left -= 0 if record.number in built else len(record.text)
        kept.append(record if record.number in built or left >= 0 else replace(record, text=""))
    return kept


def first_catalogue(descriptors: Sequence[OperatorDescriptor], **text: Any) -> Catalogue:
    """Of a job that has one program with these operators."""
    ids = tuple(range(len(descriptors)))
    operators = tuple(replace(one, index=number) for number, one in enumerate(descriptors))
    return Catalogue(operators, (ProgramRecord(1, ids, operators, since=0, **text),))
