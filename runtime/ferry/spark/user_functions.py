"""The user's functions and sources as Ferry calls them: in tasks, in the driver, behind an operator.

a function raises, exits, or returns other columns -> UserCodeFailed, one line that says which one and where
a source or a sink cannot reach something          -> Unreachable or the error itself: it is waited for, not blamed
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl
from pyspark.sql import DataFrame

from ferry.contract.errors import Fault, FerryError, InputAway, SpecRefused, Unreachable, UserCodeFailed
from ferry.contract.user_code import calling, place_of, reason, shown, words_of
from ferry.spark.frames import arrow_schema, spark_schema
from ferry.spark.pipeline import Batches, Frames, Input, name_of
from ferry.spark.splits import Splits

if TYPE_CHECKING:
    from ferry.spark.sinks import Sink

AWAY = re.compile(
    r"operational|interfaceerror|connect|timeout|timed_?out|unavailable|network|socket|transport|broker|throttl|retri|"
    r"toomanyrequests|http|unreachable|dns|ssl",
    re.IGNORECASE,
)
"""Names of errors by which clients of databases and services say that the other end is away or busy."""


ANSWERS: dict[str, Callable[[Any], Any]] = {"plan": list, "flows": dict, "lag": int, "ended": bool}
"""What methods of sources give; a position may be any JSON value."""


def require_arguments(what: str, function: object, *names: str) -> None:
    """Refuse what cannot be called with so many arguments. Raises SpecRefused."""
    wanted = f"is no function of ({', '.join(names)})"
    if not callable(function):
        raise SpecRefused(f"{what}{function!r} {wanted}")
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise SpecRefused(f"{what}{name_of(function)} ({place_of(function)}) {wanted}: {error}") from error
    except ValueError:  # A function of C need not have a signature.
        return


def not_arrow(made: object) -> str:
    """What a function has returned that is neither a RecordBatch nor a Table, and what to do about it."""
    kind = type(made).__name__
    if inspect.iscoroutine(made):
        made.close()
    remedies = {
        "NoneType": "is a `return` missing?",
        "coroutine": "leave out `async`",
        "generator": "collect the records, and `return` them instead of `yield`",
        "DataFrame": "pyarrow.Table.from_pandas(frame, preserve_index=False) makes a table of one of pandas",
        "dict": "pyarrow.table(columns) makes a table of columns by name",
        "list": "pyarrow.Table.from_pylist(rows, schema=...) makes a table of rows",
    }
    return f"{kind}; {remedies[kind]}" if kind in remedies else kind


@dataclass(frozen=True, slots=True)
class UserBatches:
    """A function of the user's for `map_batches`."""

    function: Batches
    where: str
    """Which one it is, as in "map_batches on source 'orders'"."""
    given: pa.Schema
    """Of an empty batch, and `schema` of what it returned for that."""
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """What it returns. Raises UserCodeFailed, also for other columns or types than those of an empty batch."""
        with calling(f"{name_of(self.function)} in {self.where}", self.function):
            made = self.function(batch)
            if not isinstance(made, pa.RecordBatch | pa.Table):
                raise TypeError(f"it returned {type(made).__name__}; a RecordBatch or a Table is needed")
            if _columns(batch.schema) != _columns(self.given):
                return made  # Records that pass through Spark's SQL have its types, and so has what is made of them.
            return made if _columns(made.schema) == _columns(self.schema) else self._fitted(made)

    def _fitted(self, made: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
        """With the declared types where a batch has nothing but nulls: builders of Arrow know no type for these."""
        if made.schema.names == self.schema.names:
            columns = [
                column.cast(field.type) if pa.types.is_null(column.type) else column
                for column, field in zip(made.columns, self.schema, strict=True)
            ]
            made = type(made).from_arrays(columns, names=made.schema.names)
        if (now := _columns(made.schema)) != (declared := _columns(self.schema)):
            raise TypeError(f"it returned columns ({_listed(now)}), and ({_listed(declared)}) for an empty batch")
        return made


@dataclass(frozen=True, slots=True)
class UserFrames:
    """A function of the user's for `transform`."""

    function: Frames
    where: str
    schema: pa.Schema
    """Of what it returned where the pipeline was built."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        """What it returns. Raises UserCodeFailed, also for other columns or types than where the pipeline was built."""
        with calling(f"{name_of(self.function)} in {self.where}", self.function):
            made = self.function(frame)
            if not isinstance(made, DataFrame):
                raise TypeError(f"it returned {type(made).__name__}; a DataFrame is needed")
            if (now := _in_spark(arrow_schema(made.schema))) != (declared := _in_spark(self.schema)):
                raise TypeError(f"it returned columns ({now}), and ({declared}) where the pipeline was built")
            return made


@contextmanager
def source_code(what: str, source: Any) -> Iterator[None]:
    """Around a call of a source. Raises UserCodeFailed for what a user's own raises, Unreachable if something is away."""
    with nullcontext() if is_ferrys(source) else asked_code(what, type(source)):
        yield


@contextmanager
def asked_code(what: str, code: object) -> Iterator[None]:
    """The same around a call of the user's code that answers what there is to read."""
    try:
        with calling(what, code):
            yield
    except UserCodeFailed as failed:
        cause = failed.__cause__
        if isinstance(cause, Fault):
            raise cause from None
        if cause is not None and is_away(cause):
            raise Unreachable(f"{what}: {type(cause).__name__}: {words_of(cause)}") from cause
        raise


def as_kept(answer: Any, method: str) -> Any:
    """What a source of the user's answers, as it is kept and compared. Raises TypeError or ValueError for what is not."""
    try:
        plain = json.loads(json.dumps(ANSWERS.get(method, lambda position: position)(answer)))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{method}() gave {type(answer).__name__}, which is no such JSON value: {error}") from error
    if method == "plan" and not all(isinstance(split, dict) for split in plain):
        raise TypeError("plan() gave a split that is no JSON object; give dicts")
    return plain


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Around a call while the program is built: whatever is raised there is about the program. Raises SpecRefused."""
    try:
        yield
    except FerryError:
        raise
    except BaseException as error:
        raise refusal_of(error, what) from error


def refusal_of(error: BaseException, what: str, hint: str = "") -> SpecRefused:
    """The refusal of a program that fails; where a system is away, a job that has begun waits for it."""
    kind = InputAway if is_away(error) else SpecRefused
    return kind(f"{what} failed: {reason(error)}{hint}")


def name_of_sink(sink: Sink, job: str, run: str, before: str | None) -> str | None:
    """By which elsewhere knows what a sink writes. Raises SpecRefused when a user's own fails."""
    if is_ferrys(sink):
        return sink.identify(job, run, before)
    with refused(f"identify() of sink {shown(sink)}{at(type(sink))}"):
        name = sink.identify(job, run, before)
        if not isinstance(name, str | None):
            raise TypeError(f"it returned {type(name).__name__}; a text or None is needed")
        return name


def expecting(sink: Sink, schema: pa.Schema, where: str) -> None:
    """Tell a sink the columns of its rows. Raises SpecRefused, saying where, for what it cannot take."""
    try:
        with nullcontext() if is_ferrys(sink) else refused(f"expect() of sink {shown(sink)}{at(type(sink))}"):
            sink.expect(schema)
    except SpecRefused as error:
        raise SpecRefused(f"{where}: {error}") from error


def is_ferrys(value: object) -> bool:
    """Whether a source or a sink is one that comes with Ferry."""
    return type(value).__module__.split(".")[0] == "ferry"


def is_away(error: BaseException) -> bool:
    """Whether an error says that a system cannot be reached, as a network, a disk or a database that is down does.

    These are OSError with its kinds, Ferry's faults, and errors that a client names so, as psycopg's OperationalError.
    """
    if isinstance(error, OSError | Fault | fl.FlightError):
        return True
    return any(AWAY.search(kind.__name__) for kind in type(error).__mro__[:-2])


def code_of(inputs: Iterable[Input], sources: Mapping[str, Any]) -> str:
    """The user's functions and sources of inputs, each with its place; empty: none is the user's own."""
    found: dict[str, None] = {}
    for one in inputs:
        origin = sources.get(one.origin) if isinstance(one.origin, str) else None
        if isinstance(origin, Splits) and not is_ferrys(origin):
            found[f"source {one.origin!r}{at(type(origin))}"] = None
        for function in (step.function for step in one.steps):
            if isinstance(function, UserBatches | UserFrames):
                found[f"{name_of(function.function)}{at(function.function)}"] = None
    return ", ".join(found)


def at(function: object) -> str:
    """Where it is defined, in brackets, behind its name; empty: nobody knows."""
    place = place_of(function)
    return f" ({place})" if place else ""


def _in_spark(schema: pa.Schema) -> str:
    """Columns and types; whether there are nulls does not count."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in spark_schema(schema))


def _columns(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in schema]


def _listed(columns: list[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
