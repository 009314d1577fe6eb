"""Deploys of a job on a cluster: the spec names the program, and the operator has it deployed.

A text gets a ConfigMap of its own, which never changes and goes with the job. So a deploy and a rollback are one write of
the spec, and the spec always names the program that the job should have. The outcome is in the journal of the job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from ferry.contract import journals
from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Fault, Refusal, SpecRefused, Unreachable
from ferry.contract.program_diff import OperatorFate, program_diff
from ferry.contract.program_text import identity, unpacked
from ferry.contract.programs import ProgramVersion, first_program
from ferry.system.user_module import ProgramCopy
from ferry_operator.cli.remote.port import as_refusal
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.job.models_deploy import DeployPolicy
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import CONFIG_MAPS, JOURNALS, ApiError
from ferry_operator.kube.manifests import parts
from ferry_operator.kube.observe.program import Text, attempt
from ferry_operator.local import check, program

Document = dict[str, Any]

UPGRADE = "Its StreamJob definition is older than this command: apply crds/streamjobs.ferry.dev.yaml of this release"

KEY = "[-._a-zA-Z0-9]{1,253}"
"""Of a text in a ConfigMap."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The programs in the journal of a job."""

    catalogue: Catalogue
    in_force: ProgramVersion

    @property
    def record(self) -> ProgramRecord:
        """The program in force."""
        record = self.catalogue.program(self.in_force.number)
        if record is None:
            raise Unreachable("the journal does not have the program in force yet")
        return record

    def state(self, record: ProgramRecord) -> str:
        """The state of a program, in the words of the driver."""
        now = self.catalogue.program(self.in_force.number)
        if record.number == self.in_force.number:
            return "shadow" if record.is_shadow else "in force"
        if now is not None and now.beside is not None and now.beside.program == record.number:
            return "in force" if now.is_shadow else "kept"
        if record.refused:
            return "refused"
        return "deploying" if record.number > self.in_force.number and not record.rewound else "over"


@dataclass(frozen=True, slots=True)
class Request:
    """A program that the spec is to name."""

    pipeline: Document
    """fields of `spec.pipeline`; None: without this field"""
    place: tuple[str | None, str | None, str]
    """module, file, hash of a text that travels"""
    before: Document
    """`spec.pipeline` as the user saw it"""
    file: str | None = None
    text: Text | None = None

    @property
    def identity(self) -> str:
        """Of the program."""
        return self.identity_with(self.pipeline["args"])

    def identity_with(self, arguments: Document) -> str:
        """Of the program with its arguments as the API server has them: it writes 1.0 as 1."""
        return identity(*self.place, arguments)


class RemoteDeploys:
    """The programs of one job, with the rights of a user: to read its journal, and to write ConfigMaps and the job."""

    def __init__(self, job: RemoteJob) -> None:
        self._job = job
        self._written: tuple[Request, Document, Doc] | None = None
        """The last request with its `spec.deploy`, and the StreamJob after its write."""

    def programs(self) -> list[Document]:
        """All programs that the journal has, the newest first. Raises Unreachable, Refusal."""
        known = self._known()
        catalogue = known.catalogue
        return [
            record.listed(known.in_force, known.state(record)) | {"wentBack": catalogue.back_from(record.number)}
            for record in reversed(catalogue.programs)
        ]

    def request(self, file: Path | None, change: Callable[[Document], Document]) -> Request:
        """The program of this file, or of the spec, with changed arguments. Raises SpecRefused for a bad text."""
        pipeline = self._job.object()["spec"]["pipeline"]
        arguments = change(dict(pipeline.get("args") or {}))
        _require_no_null(arguments, pipeline)
        if file is None:
            source, module, path = pipeline.get("configMap"), pipeline.get("module"), pipeline.get("file")
            text = None if source is None else Text.of(self._text(source))
            return Request({"args": arguments}, (module, path, text.hash if text is not None else ""), pipeline)
        try:
            text = Text.of(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecRefused(f"{file}: {error}") from None
        return self._of_text(file.name, text, arguments, pipeline)

    def fates(self, request: Request) -> list[OperatorFate]:
        """Build the program on this machine; the fate of each operator. Raises SpecRefused, Unreachable."""
        known, job = self._known(), self._job.object()
        pipeline = {**job["spec"]["pipeline"], **request.pipeline}
        with TemporaryDirectory(prefix="ferry-deploy-") as folder:
            module, path, copied = pipeline.get("module"), pipeline.get("file"), None
            text = request.text
            if text is None and (source := pipeline.get("configMap")) is not None:
                text, path = Text.of(self._text(source)), source["key"]
            if text is not None:
                path = request.file or path
                copied = str(ProgramCopy.write_text(Path(folder), str(path), text.text.encode()))
            spec = job["spec"]
            checked = check.deployable(
                (module, path, copied), pipeline["args"], spec.get("output") or folder, spec.get("events")
            )
        if checked.refused or checked.operators is None:
            where = "--check builds the program on this machine, with the packages of this machine"
            raise SpecRefused(f"{checked.refused or 'the program was not built'} ({where})")
        operators = [OperatorDescriptor.from_wire(one) for one in checked.operators]
        return list(program_diff(known.catalogue, known.record.operators, operators).fates)

    def deploy(self, request: Request, how: Document | None = None) -> int:
        """Have the spec name the program; its number. May be repeated. Raises Unreachable until the driver has it.

        Only the first call writes: later ones raise Fault if the spec was changed since, for example by a rollback.
        `how`: `spec.deploy`. Raises SpecRefused for one that is invalid, and Refusal if the cluster does not know it, or if
        the program of the spec is not the one any more that the user saw.
        """
        how = how or {}
        wanted = _deploy_of(how)
        if self._written is None or self._written[:2] != (request, how):
            self._written = (request, how, self._write(request, how))
        written = self._written[2]
        known, job = self._known(), self._job.object()
        newest, now = known.catalogue.programs[-1], known.record
        shadow = known.catalogue.shadow_before(now)
        name = request.identity_with(written["spec"]["pipeline"].get("args") or {})
        mine = (name, attempt(job["spec"].get("restartNonce"), wanted))
        if (newest.identity, newest.attempt) == mine and not (newest.is_withdrawn or newest.rewound):
            return newest.number
        if now.identity == name and not now.is_shadow:
            return now.number
        for over in (shadow, known.catalogue.program(now.back_from)):
            if over is not None and (over.identity, over.attempt) == mine:
                return over.number  # Its outcome is known: the spec has to change before it is tried again.
        if _program_of(job) != _program_of(written):
            raise Fault(
                f"the spec was changed meanwhile, by another command or an apply, and this program is not deployed: see "
                f"`kubectl streamjob versions {self._job.name}`"
            )
        raise Unreachable("the operator asks the driver to deploy the program")

    def _write(self, request: Request, how: Document) -> Doc:
        """Have the spec name the program; the StreamJob as the API server has it then."""
        if how:
            self._require(how)
        if request.text is not None:
            self._keep(request.pipeline["configMap"], request.text)
        return self._job.edit(lambda job: _patch(job, request, how))

    def rolled_back(self, to: int | None, rewind: bool = False) -> Request:
        """The request for an earlier program; None: the one before, or the one in force if a deploy is under way.

        `rewind`: with its state. Raises Refusal.
        """
        before: Document = self._job.object()["spec"]["pipeline"]
        known = self._known()
        if rewind and known.record.beside is not None:
            raise Refusal(f"program {known.record.number} runs beside another one: end it by `ferry rollback` first")
        newest = known.catalogue.programs[-1]
        earlier = known.catalogue.before(known.in_force.number)
        beside = known.record.beside
        if to is None and beside is not None:
            chosen = known.catalogue.program(beside.program)
        elif to is None and (known.state(newest) == "deploying" or self._is_asked(known)):
            chosen = known.record
        else:
            chosen = next((one for one in reversed(earlier) if to in (None, one.number)), None)
        if chosen is None:
            which = "no program was in force before" if to is None else f"program {to} was never in force before"
            raise Refusal(f"{which}; earlier programs: {', '.join(str(one.number) for one in earlier) or 'none'}")
        if rewind and chosen.identity == known.record.identity:
            raise Refusal(
                f"program {known.record.number} has the text of program {chosen.number}: the spec would not change; "
                "begin the job again with a checkpoint (spec.restoreFrom)"
            )
        _require_no_null(chosen.arguments, before)
        if not chosen.hash:
            pipeline = {"module": chosen.module, "file": chosen.file, "configMap": None, "args": chosen.arguments}
            return Request(pipeline, (chosen.module, chosen.file, ""), before)
        if not chosen.text:
            raise Refusal(f"the text of program {chosen.number} is not kept any more: deploy its file again")
        text = Text.of(unpacked(chosen.text).decode())
        return self._of_text(Path(chosen.file or "").name, text, chosen.arguments, before)

    def _is_asked(self, known: _Known) -> bool:
        """Whether the spec names a program of which the journal has no answer: the driver checks it, or it is missing."""
        spec = self._job.object()["spec"]
        try:
            wanted = self.request(None, dict).identity
        except Refusal:
            return True
        mine = (wanted, attempt(spec.get("restartNonce"), _deploy_of(_given(spec.get("deploy")))))
        answers = [one for one in known.catalogue.programs if not (one.is_withdrawn or one.rewound)]
        answered = any((one.identity, one.attempt) == mine for one in answers)
        return wanted != known.record.identity and not answered

    def _require(self, how: Document) -> None:
        """Raises Refusal if the cluster would lose fields of `spec.deploy`: it would deploy the program at once."""
        before = self._job.object()["spec"].get("deploy") or {}
        try:
            tried = self._job.tried({"spec": {"deploy": {**dict.fromkeys(before), **how}}})
        except Refusal as error:
            if "unknown field" not in str(error):
                raise
            raise Refusal(f"{error}. {UPGRADE}") from None
        if any(name not in (tried["spec"].get("deploy") or {}) for name in how):
            raise Refusal(f"this cluster does not know spec.deploy. {UPGRADE}")

    def _of_text(self, name: str, text: Text, arguments: Document, before: Document) -> Request:
        key = name if re.fullmatch(KEY, name) else "pipeline.py"
        source = {"name": f"{self._job.name}-{text.hash}", "key": key}
        pipeline = {"module": None, "file": None, "configMap": source, "args": arguments}
        return Request(pipeline, (None, None, text.hash), before, name, text)

    def _known(self) -> _Known:
        job = self._job.object()
        name = journals.name(self._job.name, str(job["metadata"]["uid"]), JobMemory.of(job).run)
        try:
            journal = self._job.api.get(JOURNALS, name).get("spec") or {}
        except ApiError as error:
            raise as_refusal(error) from None
        if not journal.get("operators") or not journal.get("table"):
            raise Unreachable("the job has no program yet: its driver is starting")
        table = journals.unpacked(journal["table"])
        catalogue = journals.read(journal["operators"])
        programs = table.programs or first_program(len(catalogue.operators))
        return _Known(catalogue, programs[-1])

    def _data(self, source: Document) -> Document:
        try:
            return self._job.api.get(CONFIG_MAPS, source["name"]).get("data") or {}
        except ApiError as error:
            raise as_refusal(error) from None

    def _text(self, source: Document) -> str:
        data = self._data(source)
        if source["key"] not in data:
            raise SpecRefused(f"ConfigMap {source['name']} has no key {source['key']!r}")
        return str(data[source["key"]])

    def _keep(self, source: Document, text: Text) -> None:
        """Create the ConfigMap of a text, unless it is there: then `source` gets the key that it has."""
        job = self._job.object()
        document: Doc = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": source["name"],
                "labels": {names.MANAGED: names.MANAGER, names.JOB: self._job.name},
                "ownerReferences": [{**parts.owner(job), "controller": False, "blockOwnerDeletion": False}],
            },
            "data": {source["key"]: text.text},
            "immutable": True,
        }
        try:
            self._job.api.create(CONFIG_MAPS, document)
            return
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise as_refusal(error) from None
        there = self._data(source)
        if there.get(source["key"]) != text.text:
            key = next((key for key, known in there.items() if known == text.text), None)
            if key is None:
                raise Refusal(f"ConfigMap {source['name']} exists and has another text: delete it")
            source["key"] = key


def helpers(file: Path) -> list[str]:
    """Modules beside a file that it imports: they do not travel with its text."""
    with TemporaryDirectory(prefix="ferry-deploy-") as folder:
        return ProgramCopy.of(program.copy(None, str(file.absolute()), Path(folder))).modules


def _deploy_of(how: Document) -> DeployPolicy:
    try:
        return DeployPolicy.model_validate(how)
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise SpecRefused(f"spec.deploy: {why}") from None


def _given(how: Document | None) -> Document:
    return {name: value for name, value in (how or {}).items() if value is not None}


def _require_no_null(arguments: Document, pipeline: Document) -> None:
    """Raises SpecRefused for an argument that a merge patch of this pipeline would remove, instead of making it null."""
    now = pipeline.get("args") or {}
    for name in (name for name, value in arguments.items() if value is None):
        if now.get(name, "") is not None:
            raise SpecRefused(
                f"spec.pipeline.args.{name}: null cannot be written to a cluster, because a change of the spec removes such "
                "an argument: give it another value"
            )


def _program_of(job: Doc) -> str:
    """The spec's fields of the program, and of its deploy, as text."""
    spec = job["spec"]
    return _text_of({**spec["pipeline"], "deploy": _given(spec.get("deploy"))})


def _patch(job: Doc, request: Request, how: Document) -> Doc | None:
    """The change of the job; None: it is made. A merge patch removes arguments and options by nulls.

    Raises Refusal if the program of the spec is not the one any more that the user saw.
    """
    pipeline, now = request.pipeline, job["spec"]["pipeline"]
    arguments = now.get("args") or {}
    before = job["spec"].get("deploy") or {}
    wanted = {**now, **pipeline}
    same = _text_of(wanted) == _text_of(now)
    if same and _given(before) == how:
        return None
    if not same and _text_of(now) != _text_of(request.before):
        raise Refusal(
            "the spec was changed meanwhile, by another command or an apply: deploy again, to change that one"
        )
    args = {key: value for key, value in pipeline["args"].items() if value is not None}
    gone = {key: None for key in arguments if key not in pipeline["args"]}
    deploy = {**dict.fromkeys(before), **how}
    return {"spec": {"pipeline": {**pipeline, "args": {**args, **gone}}, "deploy": deploy or None}}


def _text_of(pipeline: Document) -> str:
    """Equal for equal pipelines: a field that is not set is no field, and to Python 1 equals true."""
    return json.dumps({name: value for name, value in pipeline.items() if value}, sort_keys=True)
