"""From the user's module to a plan: sources, operators, outputs; everything wrong is refused here, before any epoch runs.

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
from ferry.contract.program_text import PREFIX
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
    """By source: the column that says when a record was created, where there is one."""

    @property
    def first(self) -> list[str]:
        """Sources from which the states of operators begin: all others wait for their ends."""
        inputs = (one for operator in self.operators for one in operator.inputs)
        return sorted({one.origin for one in inputs if one.initial and isinstance(one.origin, str)})

    @property
    def sinks(self) -> list[sinks.Sink]:
        """All that rows or records go to."""
        return [*(one.sink for one in self.outputs), *(one.sink for one in self.late)]


def load(module: str | None, file: str | None, program: str | None = None) -> ModuleType:
    """The user's module; functions of a file go to tasks by their value. `program`: folder of the copy to be read."""
    made = user_module.load(module, file, program)
    if module is None:
        cloudpickle.register_pickle_by_value(made)
    return made


def build(
    spark: SparkSession, module: ModuleType, given: dict[str, Any], output: str | None = None, events: int | None = None
) -> CompiledPipeline:
    """Call the module's functions and check what they declare; `output` replaces the directory of file sinks.

    `events` is one more argument, which `sources` has to heed. Raises SpecRefused for whatever goes wrong in it.
    """
    try:
        return _built(spark, module, given, output, events)
    except (FerryError, Py4JError, OSError):
        raise
    except BaseException as error:
        raise SpecRefused(f"the pipeline cannot be built: {reason(error)}") from error


def _built(
    spark: SparkSession, module: ModuleType, given: dict[str, Any], output: str | None, events: int | None
) -> CompiledPipeline:
    args = Arguments(given, events)
    sources = _call(module, "sources", spark, args)
    if not isinstance(sources, dict) or not sources:
        raise SpecRefused(f"{_named(module)}.sources must return a dict of named sources, it returned {shown(sources)}")
    _refuse_names(sources)
    refuse_unbounded(args, sources)
    schemas = {name: source_schema(name, source) for name, source in sources.items()}
    for name, schema in schemas.items():
        refuse_same(schema, f"source {name!r} has")
    created = {n: column for n, source in sources.items() if (column := getattr(source, "creation_time", None))}
    building = Build(lambda function, schema, where: schema_after(spark, function, schema, where), created=created)
    streams = {n: Stream(building, Input(n, (), schema, None, 0)) for n, schema in schemas.items()}
    made = _call(module, "pipeline", _Streams(streams), args)
    outputs = tuple(made) if isinstance(made, list | tuple) else (made,)
    for one in outputs:
        if not isinstance(one, Output):
            raise SpecRefused(
                f"{_named(module)}.pipeline must return what .sink(...) returns (or a list of them), not {shown(one)} "
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
    """A refusal of a whole pipeline that names no line gets the line of its function."""
    try:
        yield
    except SpecRefused as refused:
        if type(refused) is not SpecRefused or re.search(r"\.py:\d", str(refused)):
            raise
        raise SpecRefused(f"{refused} ({place_of(pipeline)})") from refused.__cause__ or refused


def _refuse_names(sources: Iterable[Any]) -> None:
    """A source's name stands in names of columns and feeds."""
    for name in sources:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,62}", str(name)):
            raise SpecRefused(f"source {name!r}: use letters, digits, _ and - in its name, starting with a letter")


def _refuse_unheeded(sources: dict[str, Any], operators: list[Operator]) -> None:
    """Ingest tasks know the flows of their source; behind Spark's SQL a column alone can say them."""
    for source in (i for operator in operators for i in operator.inputs):
        made = sources.get(source.origin) if isinstance(source.origin, str) else None
        if not has_flows(made):
            continue
        transforms = [at(step.function) for step in source.steps if isinstance(step, Transform)]
        if source.flow is not None and not transforms:
            raise SpecRefused(
                f"event_time on source {source.origin!r}: flow={source.flow!r}, but the source names its flows by itself; "
                "leave one of both out"
            )
        if source.flow is None and source.time is not None and transforms:
            raise SpecRefused(
                f"transform on source {source.origin!r}: of which flow a record is would not be known behind it; name a "
                'column that says it, such as .event_time(..., flow="partition") of ferry.kafka(..., beside=["partition"]), '
                f"use .map_batches(...), or make the source one flow{transforms[0]}"
            )


def _refuse_types(outputs: Sequence[Output]) -> None:
    """What a sink gets as a DataFrame, at least of an epoch with many rows, has to have types of Spark."""
    for one in outputs:
        from_source = isinstance(one.input.origin, str)
        if from_source or not is_parted(one):
            where = f"source {one.input.origin!r}" if from_source else "an operator"
            require_types(one.input.schema, f"sink {shown(one.sink)} on {where}")
        if getattr(one.sink, "needs_frame", False):
            require_names(one.input.schema, f"sink {shown(one.sink)}")


def _refuse_uncreated(created: Mapping[str, str], operators: list[Operator]) -> None:
    """Ages are counted where records leave Spark's SQL: when they were created has to be known there."""
    for source in (i for operator in operators for i in operator.inputs):
        column = created.get(source.origin) if isinstance(source.origin, str) else None
        if column is None or not any(isinstance(step, Transform) for step in source.steps):
            continue
        if column not in source.schema.names:
            raise SpecRefused(
                f"transform on source {source.origin!r} leaves out {column!r}, which says when a record was created; "
                "keep it, or do not call .created_at(...)"
            )


def _refuse_unsendable(plan: CompiledPipeline) -> None:
    """Sources and functions go to tasks as pickles."""
    splits = {f"source {n!r}": s for n, s in plan.sources.items() if isinstance(s, Splits)}
    own: dict[str, Any] = {what: s.function if isinstance(s, PollSplits) else s for what, s in splits.items()}
    inputs = (*(one for o in plan.operators for one in o.inputs), *(one.input for one in plan.outputs))
    late = (one for output in plan.late for one in output.inputs)
    for function in (step.function for one in (*inputs, *late) for step in one.steps):
        if isinstance(function, UserBatches):
            own[f"{function_name(function.function)} in {function.where}"] = function.function
    for what, value in own.items():
        if is_ferrys(value):
            continue
        try:
            cloudpickle.loads(cloudpickle.dumps(value))
        except BaseException as error:
            raise SpecRefused(
                f"{what}{at(value)} cannot be sent to tasks: {reason(error)}; what cannot be pickled has to be made where "
                "it is used, such as a connection"
            ) from error


class _Streams(dict[str, Stream]):
    """Streams by name; an unknown name is refused with the ones there are."""

    def __missing__(self, name: str) -> Stream:
        raise SpecRefused(f"pipeline: no source {name!r}; there are {', '.join(self)}")


def _call(module: ModuleType, name: str, *args: Any) -> Any:
    function, wanted = getattr(module, name, None), f"{name}({'spark' if name == 'sources' else 'streams'}, args)"
    if function is None:
        raise SpecRefused(f"{_named(module)} has no function {wanted}")
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise SpecRefused(f"{_named(module)}: write {wanted}; as it is ({place_of(function)}), {error}") from error
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
    """How the user knows it: a file is loaded under a name that nobody has seen."""
    own = module.__name__.startswith(PREFIX) and module.__file__
    return Path(own).name if own else module.__name__


def source_schema(name: str, source: Any) -> pa.Schema:
    """The columns of a source. Raises SpecRefused for what is none."""
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
