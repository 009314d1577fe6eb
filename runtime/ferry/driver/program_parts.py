"""Sources and sinks of a deployed program: the parts that stay keep their objects, with their connections and positions.

Two objects are the same part if they are built with the same values. Code of the user in them may differ, so such an object
is replaced. A new sink is opened between two epochs: the old program has written all it ever writes.
"""

from __future__ import annotations

import sys
import sysconfig
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.connectors.sink import Sink
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import PACKAGE, PREFIX, without_text
from ferry.contract.user_code import shown
from ferry.spark.compile import CompiledPipeline

_NO_REPR: Any = object.__repr__
"""Of types without a text of their own."""

AGAIN = "Stop the job, and start it again with the new program"


@dataclass(frozen=True, slots=True)
class Signatures:
    """Of the parts of a plan as it was built, before any part was opened."""

    sources: Mapping[str, str]
    sinks: tuple[str, ...]
    """In the order of `CompiledPipeline.sinks`."""


def signatures_of(plan: CompiledPipeline) -> Signatures:
    """Of a plan that was built now."""
    sources = {name: signature(source) for name, source in plan.sources.items()}
    return Signatures(sources, tuple(map(signature, plan.sinks)))


def signature(part: Any) -> str:
    """The values that a source or a sink was built with; of code, its name only."""
    if isinstance(part, DataFrame):
        return f"a DataFrame of {part.schema.simpleString()}"
    if isinstance(part, types.FunctionType | type):
        return part.__qualname__
    if isinstance(part, Mapping):
        return f"{{{', '.join(f'{signature(k)}: {signature(v)}' for k, v in part.items())}}}"
    if isinstance(part, list | tuple | set | frozenset):
        return f"[{', '.join(map(signature, part))}]"
    if isinstance(part, pa.Schema | str | bytes | int | float | None):
        return repr(part)
    values = getattr(part, "__dict__", None)
    if values is None:
        return repr(part) if type(part).__repr__ is not _NO_REPR else type(part).__qualname__
    named = ", ".join(f"{name}={signature(value)}" for name, value in sorted(values.items()))
    return without_text(f"{type(part).__qualname__}({named})")


def has_users_code(part: Any) -> bool:
    """Whether code is in it that is neither Ferry's nor of an installed package."""
    if isinstance(part, types.FunctionType | type):
        return _is_users(part.__module__)
    if isinstance(part, Mapping):
        return any(map(has_users_code, part.values()))
    if isinstance(part, list | tuple | set | frozenset):
        return any(map(has_users_code, part))
    return _is_users(type(part).__module__) or any(map(has_users_code, getattr(part, "__dict__", {}).values()))


def _is_users(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] == "ferry":
        return module.startswith((PREFIX, PACKAGE))
    installed = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not str(file).startswith(tuple(installed))


def same_parts(before: CompiledPipeline, were: Signatures, now: CompiledPipeline, are: Signatures) -> CompiledPipeline:
    """The new plan with the parts that stay. Raises SpecRefused for a changed source."""
    either = (*before.sources.items(), *now.sources.items())
    foreign = next((name for name, source in either if isinstance(source, DataFrame)), "")
    sources = {}
    for name, source in now.sources.items():
        if name not in before.sources:
            _require_own(f"source {name!r} was added", foreign)
            if name in now.first:
                raise SpecRefused(
                    f"source {name!r} was added, and an operator's state begins with it: a deploy cannot do that. {AGAIN}"
                )
            sources[name] = source
            continue
        if were.sources[name] != are.sources[name]:
            change = f"it was {shown(before.sources[name])}, and is {shown(source)}"
            raise SpecRefused(
                f"source {name!r} was changed ({change}), and its positions would mean other records: give it another name"
            )
        if users := has_users_code(source):
            _require_own(f"source {name!r} has code of its own", foreign)
        sources[name] = source if users else before.sources[name]
    for name in before.sources:
        if name not in sources:
            _require_own(f"source {name!r} was removed", foreign)
    left = list(zip(were.sinks, before.sinks, strict=True))
    sinks = [_same_sink(left, wanted, sink) for wanted, sink in zip(are.sinks, now.sinks, strict=True)]
    outputs = tuple(replace(one, sink=sinks.pop(0)) for one in now.outputs)
    late = tuple(replace(one, sink=sinks.pop(0)) for one in now.late)
    return replace(now, sources=sources, outputs=outputs, late=late)


def _require_own(change: str, foreign: str) -> None:
    """Refuse a change of sources beside a source of Spark's own, whose query has a fixed set of sources."""
    if foreign:
        raise SpecRefused(
            f"{change}, and source {foreign!r} is Spark's own: a deploy cannot change the sources of Spark's query. {AGAIN}"
        )


def _same_sink(left: list[tuple[str, Sink]], wanted: str, now: Sink) -> Sink:
    for number, (known, before) in enumerate(left):
        if known == wanted:
            del left[number]
            return now if has_users_code(now) else before
    return now
