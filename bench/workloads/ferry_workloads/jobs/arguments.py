"""Arguments of a job: the generator's and the query's. Unknown arguments are refused with a suggestion."""

from __future__ import annotations

import dataclasses
import difflib
from datetime import timedelta
from typing import Any, TypeVar

from ferry import SpecRefused
from ferry_workloads import pacing
from ferry_workloads.ranges import ArrivalSplits

QUERY = (
    "scale", "window_ms", "slide_ms", "gap_ms", "min_ms", "delay_ms", "late_ms", "parallelism", "switch_seq", "pace",
    "profile",
)  # fmt: skip

G = TypeVar("G")


def generator(kind: type[G], args: dict[str, Any]) -> G:
    """The generator with these arguments. Raises SpecRefused."""
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    known = sorted({*names, *QUERY} - (set() if "delay_ms" in names else {"late_ms"}))
    for name in args:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
            raise SpecRefused(f"spec.pipeline.args.{name}: unknown argument{hint}")
    own = {n: args[n] for n in names if n in args and n not in QUERY}
    if "late_ms" in args:
        own["delay_ms"] = args["late_ms"]
    if "pace" in args and "rate" in names:
        own.setdefault("rate", args["pace"])  # Event time passes as fast as the clock.
    return kind(**own)


def paced(source: ArrivalSplits, args: dict[str, Any]) -> Any:
    """The stream at the job's speed, or by the clock with `pace` (records per second) or `profile`."""
    if "pace" not in args and "profile" not in args:
        return source
    return pacing.paced(source, args.get("pace"), args.get("profile", ()))


MS = timedelta(milliseconds=1)


def duration(args: dict[str, Any], name: str, default_ms: int) -> timedelta:
    """A duration: the argument in milliseconds, or the paper's value divided by `scale`. Raises SpecRefused."""
    value = args.get(name)
    value = value if value is not None else default_ms // int(args.get("scale", 1))
    if not isinstance(value, int) or value <= 0:
        raise SpecRefused(f"spec.pipeline.args.{name}: {value!r} is not a positive number of milliseconds")
    return value * MS


def whole(args: dict[str, Any], name: str, default: int, least: int) -> int:
    """An integer of at least `least`. Raises SpecRefused."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecRefused(f"spec.pipeline.args.{name}: {value!r} is not a whole number of at least {least}")
    return value


def delay(args: dict[str, Any], source: Any) -> timedelta:
    """The watermark's delay: the argument, or the disorder bound of the generator."""
    delay_ms = args.get("delay_ms")
    return int(delay_ms if delay_ms is not None else source.disorder_bound_ms()) * MS
