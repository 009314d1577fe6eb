"""Paths, names and types of the job file's fields, and the texts about wrong fields.

Pure: walks the models and words pydantic's errors; it never reads a file and never changes a document.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ferry_operator.job.models import StreamJob


def problem(error: ErrorDetails) -> str:
    """One of pydantic's errors as one line: path, the value, what is allowed."""
    loc = [str(part) for part in error["loc"] if part != "[key]"]
    path, value, context = ".".join(loc) or "job", error["input"], error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            model = _model_at(loc[:-1])
            return f"{path}: unknown field{suggest(loc[-1], names_of(model), model)}"
        case "missing":
            return f"{path}: required"
        case "literal_error":
            allowed = str(context["expected"])
            close = difflib.get_close_matches(str(value), re.findall(r"'([^']*)'", allowed), 1)
            return f"{path}: {value!r} is not allowed; must be {allowed}" + _meant(close)
        case "value_error":
            return f"{path}: {_shown(value)}{context['error']}"
        case "model_type" | "dict_type":
            return f"{path}: {_shown(value)}must be a map of fields"
        case "string_type":
            return f"{path}: {_shown(value)}must be text; quote it"
        case _:
            wording = error["msg"].replace("Input should be", "must be").replace("a valid integer", "a whole number")
            return f"{path}: {_shown(value)}{wording[0].lower()}{wording[1:]}"


def _shown(value: Any) -> str:
    return "" if isinstance(value, dict | list | BaseModel) else f"{value!r}: "


def suggest(unknown: str, names: Iterable[str], model: type[BaseModel]) -> str:
    """'; did you mean ...?' with a name of this level, else the path of such a field elsewhere in the document."""
    close = difflib.get_close_matches(unknown, list(names), 1, 0.6)
    if close:
        return _meant(close)
    below = [path for path in _leaves(StreamJob, "") if path.rsplit(".", 1)[-1] == unknown]
    return _meant(below[:1]) or f"; allowed here: {', '.join(names_of(model))}"


def _meant(close: list[str]) -> str:
    return f"; did you mean {close[0]!r}?" if close else ""


def names_of(model: type[BaseModel]) -> dict[str, str]:
    """Field names in the job file -> names in Python, in order."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def _leaves(model: type[BaseModel], prefix: str) -> list[str]:
    """Paths of all fields below a model."""
    paths: list[str] = []
    for alias, name in names_of(model).items():
        paths.append(prefix + alias)
        nested = group_of(model.model_fields[name].annotation)
        if nested is not None:
            paths += _leaves(nested, f"{prefix}{alias}.")
    return paths


def _model_at(path: list[str]) -> type[BaseModel]:
    """The model that a path of the document leads to."""
    model: type[BaseModel] = StreamJob
    for part in path:
        if part.isdigit():
            continue  # a place in a list of groups
        nested = group_of(model.model_fields[names_of(model)[part]].annotation)
        assert nested is not None, path
        model = nested
    return model


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a group of fields."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def group_of(annotation: Any) -> type[BaseModel] | None:
    """The model of a group of fields, of a group that may be null, or of each group in a list of them."""
    if typing.get_origin(annotation) in (list, types.UnionType, typing.Union):
        return model_of(typing.get_args(annotation)[0])
    return model_of(annotation)


def takes_only_text(annotation: Any) -> bool:
    """True for str, its subclasses, and these with None."""
    if typing.get_origin(annotation) is types.UnionType or typing.get_origin(annotation) is typing.Union:
        return all(one is types.NoneType or takes_only_text(one) for one in typing.get_args(annotation))
    if typing.get_origin(annotation) is typing.Annotated:
        return takes_only_text(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is typing.Literal:
        return True
    return isinstance(annotation, type) and issubclass(annotation, str)
