"""The state of an operator at a checkpoint, loaded from the checkpoint's files in the same way as by an instance."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import SpecRefused
from ferry.contract.manifest import Chain, Manifest
from ferry.contract.results import result_of
from ferry.durable.catalog import PIN_SECONDS, CheckpointCatalog, Pin
from ferry.durable.location import Location
from ferry.durable.parts import read_parts
from ferry.reading.tables import rows_of, table_of
from ferry.store.state import open_state

MEMORY_BYTES = 1 << 30
"""Memory of a loaded state. Further pages of its files are paged out."""


def read_state(
    location: str, operator: str, checkpoint: str = "latest", job: str | None = None, table: str | None = None
) -> pa.Table:
    """Read the state of an operator at a checkpoint: aggregates, the rows of a join, or the tables of a process.

    Each row has the columns of its key. An aggregate has a row for each key, with a column for each aggregate; with windows
    it has a row for each key and open slice of time (`slice`: its begin, in milliseconds since 1970). A join has the rows of
    both sides (`side`: left or right), with columns `left_...` and `right_...`. A process, such as a session window, has a
    table for each name in its `tables`; the table `timers` has its timers (`clock`: event or processing; `time`:
    milliseconds since 1970). The job may run during the read. The checkpoint is pinned until the read has ended.

    Parameters:
        location: value of `checkpoint.location` of the job: a path, or a URL such as s3://bucket/folder.
        operator: name of the operator.
        checkpoint: `latest`, a number, a name, or the URL of a checkpoint.
        job: name of the job. None: the last part of the location is the job's folder.
        table: name of the table of a process. None: the only table of the process.
    Returns:
        An Arrow table without a defined order of rows.
    Raises:
        Refusal: the checkpoint does not exist; the message lists the existing checkpoints.
        SpecRefused: the operator or table does not exist, or the location is invalid.
        FerryError: the store cannot be reached, or a file of the checkpoint is damaged.
    Example:
        >>> import tempfile
        >>> try:
        ...     counts = ferry.read_state(tempfile.mkdtemp(), "counts", job="auctions")
        ... except ferry.FerryError as error:
        ...     print(error)
        there is no checkpoint 'latest' at .../auctions: there is none yet
    """
    catalog = catalog_of(location, job, checkpoint)
    manifest = catalog.find(checkpoint)
    descriptor = operator_of(manifest, operator)
    chosen = table_of(descriptor, table)
    with catalog.pin(manifest) as pin:
        catalog.check(manifest)
        renew = _renewing(pin)
        batches = [
            rows
            for chain in manifest.chains
            for chunk in _chunks(catalog.location, manifest, descriptor, chain, renew)
            if (rows := rows_of(descriptor, chunk, chosen, result_of(manifest.results, descriptor.index).high)).num_rows
        ]
    return pa.Table.from_batches(batches, schema=chosen.schema)


def catalog_of(location: str, job: str | None, checkpoint: str) -> CheckpointCatalog:
    """The catalog of the job, which holds this checkpoint."""
    if "/" in checkpoint:
        return CheckpointCatalog.at(checkpoint)
    if job is None:
        parts = urlsplit(location)
        path, _, job = parts.path.rstrip("/").rpartition("/")
        location = urlunsplit(parts._replace(path=path or "/"))
    return CheckpointCatalog(Location(location, job))


def operator_of(manifest: Manifest, name: str) -> OperatorDescriptor:
    """The operator of this name. Raises SpecRefused with the existing names.

    An altered operator has several ids. The id in the program of the checkpoint counts, otherwise the newest id.
    """
    now = manifest.programs[0].operators
    named = [(number, one) for number, one in enumerate(manifest.operators) if one.name == name]
    found = [(number in now, number) for number, one in named if number not in manifest.void]
    if found:
        return manifest.operators[max(found)[1]]
    there = ", ".join(repr(each.name) for each in manifest.operators)
    raise SpecRefused(f"checkpoint {manifest.number} has no operator {name!r}: there are {there}")


def _chunks(
    location: Location, manifest: Manifest, descriptor: OperatorDescriptor, chain: Chain, renew: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    """The state of the virtual nodes of a chain. Each chain needs its own state, because its epochs differ from others."""
    files = [file for file in chain.files if file.operator == descriptor.index]
    vnodes = np.array(sorted(chain.vnodes), np.int64)
    with TemporaryDirectory(prefix="ferry-state-") as directory:
        state = open_state(descriptor, manifest.virtual_nodes, Path(directory), MEMORY_BYTES)
        for file in files:
            for number, part in enumerate(read_parts(location, file, vnodes)):
                renew()
                if file.kind == "scan":
                    state.apply_absent(part)
                else:
                    state.apply(part, file.epoch, f"{file.name}-{number}")
        yield from state.snapshot(vnodes)


def _renewing(pin: Pin) -> Callable[[], None]:
    """A function for frequent calls that renews the pin in time."""
    renewed = time.monotonic()

    def renew() -> None:
        nonlocal renewed
        if time.monotonic() - renewed > PIN_SECONDS / 4:
            pin.renew()
            renewed = time.monotonic()

    return renew
