"""Users' classes by name, "module:class": no code travels, and no pickle."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

from ferry.contract.errors import SpecRefused


def class_of(name: str) -> Any:
    """The class with this name in this process. Raises SpecRefused."""
    module, _, qualified = name.partition(":")
    try:
        value: Any = importlib.import_module(
            module
        )  # Waits for another thread that imports it: no look at sys.modules.
        for part in qualified.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise SpecRefused(
            f"there is no {name} here ({error}); the pipeline's file or module has to be the same on every host, with the "
            "class at its top level"
        ) from error
    return value


def name_of(kind: type) -> str:
    """The name by which instances import the class. Raises SpecRefused when they could not."""
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        raise SpecRefused(
            f"{kind.__qualname__} cannot be found by instances; define the class at the top level of the pipeline's file or "
            "module"
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def arguments_of(owner: Any) -> dict[str, Any]:
    """The constructor arguments for an equal object. Raises SpecRefused."""
    arguments = _given(owner)
    try:
        text = json.dumps(arguments, allow_nan=False)
        same = json.loads(text) == arguments
    except (TypeError, ValueError) as error:
        raise SpecRefused(f"{_arguments(owner)} have to be values that JSON can hold: {error}") from error
    if not same:
        raise SpecRefused(
            f"{_arguments(owner)}, {arguments}, would come back from JSON as {text}; use texts, numbers, truths, nulls, "
            "lists, and maps with texts as keys"
        )
    again = type(owner)(**arguments)
    if other := [name for name, value in vars(owner).items() if not _same(value, vars(again).get(name))]:
        raise SpecRefused(
            f"{type(owner).__name__} constructed again with {arguments} has another {', '.join(other)}; instances know "
            "constructor arguments only: pass it to the constructor"
        )
    return arguments


def _given(owner: Any) -> dict[str, Any]:
    if is_dataclass(owner):
        return {field.name: getattr(owner, field.name) for field in fields(owner) if field.init}
    arguments: dict[str, Any] = {}
    for name, parameter in signature(type(owner)).parameters.items():
        held = [attribute for attribute in (name, f"_{name}") if attribute in vars(owner)]
        if held:
            arguments[name] = vars(owner)[held[0]]
        elif parameter.default is Parameter.empty and parameter.kind not in (
            Parameter.VAR_POSITIONAL,
            Parameter.VAR_KEYWORD,
        ):
            raise SpecRefused(
                f"{_arguments(owner)}: the value of {name!r} is unknown; keep it as self.{name}, or make the class a "
                "dataclass"
            )
    return arguments


def _same(one: Any, other: Any) -> bool:
    """Whether they are equal, or of the same class without an equality of its own."""
    compares = any("__eq__" in vars(base) for base in type(one).__mro__ if base is not object)
    return bool(one == other) if compares else type(one) is type(other)


def _arguments(made: Any) -> str:
    return f"the arguments of {type(made).__name__}"
