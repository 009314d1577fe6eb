"""The program of the spec, beside the programs that the driver reports. Pure.

The driver remembers its programs, refused ones too, in the journal: the operator compares identities and remembers nothing.

| the driver reports | step |
|---|---|
| the wanted program in force, or refused | none: a refusal is an answer until the spec changes |
| a shadow of it whose rows differed | none: it is reported as refused |
| the wanted program kept beside the one in force | go back to it |
| another program kept | none: the driver ends that first |
| the driver deploys another program, or otherwise than `spec.deploy` says now | withdraw this deploy |
| another program in force | deploy the wanted one |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import hash_of, identity, packed
from ferry.contract.status import ProgramStatus, Status
from ferry_operator.job.models import Spec
from ferry_operator.job.models_deploy import DeployPolicy
from ferry_operator.job.models_parts import ConfigMapKey
from ferry_operator.kube.api.names import Doc

IN_FORCE, REFUSED, SHADOW, KEPT, OVER = "in force", "refused", "shadow", "kept", "over"
"""States of a program as the driver reports them; other states of the newest program are phases of its deploy. The first
program of the status is in force: its rows are written."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that travels with its program."""

    text: str
    packed: str
    hash: str

    @staticmethod
    def of(text: str) -> Text:
        """Raises SpecRefused for a text that is too long."""
        return Text(text, packed(text), hash_of([(None, text.encode())]))


@dataclass(frozen=True, slots=True)
class WantedProgram:
    """A program as the spec names it."""

    module: str | None
    file: str | None
    text: Text | None
    arguments: dict[str, Any]
    nonce: int | None = None
    how: DeployPolicy = field(default_factory=DeployPolicy)

    @property
    def attempt(self) -> str:
        """A refused program is tried again under another one."""
        return attempt(self.nonce, self.how)

    @property
    def identity(self) -> str:
        """Equal for equal programs."""
        return identity(self.module, self.file, self.text.hash if self.text is not None else "", self.arguments)


def attempt(nonce: int | None, how: DeployPolicy) -> str:
    """The word for a deploy of a program; `nonce`: `spec.restartNonce`."""
    return " ".join(part for part in ("" if nonce is None else str(nonce), how.words) if part)


def wanted(spec: Spec, text: Text | None) -> WantedProgram | None:
    """The program of the spec; None: its text is not known."""
    pipeline, asked = spec.pipeline, (dict(spec.pipeline.args), spec.restart_nonce, spec.deploy)
    if (source := pipeline.config_map) is None:
        return WantedProgram(pipeline.module, pipeline.file, None, *asked)
    return None if text is None else WantedProgram(None, source.file, text, *asked)


def text_in(config_map: Doc | None, source: ConfigMapKey) -> Text:
    """The text of a ConfigMap. Raises SpecRefused, with what to do."""
    where = f"spec.pipeline.configMap: ConfigMap {source.name}"
    if config_map is None:
        raise SpecRefused(f"{where} does not exist: create it, or name another one")
    text = (config_map.get("data") or {}).get(source.key)
    if not isinstance(text, str):
        there = ", ".join(sorted(config_map.get("data") or {})) or "none"
        binary = " under binaryData, which is no text" if source.key in (config_map.get("binaryData") or {}) else ""
        raise SpecRefused(f"{where} has no key {source.key!r} in its data{binary}; its keys: {there}")
    try:
        return Text.of(text)
    except SpecRefused as error:
        raise SpecRefused(f"{where}, key {source.key}: {error}") from None


def under_way(status: Status | None) -> ProgramStatus | None:
    """The deploy that the driver works at, or the shadow."""
    newest = status.programs[-1] if status is not None and len(status.programs) > 1 else None
    return None if newest is None or newest.state in (REFUSED, KEPT, OVER) else newest


def kept(status: Status | None) -> ProgramStatus | None:
    """The program before, which goes on without writing."""
    programs = status.programs if status is not None else ()
    return next((one for one in programs if one.state == KEPT), None)


def ends(status: Status | None) -> bool:
    """Whether the driver goes on with one of two programs that ran side by side: until then it deploys no other one."""
    programs = status.programs[1:-1] if status is not None else ()
    return under_way(status) is not None and any(one.state in (SHADOW, KEPT) for one in programs)


def is_obsolete(deploy: ProgramStatus, program: WantedProgram, now: ProgramStatus) -> bool:
    """Whether a deploy is not of the wanted program, or not as `spec.deploy` says. `now`: the program in force."""
    if deploy.identity != program.identity:
        return True
    return deploy.attempt != program.attempt and now.identity != program.identity


def refusal(program: WantedProgram | None, status: Status | None) -> ProgramStatus | None:
    """The driver's refusal of the wanted program."""
    if program is None or status is None or not status.programs:
        return None
    now, newest = status.programs[0], status.programs[-1]
    same = newest.identity == program.identity and newest.attempt == program.attempt
    return newest if newest.state == REFUSED and same and now.identity != program.identity else None


def is_answered(program: WantedProgram | None, status: Status | None) -> bool:
    """Whether the wanted program is in force, or refused."""
    if program is None or status is None or not status.programs:
        return False
    return status.programs[0].identity == program.identity or refusal(program, status) is not None
