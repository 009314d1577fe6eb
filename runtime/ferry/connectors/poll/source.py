"""A function of the user's that is asked again and again for new rows. Its answers are kept in a folder, one file each.

    function(state) -> rows, next state -> a file of both -> position: the number of the file -> read by tasks

An answer that has a file is never asked for again: whoever plans from the position before it takes the file. So an epoch has
the same rows whenever it is read, and the function may be called again for a state only where its answer was not kept. Must
never change a file that has its name.
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
from ferry.connectors.users import asked_code, require_arguments
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable
from ferry.contract.user_code import function_name
from ferry.system import files

STATE = b"ferry.state"
"""Key of a file's metadata: the next state, as JSON."""


class PollSplits:
    """See `poll`. A position: {"life": of the job, "number": of the answer that was read last, "state": the next one}."""

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
        self._asked = -float("inf")
        """when, by the clock that never goes back"""
        self._state: tuple[str, int, Any] | None = None
        """(life, number, state) that answers without rows have led to since that answer"""

    def __repr__(self) -> str:
        return f"poll({function_name(self.function)})"

    def schema(self) -> pa.Schema:
        """The declared schema."""
        return self._schema

    def start(self) -> Position:
        """Before the first answer."""
        with _reached(self._journal):
            os.makedirs(self._journal, exist_ok=True)
        return {"life": uuid.uuid4().hex[:12], "number": 0, "state": self._first, "over": False}

    def latest(self, start: Position, max_rows: int) -> Position:
        """Behind the next answer that has rows; it is read whole, in one epoch, however many rows it has."""
        if self.ended(start):
            return start
        life, number = start["life"], start["number"] + 1
        file = self._file(life, number)
        with _reached(self._journal):
            if not file.exists() and not self._ask(start, file):
                return start
            with pa.OSFile(str(file)) as source:
                metadata = pa.ipc.open_file(source).schema.metadata
        return {"life": life, "number": number, **json.loads(metadata[STATE])}

    def _ask(self, start: Position, file: Path) -> bool:
        """Call the function, if it is time; whether its answer was kept in the file."""
        now = time.monotonic()
        if now - self._asked < self._every:
            return False
        life, number, state = start["life"], start["number"], start["state"]
        if self._state is not None and self._state[:2] == (life, number):
            state = self._state[2]
        what = f"{function_name(self.function)} of ferry.poll"
        with asked_code(what, self.function):
            rows, state = self._answer(self.function(_copied(state)))
        self._asked = now
        if not rows.num_rows and not self.finite:
            self._state = life, number, state
            return False
        kept = json.dumps({"state": state, "over": self.finite and not rows.num_rows})
        schema = self._schema.with_metadata({STATE: kept})
        with files.making(file) as new, pa.OSFile(str(new), "wb") as sink:
            with pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(rows.replace_schema_metadata(schema.metadata), BATCH_ROWS)
        files.sync(file.parent)
        self._clean(life, number)
        return True

    def _answer(self, answer: Any) -> tuple[pa.Table, Any]:
        """Rows of the schema, and the next state as it is kept. Raises TypeError or ValueError for what is none."""
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
            raise ValueError(f"it returned a null in column {lacking[0]!r}, which has none by its schema")
        rows = rows.cast(self._schema)
        try:
            return rows, _copied(state)
        except (TypeError, ValueError) as error:
            raise TypeError(f"it returned a state that is no JSON value: {error}") from error

    def _table(self, rows: list[Any]) -> pa.Table:
        """Of dictionaries. Raises TypeError or ValueError for what Arrow would take for a null, or would cut."""
        if other := [one for one in rows if not isinstance(one, dict)]:
            raise TypeError(f"it returned {type(other[0]).__name__} for a row; give dicts of column and value")
        for field in self._schema:
            if cut := [one[field.name] for one in rows if is_cut(one.get(field.name), field.type)]:
                raise ValueError(f"it returned {cut[0]} in column {field.name!r}, which is {field.type}")
        return pa.Table.from_pylist(rows, schema=self._schema)

    def _clean(self, life: str, number: int) -> None:
        """Remove answers that are so old that no checkpoint of this job is expected to need them."""
        with suppress(OSError):
            for old in Path(self._journal).glob(f"{life}-*.arrow"):
                if int(old.stem.split("-")[1]) < number and time.time() - old.stat().st_mtime > self._keep:
                    old.unlink()
            for left in Path(self._journal).glob(f".{life}-*.tmp"):  # by a driver that was killed
                if time.time() - left.stat().st_mtime > self._keep:
                    left.unlink()

    def _file(self, life: str, number: int) -> Path:
        return Path(self._journal, f"{life}-{number:012}.arrow")

    def ended(self, position: Position) -> bool:
        """True when a finite input has given an answer without rows."""
        return bool(position["over"])

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Batches of the answer's file, which holds all that is new at `stop`."""
        if stop["number"] != start["number"] + 1 or stop["life"] != start["life"]:
            raise RowsGone(f"{self!r}: answer {stop['number']} does not follow {start['number']}: epochs were lost")
        batches = self._opened(stop["life"], stop["number"]).num_record_batches
        shares = [[*range(i, batches, tasks)] for i in range(tasks)]
        return [{"life": stop["life"], "number": stop["number"], "batches": share} for share in shares if share]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """These batches. Raises RowsGone when the file is not there."""
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
                f"{self!r}: {file} is not there: journal= is a folder that driver and workers see under the same path, and "
                f"keeps answers for {self._keep:g} s. Put the file back"
            ) from gone


def _copied(state: Any) -> Any:
    """As a position has it, and not the same object: who changes it changes no position. Raises TypeError, ValueError."""
    return json.loads(json.dumps(state, allow_nan=False))


class _reached:
    """Around the journal: a folder that cannot be used is waited for."""

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
    """A function of yours as a source: it is asked for new rows again and again, with what it has returned as its state.

    The driver calls it between epochs, which wait for it: let it return soon. Its rows and the next state are written into
    the journal before an epoch has them, so an epoch that is run again has the same rows, each once. The function itself may
    be called again with the same state, if the driver dies before its answer was written: what it takes away elsewhere, as
    messages from a queue, may be lost then. Let it read what can be read again.

    Parameters:
        function: gets the state, and returns (rows, next state): rows as a list of dicts, a RecordBatch or a Table, with
            the columns of the schema; the state is any JSON value. One that raises an error of a network or a database, as
            ConnectionError, is called again until it answers.
        schema: the columns.
        journal: a folder that driver and workers see under the same path.
        every: between two calls.
        first: the state of the first call.
        finite: the input ends with the first answer that has no rows.
        keep: how long an answer stays in the journal, for checkpoints that a job may be restored from.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if an argument is none of these.
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
        raise SpecRefused(f"poll: first={first!r} is no JSON value: {error}") from error
    return PollSplits(function, schema, journal, every, first, finite, keep)
