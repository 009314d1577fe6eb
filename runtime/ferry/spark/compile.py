"""Compiles the user's module to a plan of sources, operators and outputs, and refuses errors before the first epoch.

The module declares `sources(spark, args) -> {name: Splits | streaming DataFrame}` and
`pipeline(streams, args) -> Output` (or a list of them).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from ferry.api import graph
from ferry.api.arguments import Arguments, refuse_unbounded
from ferry.api.hints import hint
from ferry.api.pipeline import (
    Build,
    Input,
    LateOutput,
    Operator,
    Output,
    Transform,
    refuse_same,
)
from ferry.api.stream import Stream
from ferry.api.user_batches import UserBatches
from ferry.connectors import sink as sinks
from ferry.connectors.poll.source import PollSplits
from ferry.connectors.splits import Splits, has_flows
from ferry.connectors.users import is_ferrys, refusal_of, refused
from ferry.contract.errors import FerryError, InputAway, SpecRefused
from ferry.contract.program_text import PACKAGE, PREFIX
from ferry.contract.user_code import at, function_name, place_of, reason, shown, where
from ferry.kernels.frame_types import require_names, require_types
from ferry.spark.emit import is_parted
from ferry.spark.frames import arrow_schema
from ferry.spark.transforms import refuse_stateful, schema_after
from ferry.system import user_module


@dataclass(frozen=True, slots=True)
class CompiledPipeline:
    """One version of a pipeline, ready to run."""

    sources: dict[str, Splits | DataFrame]
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]
    late: tuple[LateOutput, ...] = ()
    created: Mapping[str, str] = field(default_factory=dict)
    """The column with the creation time of a record, by source."""
    silent: frozenset[int] = frozenset()
    """Operators whose rows are not written: of a program that runs beside the one in force."""
    failed: str = ""
    """Why their program cannot be built: their steps are void."""

    def is_leading(self, operator: Operator) -> bool:
        """Whether the operator gets ticks and ends though it reads no source: the first one, and the first written one."""
        written = next((one for one in self.operators if one.descriptor.index not in self.silent), operator)
        return operator.descriptor.index in (0, written.descriptor.index)

    @property
    def first(self) -> list[str]:
        """Sources of initial states: all other sources wait until these have ended."""
        inputs = (side for operator in self.operators for side in operator.inputs)
        return sorted({side.origin for side in inputs if side.initial and isinstance(side.origin, str)})

    @property
    def sinks(self) -> list[sinks.Sink]:
        """All sinks of rows and of late records."""
        return [*(output.sink for output in self.outputs), *(output.sink for output in self.late)]


def load(module: str | None, file: str | None, program: str | None = None) -> ModuleType:
    """The user's module; functions of a file are pickled by value. `program`: folder with the copy to read."""
    loaded = user_module.load(module, file, program)
    if module is None:
        cloudpickle.register_pickle_by_value(loaded)
    return loaded


def build(
    spark: SparkSession,
    module: ModuleType,
    values: dict[str, Any],
    output: str | None = None,
    events: int | None = None,
) -> CompiledPipeline:
    """Call the module's functions and check their declarations; `output` replaces the directory of file sinks.

    `events` is an additional argument, which `sources` must read. Raises SpecRefused for any error of the module.
    """
    try:
        return _built(spark, module, values, output, events)
    except (FerryError, Py4JError, OSError):
        raise
    except BaseException as error:
        raise SpecRefused(f"the pipeline cannot be built: {reason(error)}") from error


def _built(
    spark: SparkSession, module: ModuleType, values: dict[str, Any], output: str | None, events: int | None
) -> CompiledPipeline:
    args = Arguments(values, events)
    sources = _call(module, "sources", spark, args)
    if not isinstance(sources, dict) or not sources:
        what = f"{shown(sources)} ({place_of(module.sources)})"
        raise SpecRefused(f"{_named(module)}.sources must return a dict of named sources, not {what}")
    _refuse_names(sources)
    refuse_unbounded(args, sources)
    schemas = {name: source_schema(name, source) for name, source in sources.items()}
    for name, schema in schemas.items():
        refuse_same(schema, f"source {name!r} has")
    created = {n: column for n, source in sources.items() if (column := getattr(source, "creation_time", None))}
    building = Build(lambda function, schema, where: schema_after(spark, function, schema, where), created=created)
    streams = {n: Stream(building, Input(n, (), schema, None, 0)) for n, schema in schemas.items()}
    returned = _call(module, "pipeline", _Streams(streams), args)
    outputs = tuple(returned) if isinstance(returned, list | tuple) else (returned,)
    for result in outputs:
        if not isinstance(result, Output):
            raise SpecRefused(
                f"{_named(module)}.pipeline must return what .sink(...) returns (or a list of them), not {shown(result)} "
                f"({place_of(module.pipeline)})"
            )
    with _placed(module.pipeline):
        graph.refuse_unread(sources, building.operators, outputs)
        graph.refuse_initial(sources, building.operators, outputs)
        _refuse_unheeded(sources, building.operators)
        _refuse_types(outputs)
        _refuse_uncreated(building.created, building.operators)
        operators = tuple(building.operators or [graph.offsets_only()])
        plan = CompiledPipeline(sources, operators, outputs, tuple(building.late), building.created)
        sinks.place(plan.sinks, output)
        _refuse_unsendable(plan)
    return plan


@contextmanager
def _placed(pipeline: Any) -> Iterator[None]:
    """Append the line of the pipeline's function to a refusal that names no line."""
    try:
        yield
    except SpecRefused as refused:
        if type(refused) is not SpecRefused or re.search(r"\.py:\d", str(refused)):
            raise
        raise SpecRefused(f"{refused} ({place_of(pipeline)})") from refused.__cause__ or refused


def _refuse_names(sources: Iterable[Any]) -> None:
    """Names of sources become parts of the names of columns and feeds."""
    for name in sources:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,62}", str(name)):
            raise SpecRefused(f"source {name!r}: use letters, digits, _ and - in its name, starting with a letter")


def _refuse_unheeded(sources: dict[str, Any], operators: list[Operator]) -> None:
    """Refuse a wrong `flow`: ingest tasks know the flows of their source, but behind Spark SQL only a column has them."""
    for source in (i for operator in operators for i in operator.inputs):
        origin = sources.get(source.origin) if isinstance(source.origin, str) else None
        if not has_flows(origin):
            continue
        transforms = [at(step.function) for step in source.steps if isinstance(step, Transform)]
        if source.flow is not None and not transforms:
            raise SpecRefused(
                f"event_time on source {source.origin!r}: flow={source.flow!r}, but the source names its flows already; "
                "remove one of both"
            )
        if source.flow is None and source.time is not None and transforms:
            raise SpecRefused(
                f"transform on source {source.origin!r}: the flow of a record would not be known behind it; name a column "
                'of flows, such as .event_time(..., flow="partition") of ferry.kafka(..., beside=["partition"]), '
                f"use .map_batches(...), or make the source one flow{transforms[0]}"
            )


def _refuse_types(outputs: Sequence[Output]) -> None:
    """Refuse columns without a Spark type before sinks that may get a DataFrame, at least in an epoch with many rows."""
    for output in outputs:
        from_source = isinstance(output.input.origin, str)
        if from_source or not is_parted(output):
            where = f"source {output.input.origin!r}" if from_source else "an operator"
            require_types(output.input.schema, f"sink {shown(output.sink)} on {where}")
        if getattr(output.sink, "needs_frame", False):
            require_names(output.input.schema, f"sink {shown(output.sink)}")


def _refuse_uncreated(created: Mapping[str, str], operators: list[Operator]) -> None:
    """Refuse to drop the creation time in Spark SQL: the ages of records are counted behind it."""
    for source in (i for operator in operators for i in operator.inputs):
        column = created.get(source.origin) if isinstance(source.origin, str) else None
        if column is None or not any(isinstance(step, Transform) for step in source.steps):
            continue
        if column not in source.schema.names:
            raise SpecRefused(
                f"transform on source {source.origin!r} drops {column!r}, the creation time of a record; "
                "keep it, or do not call .created_at(...)"
            )


def _refuse_unsendable(plan: CompiledPipeline) -> None:
    """Refuse sources and functions that cannot be pickled for tasks."""
    splits = {f"source {n!r}": s for n, s in plan.sources.items() if isinstance(s, Splits)}
    own: dict[str, Any] = {name: s.function if isinstance(s, PollSplits) else s for name, s in splits.items()}
    inputs = (*(i for operator in plan.operators for i in operator.inputs), *(output.input for output in plan.outputs))
    late = (i for output in plan.late for i in output.inputs)
    for function in (step.function for i in (*inputs, *late) for step in i.steps):
        if isinstance(function, UserBatches):
            own[f"{function_name(function.function)} in {function.where}"] = function.function
    own |= {f"expect({e.name!r})": e.condition for output in plan.outputs for e in output.input.expectations}
    for name, value in own.items():
        if is_ferrys(value):
            continue
        try:
            cloudpickle.loads(cloudpickle.dumps(value))
        except BaseException as error:
            raise SpecRefused(
                f"{name}{at(value)} cannot be sent to tasks: {reason(error)}; create an object that cannot be pickled, such "
                "as a connection, where it is used"
            ) from error


class _Streams(dict[str, Stream]):
    """Streams by name; the refusal of an unknown name lists the known names."""

    def __missing__(self, name: str) -> Stream:
        raise SpecRefused(f"pipeline: no source {name!r}; there are {', '.join(self)}")


def _call(module: ModuleType, name: str, *args: Any) -> Any:
    function, wanted = getattr(module, name, None), f"{name}({'spark' if name == 'sources' else 'streams'}, args)"
    if function is None:
        raise SpecRefused(f"{_named(module)} has no function {wanted}")
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise SpecRefused(f"{_named(module)}: write {wanted}: {error} ({place_of(function)})") from error
    try:
        return function(*args)
    except SpecRefused as refused:
        if not (at := where(refused)):
            raise
        kind = InputAway if isinstance(refused, InputAway) else SpecRefused
        raise kind(f"{refused} ({at})") from refused
    except BaseException as error:
        raise refusal_of(error, f"{_named(module)}.{name}", hint(error)) from error


def _named(module: ModuleType) -> str:
    """The name that the user knows: a file is loaded under a generated module name."""
    own = module.__name__.startswith(PREFIX) and module.__file__
    return Path(own).name if own else re.sub(rf"^{PACKAGE}\w+\.", "", module.__name__)


def source_schema(name: str, source: Any) -> pa.Schema:
    """The columns of a source. Raises SpecRefused for an object that is no source."""
    if isinstance(source, DataFrame):
        if not source.isStreaming:
            raise SpecRefused(f"source {name!r}: a batch DataFrame; use spark.readStream, or one of Ferry's splits")
        refuse_stateful(source, f"source {name!r}")
        return arrow_schema(source.schema)
    if isinstance(source, Splits):
        with nullcontext() if is_ferrys(source) else refused(f"source {name!r}: schema()"):
            schema = source.schema()
        if not isinstance(schema, pa.Schema):
            at = place_of(type(source))
            raise SpecRefused(
                f"source {name!r} ({at}): its schema is {type(schema).__name__}; it has to be a pyarrow.Schema, such as "
                'pyarrow.schema([("user", pyarrow.string())])'
            )
        return schema
    raise SpecRefused(
        f"source {name!r}: {type(source).__name__} is no source; use ferry.json_files(...), ferry.parquet_files(...), "
        "ferry.kafka(...), an object with the methods of ferry.Splits, or spark.readStream"
    )
