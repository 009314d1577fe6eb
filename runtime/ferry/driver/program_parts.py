"""Sources and sinks of a deployed program: the parts that stay keep their objects, with their connections and positions.

Two objects are the same part if they are built with the same values. Code of the user in them may differ, so such an object
is replaced. A new sink is opened between two epochs: the old program has written all it ever writes.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
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

DIGEST_BYTES = 8

SHOWN = 200
"""Characters of a setting in a message."""

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
    return Signatures(sources, tuple(signature(sink, closures=True) for sink in plan.sinks))


def digests_of(signatures: Signatures) -> tuple[tuple[str, str], ...]:
    """Names of the sources, and digests of their settings."""
    each = signatures.sources.items()
    return tuple((name, blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()) for name, text in each)


def signature(part: Any, closures: bool = False) -> str:
    """The values that a source or a sink was built with; of code its name, with `closures` also the values that it holds."""

    def of(value: Any) -> str:
        return signature(value, closures)

    if isinstance(part, DataFrame):
        return f"a DataFrame of {part.schema.simpleString()}"
    if isinstance(part, types.MethodType):
        return f"{part.__func__.__qualname__} of {_plain(getattr(part.__self__, '__dict__', {}))}"
    if isinstance(part, partial):
        return f"{of(part.func)}({_plain(part.args)}, {_plain(part.keywords)})"
    if isinstance(part, types.FunctionType) and closures:
        code = part.__code__  # Two lambdas of one function have one name.
        inner = (code.co_code, code.co_names, code.co_consts) if "<" in part.__qualname__ else ()
        return f"{part.__qualname__}({_plain(held_by(part))}, {_plain(inner)})"
    if isinstance(part, types.FunctionType | type):
        return part.__qualname__
    if isinstance(part, Mapping):
        return f"{{{', '.join(f'{of(k)}: {of(v)}' for k, v in part.items())}}}"
    if isinstance(part, set | frozenset):
        return f"[{', '.join(sorted(map(of, part)))}]"
    if isinstance(part, list | tuple):
        return f"[{', '.join(map(of, part))}]"
    if isinstance(part, pa.Schema | str | bytes | int | float | None):
        return repr(part)
    values = getattr(part, "__dict__", None)
    if values is None:
        return repr(part) if type(part).__repr__ is not _NO_REPR else type(part).__qualname__
    named = ", ".join(f"{name}={of(value)}" for name, value in sorted(values.items()))
    return without_text(f"{type(part).__qualname__}({named})")


def held_by(function: types.FunctionType) -> list[Any]:
    """The values of its closure, and its defaults."""
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # It is empty.
            held.append(cell.cell_contents)
    return held


def _plain(value: Any, depth: int = 3) -> str:
    """Texts and numbers, also in collections; of other objects their type: clients and sessions are large, and differ."""
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)
    if isinstance(value, Mapping) and depth:
        return f"{{{', '.join(f'{_plain(k, depth - 1)}: {_plain(v, depth - 1)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple) and depth:
        return f"[{', '.join(_plain(one, depth - 1) for one in value)}]"
    return value.__qualname__ if isinstance(value, types.FunctionType | type) else type(value).__qualname__


def has_users_code(part: Any) -> bool:
    """Whether code is in it that is neither Ferry's nor of an installed package."""
    if isinstance(part, types.FunctionType | type):
        return _is_users(part.__module__)
    if isinstance(part, types.MethodType):
        return has_users_code(part.__func__) or has_users_code(type(part.__self__))
    if isinstance(part, partial):
        return any(map(has_users_code, (part.func, part.args, part.keywords)))
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


def _apart(was: str, now_is: str) -> tuple[str, str]:
    """The first settings in which two signatures differ."""
    settings = (re.split(r", _?(?=\w+=)", text) for text in (was, now_is))
    first = next(pair for pair in zip_longest(*settings, fillvalue="") if pair[0] != pair[1])
    before, after = (" ".join(one.split()) for one in first)
    return before[:SHOWN], after[:SHOWN]


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
            was, now_is = shown(before.sources[name]), shown(source)
            if was == now_is:
                was, now_is = _apart(were.sources[name], are.sources[name])
            raise SpecRefused(
                f"source {name!r} was changed (it was {was}, and is {now_is}), and its positions would mean other records: "
                "give it another name, and it reads from its first record on"
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
