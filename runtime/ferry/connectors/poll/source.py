"""A user's function as a source: it is called periodically for new rows. A journal folder holds a file for each answer.

    function(state) -> rows, next state -> a file with both -> position: the file's number -> read by tasks

An answer with a file is never requested again: every plan from the position before it reads the file. So an epoch has the
same rows in every read. The function is called again for a state only if its answer was not written. Must never change a
finished file.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from ferry.connectors.formats.python_values import is_cut
from ferry.connectors.splits import BATCH_ROWS, Position, Split
from ferry.connectors.users import reading_code, require_arguments
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable
from ferry.contract.user_code import function_name
from ferry.system import files

STATE = b"ferry.state"
"""Key of a file's metadata with the next state, as JSON."""


class PollSplits:
    """The source of `poll`.

    A position: {"life": random name of the job's journal, "number": number of the last read answer, "state": the next state,
    "over": whether the input has ended}.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        schema: pa.Schema,
        journal: str | os.PathLike[str],
        every: Duration,
        first: Any,
        finite: bool,
        keep: Duration,
    ) -> None:
        self.function = function
        self._schema = schema
        self._journal = files.path_of(journal, "poll: journal")
        self._every = milliseconds(every, "poll: every") / 1000
        self._keep = milliseconds(keep, "poll: keep") / 1000
        self._first = first
        self.finite = finite
        self._called = -float("inf")
        """Monotonic time of the last call, in seconds."""
        self._state: tuple[str, int, Any] | None = None
        """(life, number, state): the state after the answers without rows that follow answer `number`."""

    def __repr__(self) -> str:
        return f"poll({function_name(self.function)})"

    def schema(self) -> pa.Schema:
        """The declared schema."""
        return self._schema

    def start(self) -> Position:
        """The position before the first answer."""
        with _reached(self._journal):
            os.makedirs(self._journal, exist_ok=True)
        return {"life": uuid.uuid4().hex[:12], "number": 0, "state": self._first, "over": False}

    def latest(self, start: Position, max_rows: int) -> Position:
        """The position after the next answer with rows. One epoch reads the whole answer, whatever its size."""
        if self.ended(start):
            return start
        life, number = start["life"], start["number"] + 1
        file = self._file(life, number)
        with _reached(self._journal):
            if not file.exists() and not self._call(start, file):
                return start
            with pa.OSFile(str(file)) as source:
                metadata = pa.ipc.open_file(source).schema.metadata
        return {"life": life, "number": number, **json.loads(metadata[STATE])}

    def _call(self, start: Position, file: Path) -> bool:
        """Call the function if `every` has passed. Returns whether the file now holds its answer."""
        now = time.monotonic()
        if now - self._called < self._every:
            return False
        life, number, state = start["life"], start["number"], start["state"]
        if self._state is not None and self._state[:2] == (life, number):
            state = self._state[2]
        with reading_code(f"{function_name(self.function)} of ferry.poll", self.function):
            rows, state = self._answer(self.function(_copied(state)))
        self._called = now
        if not rows.num_rows and not self.finite:
            self._state = life, number, state
            return False
        position = json.dumps({"state": state, "over": self.finite and not rows.num_rows})
        schema = self._schema.with_metadata({STATE: position})
        with files.making(file) as new, pa.OSFile(str(new), "wb") as sink:
            with pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(rows.replace_schema_metadata(schema.metadata), BATCH_ROWS)
        files.sync(file.parent)
        self._clean(life, number)
        return True

    def _answer(self, answer: Any) -> tuple[pa.Table, Any]:
        """(Rows of the schema, the next state as JSON). Raises TypeError or ValueError for an invalid answer."""
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"it returned {type(answer).__name__}; return (rows, next state)")
        rows, state = answer
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, list):
            rows = self._table(rows)
        if not isinstance(rows, pa.Table):
            raise TypeError(
                f"it returned {type(rows).__name__} for rows; give a list of dicts, a RecordBatch or a Table"
            )
        if rows.schema.names != self._schema.names:
            raise TypeError(f"it returned columns {rows.schema.names}; its schema has {self._schema.names}")
        if lacking := [f.name for f in self._schema if not f.nullable and rows.column(f.name).null_count]:
            raise ValueError(f"it returned a null in column {lacking[0]!r}, which is not nullable in its schema")
        rows = rows.cast(self._schema)
        try:
            return rows, _copied(state)
        except (TypeError, ValueError) as error:
            raise TypeError(f"it returned a state that is not a JSON value: {error}") from error

    def _table(self, rows: list[Any]) -> pa.Table:
        """A table of dictionaries. Raises TypeError or ValueError for a row or value that Arrow would drop or truncate."""
        if other := [row for row in rows if not isinstance(row, dict)]:
            raise TypeError(f"it returned {type(other[0]).__name__} for a row; give dicts of column and value")
        for field in self._schema:
            if cut := [row[field.name] for row in rows if is_cut(row.get(field.name), field.type)]:
                raise ValueError(f"it returned {cut[0]} in column {field.name!r}, which is {field.type}")
        return pa.Table.from_pylist(rows, schema=self._schema)

    def _clean(self, life: str, number: int) -> None:
        """Remove answers older than `keep`, which no checkpoint of this job should need."""
        with suppress(OSError):
            for old in Path(self._journal).glob(f"{life}-*.arrow"):
                if int(old.stem.split("-")[1]) < number and time.time() - old.stat().st_mtime > self._keep:
                    old.unlink()
            for left in Path(self._journal).glob(f".{life}-*.tmp"):  # of a killed driver
                if time.time() - left.stat().st_mtime > self._keep:
                    left.unlink()

    def _file(self, life: str, number: int) -> Path:
        return Path(self._journal, f"{life}-{number:012}.arrow")

    def ended(self, position: Position) -> bool:
        """Whether a finite input has returned an answer without rows."""
        return bool(position["over"])

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Batches of the answer's file, which holds all records between the positions. Raises RowsGone."""
        if stop["number"] != start["number"] + 1 or stop["life"] != start["life"]:
            raise RowsGone(f"{self!r}: answer {stop['number']} does not follow {start['number']}: epochs were lost")
        batches = self._opened(stop["life"], stop["number"]).num_record_batches
        shares = [[*range(i, batches, tasks)] for i in range(tasks)]
        return [{"life": stop["life"], "number": stop["number"], "batches": share} for share in shares if share]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The records of the split's batches. Raises RowsGone if the file is missing."""
        answer = self._opened(split["life"], split["number"])
        for i in split["batches"]:
            batch = answer.get_batch(i).cast(self._schema)
            yield batch if columns is None else batch.select(list(columns))

    def _opened(self, life: str, number: int) -> pa.ipc.RecordBatchFileReader:
        file = self._file(life, number)
        try:
            with _reached(self._journal):
                return pa.ipc.open_file(pa.BufferReader(file.read_bytes()))
        except Unreachable as gone:
            if not isinstance(gone.__cause__, FileNotFoundError):
                raise
            raise RowsGone(
                f"{self!r}: {file} is missing: journal= is a folder with the same path for driver and workers, and keeps "
                f"answers for {self._keep:g} s. Put the file back"
            ) from gone


def _copied(state: Any) -> Any:
    """A copy of a state as JSON, so users' changes do not change a position. Raises TypeError or ValueError."""
    return json.loads(json.dumps(state, allow_nan=False))


class _reached:
    """Around uses of the journal: raises Unreachable for a folder that cannot be used."""

    def __init__(self, journal: str) -> None:
        self._journal = journal

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            raise Unreachable(f"the journal {self._journal}: {type(error).__name__}: {error}") from error


def poll(
    function: Callable[[Any], Any],
    schema: pa.Schema,
    journal: str | os.PathLike[str],
    every: Duration = "10s",
    first: Any = None,
    finite: bool = False,
    keep: Duration = "7d",
) -> PollSplits:
    """Your own function as a source: it is called periodically, and gets the state that its last call returned.

    The driver calls the function between epochs, and the next epoch waits for it, so it should return quickly. The driver
    writes rows and next state into the journal before an epoch reads them. So a repeated epoch has the same rows, exactly
    once. If the driver dies before it has written an answer, it calls the function again with the same state. Therefore the
    function must read repeatably: messages that it removes from a queue may be lost.

    Parameters:
        function: gets the state and returns (rows, next state). Rows are a list of dicts, a RecordBatch or a Table with the
            columns of the schema; the state is any JSON value. After an error of a network or a database, such as
            ConnectionError, the function is called again.
        schema: the columns.
        journal: a folder with the same path for the driver and all workers.
        every: time between two calls: text such as "10s", or a timedelta.
        first: the state of the first call.
        finite: whether the input ends with the first answer without rows.
        keep: how long an answer stays in the journal, for restores from older checkpoints: text or a timedelta.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if an argument is invalid.
    Example:
        >>> import pyarrow as pa
        >>> def orders(page):
        ...     rows = requests.get("https://shop/orders", params={"page": page}).json()
        ...     return rows, page + 1 if rows else page
        >>> ferry.poll(orders, pa.schema([("id", pa.int64())]), "/data/journal", every="10 seconds", first=1)
        poll(orders)
    """
    require_arguments("poll: ", function, "state")
    if not isinstance(schema, pa.Schema):
        raise SpecRefused(f"poll: schema {schema!r}; give a pyarrow.schema")
    try:
        json.dumps(first, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SpecRefused(f"poll: first={first!r} is not a JSON value: {error}") from error
    return PollSplits(function, schema, journal, every, first, finite, keep)
