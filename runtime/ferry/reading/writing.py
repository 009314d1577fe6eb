"""New checkpoints from Arrow tables, for a job to begin with.

Must never change an existing checkpoint: a new checkpoint shares the files of its base, except for the replaced operators.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.manifest import Chain, Manifest, StoredFile
from ferry.durable.catalog import FILES, CheckpointCatalog
from ferry.durable.parts import PartWriter
from ferry.kernels import aggregates, columns, contributions, keys, schemas
from ferry.kernels.grouping import NO_INTS
from ferry.kernels.kinds import type_of
from ferry.process.tables import Entries, StateTable, TableChanges
from ferry.process.timers import NO_TIMERS, TimerChanges, Timers
from ferry.reading.state import MEMORY_BYTES, catalog_of, operator_of
from ferry.reading.tables import CLOCKS, StateRows, table_of
from ferry.store.entries import Due
from ferry.store.process_tables import TouchedKeys, changed
from ferry.store.state import open_state

ROWS_AT_ONCE = 65536
"""Rows in a batch of a process's table."""

Tables = Mapping[str, pa.Table]
"""The tables of a process by name."""


def write_state(
    location: str,
    job: str | None = None,
    *,
    operators: str = "latest",
    tables: Mapping[str, pa.Table | Tables],
    name: str | None = None,
) -> str:
    """Write a new checkpoint: the state of the named operators from tables, everything else from a base checkpoint.

    The base checkpoint defines the operators, the positions of sources, and the state of the operators that `tables` does
    not name. A job that was suspended before its first record has an empty base checkpoint. The table of an aggregate
    without a window has records, with the key columns and the aggregated columns; the new state is the aggregate of these
    records. The value for a process is a dict of its tables in the format of `read_state`, including `timers`; a missing
    table is empty.

    Parameters:
        location: value of `checkpoint.location` of the job.
        job: name of the job. None: the last part of the location is the job's folder.
        operators: the base checkpoint: `latest`, a number, a name, or the URL of a checkpoint of this job.
        tables: by operator: its table, or for a process a dict of its tables.
        name: name of the new checkpoint. A named checkpoint is kept until it is deleted.
    Returns:
        The URL of the new checkpoint, for `restoreFrom`.
    Raises:
        SpecRefused: an operator or column does not exist, or the operator is a join, has windows, or forgets keys.
        FerryError: the base checkpoint does not exist, or the store cannot be reached.
    Example:
        >>> import tempfile, pyarrow as pa
        >>> try:
        ...     ferry.write_state(tempfile.mkdtemp(), "auctions", tables={"counts": pa.table({"auction": [1, 1, 2]})})
        ... except ferry.FerryError as error:
        ...     print(error)
        there is no checkpoint 'latest' at .../auctions: there is none yet
    """
    catalog = catalog_of(location, job, operators)
    base = catalog.find(operators)
    with catalog.pin(base):
        catalog.check(base)
        files = [_written(catalog, base, operator_of(base, operator), content) for operator, content in tables.items()]
        replaced = {file.operator for file in files}
        manifest = replace(
            base,
            number=catalog.next_number(),
            lineage=secrets.token_hex(8),
            made_at=time.time(),
            name=name,
            restored_from=None,
            chains=tuple(
                Chain(chain.vnodes, (*(file for file in chain.files if file.operator not in replaced), *files))
                for chain in base.chains
            ),
        )
        catalog.publish(manifest)
    return catalog.url(manifest)


def _written(
    catalog: CheckpointCatalog, base: Manifest, descriptor: OperatorDescriptor, content: pa.Table | Tables
) -> StoredFile:
    """Write the state of an operator to a file of the checkpoint. Raises SpecRefused."""
    if descriptor.kind == "aggregate" and not descriptor.windowed and descriptor.ttl_ms is None:
        if not isinstance(content, pa.Table):
            raise SpecRefused(f"operator {descriptor.name!r} is an aggregate: give one table of records")
        batches = _aggregated(base, descriptor, content)
    elif descriptor.kind == "process":
        if isinstance(content, pa.Table):
            raise SpecRefused(f"operator {descriptor.name!r} is a process: give a dict of tables by name")
        batches = _entries(descriptor, content)
    else:
        raise SpecRefused(
            f"the state of operator {descriptor.name!r} cannot be written from a table: only processes, and aggregates "
            "without a window and without ttl="
        )
    writer = PartWriter(
        catalog.location,
        f"{FILES}/written-{secrets.token_hex(8)}",
        descriptor.index,
        "scan",
        base.epoch,
        base.virtual_nodes,
    )
    try:
        for batch in batches:
            writer.add(batch)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


def _aggregated(base: Manifest, descriptor: OperatorDescriptor, records: pa.Table) -> Iterator[pa.RecordBatch]:
    """The state of an aggregate of these records."""
    wanted = [*dict.fromkeys([*(name for name, _ in descriptor.key), *descriptor.columns(0)])]
    _require(descriptor, records, wanted, "the table")
    with TemporaryDirectory(prefix="ferry-state-") as directory:
        state = open_state(descriptor, base.virtual_nodes, Path(directory), MEMORY_BYTES)
        for batch in records.select(wanted).to_batches(contributions.records_at_once(descriptor)):
            delta, _ = state.delta(
                [_partials(descriptor, batch)], EpochTimes(WATERMARK_NONE, WATERMARK_NONE, base.epoch)
            )
            state.apply(delta, base.epoch, "")
        yield from state.snapshot(np.arange(base.virtual_nodes))


def _partials(descriptor: OperatorDescriptor, batch: pa.RecordBatch) -> pa.RecordBatch:
    cells = np.empty((batch.num_rows, aggregates.words_of(aggregates.state_columns(descriptor))), np.int64)
    contributions.contribute(descriptor, batch, None, cells)
    hashes, stored = _stored_keys(descriptor, batch)
    zeros, ones = np.zeros(batch.num_rows, np.int64), np.ones(batch.num_rows, np.int64)
    arrays = [pa.array(zeros), hashes, stored, pa.array(ones), *columns.cell_arrays(descriptor, cells)]
    return pa.RecordBatch.from_arrays(arrays, schema=schemas.partials_schema(descriptor))


def _stored_keys(descriptor: OperatorDescriptor, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """(hashes, stored keys) of the rows."""
    elements = [columns.cast(descriptor, batch.column(name), type_of(kind), name) for name, kind in descriptor.key]
    stored = keys.stored(descriptor, elements)
    if descriptor.int_key:
        return pa.array(stored.hashes), pa.array(stored.keys)
    return pa.array(stored.hashes), columns.binary_array(stored.offsets, stored.data, pa.binary())


def _entries(descriptor: OperatorDescriptor, tables: Tables) -> Iterator[pa.RecordBatch]:
    """The changes that put the rows of these tables into a process's state. Raises SpecRefused."""
    for name, table in tables.items():
        chosen = table_of(descriptor, name)
        _require(descriptor, table, chosen.schema.names, f"table {name!r}")
        key = [name for name, _ in descriptor.key]
        unique = chosen.schema.names if chosen.values is None else [*key, *(["entry"] if chosen.entry else [])]
        if table.group_by(unique).aggregate([]).num_rows < table.num_rows:
            raise SpecRefused(
                f"operator {descriptor.name!r}: table {name!r} has two rows of the same {', '.join(unique)}"
            )
        for batch in table.select(chosen.schema.names).to_batches(ROWS_AT_ONCE):
            yield from _changes(descriptor, chosen, name, batch)


def _changes(
    descriptor: OperatorDescriptor, chosen: StateRows, name: str, batch: pa.RecordBatch
) -> list[pa.RecordBatch]:
    rows = pa.RecordBatch.from_arrays([*_stored_keys(descriptor, batch)], ["hash", "key"])
    touched = TouchedKeys.of(descriptor, rows, [Due(NO_INTS, [], [])] * 2)
    fields = [*chosen.schema][len(descriptor.key) :]
    columns_of = [columns.cast(descriptor, batch.column(field.name), field.type, field.name) for field in fields]
    if chosen.values is None:
        clock, times = columns_of[0].to_numpy(zero_copy_only=False), columns.integers(columns_of[1])
        if not np.isin(clock, CLOCKS).all():
            raise SpecRefused(f"operator {descriptor.name!r}: the clock of a timer is one of {', '.join(CLOCKS)}")
        return [
            batch_of_changes
            for number, of in zip(chosen.numbers, CLOCKS, strict=True)
            for batch_of_changes in touched.timers_changed(
                number, TimerChanges(Timers(touched.of_rows[clock == of], times[clock == of]), NO_TIMERS)
            )
        ]
    entry = None if chosen.entry is None else columns_of.pop(0)
    values = pa.RecordBatch.from_arrays(columns_of, schema=chosen.values)
    gone = None if entry is None else entry.slice(0, 0)
    put = TableChanges(Entries(touched.of_rows, entry, values), NO_INTS, gone)
    return [changed(touched, chosen.numbers[0], StateTable(chosen.values, chosen.entry), put)]


def _require(descriptor: OperatorDescriptor, table: pa.Table, names: list[str], label: str) -> None:
    if lacking := [name for name in names if name not in table.column_names]:
        raise SpecRefused(f"operator {descriptor.name!r}: {label} lacks columns: {', '.join(lacking)}")
