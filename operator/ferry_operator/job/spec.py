"""Read, change, check and write `StreamJob` documents; every refusal is one line with its path and what is allowed.

The only I/O is reading the named job file. Nothing here talks to a cluster or takes values from another place.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ferry.contract.errors import SpecRefused
from ferry_operator.job import changes, fields
from ferry_operator.job.models import API_VERSION, KIND, Spec, StreamJob

Document = dict[str, Any]
"""A job file as plain maps, before it is checked."""

FREE_FORM = ("pipeline.args", "spark", "kubernetes.nodeSelector")
"""The maps under spec in which a user chooses the keys."""

_KEPT_BY_KUBERNETES = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "selfLink",
    "generateName",
)


SHOWN_MAX = 200
"""Characters of a value in a refusal."""

_BAD_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
"""Errors of PyYAML for invalid texts, such as `!!int x`, `!!timestamp x` or many brackets."""


class JobRefused(SpecRefused):
    """A job file that cannot run. `problems`: one line each; the message is these lines."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def load(path_or_text: Path | str, sets: Sequence[str] = ()) -> StreamJob:
    """The job of a file or of YAML text, with `sets` ("path=value") applied; raises JobRefused with every problem."""
    return check(apply_sets(read(path_or_text), sets))


def read(path_or_text: Path | str) -> Document:
    """The document of a file (a Path, or text of one line that does not begin with '{') or of YAML text.

    Dates stay text, and a key that is given twice is refused. Raises JobRefused.
    """
    text, where = str(path_or_text), "job"
    if isinstance(path_or_text, Path) or not ("\n" in text or text.lstrip().startswith("{")):
        where = Path(text).name
        try:
            text = Path(text).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise JobRefused([f"{text}: no such job file"]) from None
        except (OSError, UnicodeDecodeError) as error:
            raise JobRefused([f"{text}: cannot be read as a job file: {error}"]) from error
    try:
        document = yaml.load(text, _Loader)
    except _BAD_YAML as error:
        raise JobRefused([f"{where}: not YAML: {_yaml_problem(error)}"]) from error
    if not isinstance(document, dict):
        raise JobRefused([f"{where}: must be a map with apiVersion, kind, metadata and spec"])
    return document


def check(document: Document) -> StreamJob:
    """The job that a document describes; raises JobRefused with one line for every problem."""
    known = {key: value for key, value in document.items() if key != "status"}
    if isinstance(known.get("metadata"), dict):
        known["metadata"] = {k: v for k, v in known["metadata"].items() if k not in _KEPT_BY_KUBERNETES}
    try:
        return StreamJob.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        raise JobRefused(fields.problem(one) for one in error.errors(include_url=False)) from None


def dump(job: StreamJob) -> str:
    """The job as YAML that `load` reads back equal: all defaults written out, durations and sizes as spelled."""
    return yaml.safe_dump(to_document(job), sort_keys=False, allow_unicode=True, width=120)


def to_document(job: StreamJob) -> Document:
    """The job as plain maps with the names of the job file."""
    return job.model_dump(mode="json", by_alias=True)


def pipeline_file(job: StreamJob, job_file: Path) -> Path | None:
    """Where `pipeline.file` is, for a job that was read from `job_file`; None when the job names a module."""
    return None if job.spec.pipeline.file is None else job_file.parent / job.spec.pipeline.file


def require_local_pipeline(job: StreamJob) -> None:
    """Raises JobRefused for a pipeline that only a cluster has."""
    if (source := job.spec.pipeline.config_map) is not None:
        raise JobRefused(
            [
                f"spec.pipeline.configMap: ConfigMap {source.name} is on a cluster; on this machine name the program by "
                "pipeline.file or pipeline.module"
            ]
        )


def some_job(fields: Document) -> Document:
    """A whole document with these fields of a spec, to check them alone."""
    about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "some"}}
    return {**about, "spec": {"pipeline": {"module": "some"}, **fields}}


def apply_sets(document: Document, sets: Sequence[str]) -> Document:
    """A copy of `document` with each "path=value" put in; the paths are relative to spec.

    A value is one YAML scalar, in pipeline.args also a list; the value of a text field is the text itself.
    New keys are allowed in the maps of FREE_FORM only. There the rest of the path is the key, including dots
    ('spark.sql.ansi.enabled=true' sets the key of that name). Raises JobRefused with every problem.
    """
    changed, problems = copy.deepcopy(document), []
    for option in sets:
        path, equals, text = option.partition("=")
        problem = _set(changed, path.strip(), text) if equals else "must be path=value, such as 'workers=3'"
        if problem:
            problems.append(f"--set {_cut(option)}: {problem}")
    if problems:
        raise JobRefused(problems)
    return changed


def immutable_changes(old: StreamJob, new: StreamJob) -> list[str]:
    """One line for every refused change of a field; empty when `new` can follow `old`."""
    if old.metadata.name != new.metadata.name:
        return [f"metadata.name: {new.metadata.name!r} is another job than {old.metadata.name!r}"]
    return [
        f"{change.path}: cannot change from {change.before!r} to {change.after!r}; {_instead(change)}"
        for change in changes.refusals(old.spec, new.spec)
    ]


def _instead(change: changes.Change) -> str:
    return "suspend the job first" if change.path == changes.RESTORE_FROM else "create a new job"


def warnings(job: StreamJob) -> list[str]:
    """Allowed settings that are probably mistakes; one line each."""
    spec, lines = job.spec, []
    if spec.suspended:
        return ["spec.suspend: the job is suspended: it has no pods"]
    if spec.state.replicas >= spec.workers:
        lines.append(
            f"spec.state.replicas: {spec.state.replicas} needs {spec.state.replicas + 1} workers; with {spec.workers} each "
            f"virtual node has {spec.workers - 1}"
        )
    instances = spec.workers * spec.instances_per_worker
    if instances > spec.state.virtual_nodes:
        lines.append(
            f"spec.workers: {instances} instances share {spec.state.virtual_nodes} virtual nodes; "
            f"{instances - spec.state.virtual_nodes} of them will lead nothing"
        )
    return lines


class _Loader(yaml.SafeLoader):
    """YAML without dates (an argument such as 2024-01-01 stays text), and without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As SafeLoader's, but a repeated key and a key that is not text are refused."""
        seen: dict[str, None] = {}
        for key, _ in node.value:
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text (quote it)", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen[key.value] = None
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_YAML_HINTS = (
    ("'\\t'", "indent with spaces, not with tabs"),
    ("expected <block end>", "fields of one map begin in the same column: look at the indentation"),
    ("mapping values are not allowed here", "a text with ': ' in it needs quotes; or look at the indentation"),
)
"""(a part of PyYAML's message, the hint for it)"""


def _yaml_problem(error: Exception) -> str:
    """The problem and its line of the file, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        hint = next((f"; {what}" for sign, what in _YAML_HINTS if sign in problem), "")
        return f"line {error.problem_mark.line + 1}: {problem}{hint}"
    return " ".join(str(error).split()) or type(error).__name__


def _set(document: Document, path: str, text: str) -> str | None:
    """Put one value in place; the problem, or None."""
    for free in FREE_FORM:
        if path.startswith(f"{free}."):
            key = path[len(free) + 1 :]
            if free == "spark":
                # 'spark.sql.x' reads as the key itself; 'spark.spark.sql.x' is the literal path.
                key = key if key.startswith("spark.") else path
                return _put(document, ["spec", "spark", key], text)
            value, problem = _scalar(text, lists=True)
            return problem or _put(document, ["spec", *free.split("."), key], value)
    if path.startswith("spec."):
        return f"paths begin below spec; did you mean {path.removeprefix('spec.')!r}?"
    parts: list[str] = path.split(".")
    model: type[BaseModel] = Spec
    for depth, part in enumerate(parts):
        names = fields.names_of(model)
        if part not in names:
            return f"{'.'.join(['spec', *parts[: depth + 1]])}: unknown field{fields.suggest(part, names, model)}"
        annotation = model.model_fields[names[part]].annotation
        nested = fields.group_of(annotation) if typing.get_origin(annotation) is not list else None
        if depth == len(parts) - 1:
            if nested is not None or path in FREE_FORM:
                inner = ", ".join(fields.names_of(nested)) if nested is not None else "any key"
                return f"spec.{path}: a group of fields, set one of them ({inner})"
            value, problem = _scalar(text, lists=False)
            wanted_text = fields.takes_only_text(annotation) and value is not None and not problem
            return problem or _put(document, ["spec", *parts], text if wanted_text else value)
        if nested is None:
            return f"spec.{'.'.join(parts[: depth + 1])}: has no fields of its own"
        model = nested
    raise AssertionError(path)


def _scalar(text: str, lists: bool) -> tuple[Any, str | None]:
    """The YAML value of a text, and the problem with it."""
    try:
        value = yaml.load(text, _Loader)
    except _BAD_YAML:
        return None, f"{_cut(text)!r} is not a YAML scalar; quote it"
    if isinstance(value, dict) or (isinstance(value, list) and not lists):
        return None, f"{text!r} must be a single value"
    return value, None


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def _put(document: Document, path: list[str], value: Any) -> str | None:
    """Set document[path], with new maps on the way; the problem when a value on the way is not a map."""
    at = document
    for depth, part in enumerate(path[:-1]):
        if at.get(part) is None:
            at[part] = {}
        at = at[part]
        if not isinstance(at, dict):
            return f"{'.'.join(path[: depth + 1])}: is {at!r} in the job file, not a map"
    at[path[-1]] = value
    return None
