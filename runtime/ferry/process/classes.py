"""Classes of users by name, "module:class": no code travels, and no pickle."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

from ferry.contract.errors import SpecRefused


def class_of(name: str) -> Any:
    """The class that has this name here. Raises SpecRefused."""
    module, _, qualified = name.partition(":")
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SpecRefused(
            f"there is no {name} here ({error}); the pipeline's file or module has to be the same on every host, with the "
            "class at its top level"
        ) from error
    return found


def name_of(made: type) -> str:
    """How instances find the class. Raises SpecRefused when they could not."""
    if "<locals>" in made.__qualname__ or made.__module__ == "__main__":
        raise SpecRefused(
            f"{made.__qualname__} cannot be found by instances; define the class at the top level of the pipeline's file or "
            "module"
        )
    return f"{made.__module__}:{made.__qualname__}"


def arguments_of(made: Any) -> dict[str, Any]:
    """What its class is to be called with, so that there is another one like it. Raises SpecRefused."""
    given = _given(made)
    try:
        text = json.dumps(given, allow_nan=False)
        same = json.loads(text) == given
    except (TypeError, ValueError) as error:
        raise SpecRefused(f"{_arguments(made)} have to be what JSON can hold: {error}") from error
    if not same:
        raise SpecRefused(
            f"{_arguments(made)}, {given}, would come back from JSON as {text}; use texts, numbers, truths, nulls, "
            "lists, and maps with texts as keys"
        )
    again = type(made)(**given)
    if other := [name for name, value in vars(made).items() if not _same(value, vars(again).get(name))]:
        raise SpecRefused(
            f"{type(made).__name__} made anew with {given} has another {', '.join(other)}; what it is set to later, or "
            "is made of something else, instances cannot know: give it to the constructor"
        )
    return given


def _given(made: Any) -> dict[str, Any]:
    if is_dataclass(made):
        return {field.name: getattr(made, field.name) for field in fields(made) if field.init}
    found: dict[str, Any] = {}
    for name, parameter in signature(type(made)).parameters.items():
        held = [attribute for attribute in (name, f"_{name}") if attribute in vars(made)]
        if held:
            found[name] = vars(made)[held[0]]
        elif parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_POSITIONAL,
            Parameter.VAR_KEYWORD,
        ):
            raise SpecRefused(
                f"{_arguments(made)}: what was given for {name!r} is not known; keep it as self.{name}, or make the class a "
                "dataclass"
            )
    return found


def _same(one: Any, other: Any) -> bool:
    """Equal, or of one class that does not know equality."""
    compares = any("__eq__" in vars(base) for base in type(one).__mro__ if base is not object)
    return bool(one == other) if compares else type(one) is type(other)


def _arguments(made: Any) -> str:
    return f"the arguments of {type(made).__name__}"
