"""Arguments of a job: split into the generator's and the query's, unknown ones refused with a suggestion."""

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
    """The generator that the arguments describe."""
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
        own.setdefault("rate", args["pace"])  # Event time passes as the clock does.
    return kind(**own)


def paced(source: ArrivalSplits, args: dict[str, Any]) -> Any:
    """The stream as fast as the job takes it; following the clock where `pace` (records/s) or a `profile` is given."""
    if "pace" not in args and "profile" not in args:
        return source
    return pacing.paced(source, args.get("pace"), args.get("profile", ()))


MS = timedelta(milliseconds=1)


def duration(args: dict[str, Any], name: str, default_ms: int) -> timedelta:
    """A length of time, given in milliseconds, or the paper's divided by `scale`."""
    given = args.get(name)
    value = given if given is not None else default_ms // int(args.get("scale", 1))
    if not isinstance(value, int) or value <= 0:
        raise SpecRefused(f"spec.pipeline.args.{name}: {value!r} is not a positive number of milliseconds")
    return value * MS


def whole(args: dict[str, Any], name: str, default: int, least: int) -> int:
    """A whole number that is not less than `least`."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecRefused(f"spec.pipeline.args.{name}: {value!r} is not a whole number of at least {least}")
    return value


def delay(args: dict[str, Any], made: Any) -> timedelta:
    """The watermark's delay."""
    given = args.get("delay_ms")
    return int(given if given is not None else made.disorder_bound_ms()) * MS
