"""What `ferry.write_state` makes is read again as it was given, and all else is as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.descriptors import GLOBAL, Aggregate, Window
from ferry.contract.errors import Refusal
from ferry.contract.limits import WATERMARK_NONE
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from tests.unit.reading.checkpoints import publish
from tests.unit.reading.test_state import times
from tests.unit.store import test_aggregate as aggregates
from tests.unit.store import test_process as processes
from tests.unit.store import test_rows as joins


@pytest.fixture
def where(tmp_path: Path) -> Location:
    return Location(str(tmp_path / "checkpoints"), "job")


def rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


@pytest.mark.parametrize("key", [aggregates.INT_KEY, aggregates.TEXT_KEY, aggregates.PAIR_KEY])
@pytest.mark.parametrize("emit", ["final", "changes"])
def test_an_aggregate_is_that_of_the_records(where: Location, tmp_path: Path, key: Any, emit: Any) -> None:
    descriptor = replace(aggregates.shape_of(key, GLOBAL), emit=emit)
    before = aggregates.partials(descriptor, [(1, 77, 1, 1, 1)])
    base = publish(where, descriptor, [(before, times(5, WATERMARK_NONE, 5))], tmp_path / "state")
    given = [(0, i % 30, i % 11 - 5, 3 * i, i) for i in range(500)]
    names = {name: [aggregates.key_of(descriptor, r[1])[at] for r in given] for at, (name, _) in enumerate(key)}
    columns = {"x": [r[2] for r in given], "y": [r[3] / 4 for r in given]}
    columns |= {"z": [r[4] for r in given], "w": [r[4] / 2 for r in given]}
    url = ferry.write_state(where.text, tables={"op": pa.table(names | columns)}, name="seeded")
    grouped: dict[tuple, list[Any]] = {}
    for record in given:
        grouped.setdefault(aggregates.key_of(descriptor, record[1]), []).append(record)
    expected = {(*k, *aggregates.result(found)) for k, found in grouped.items()}
    for checkpoint in (url, "latest", "seeded"):
        state = ferry.read_state(where.text, "op", checkpoint)
        assert {tuple(row.values()) for row in state.to_pylist()} == expected and state.num_rows == 30
    made = CheckpointCatalog(where).find("seeded")
    assert (made.number, made.epoch, made.operators, made.meta) == (2, base.epoch, base.operators, base.meta)
    assert made.lineage != base.lineage and CheckpointCatalog(where).find("1") == base
    assert ferry.read_state(where.text, "op", "1").num_rows == 1


@pytest.mark.parametrize("key", [processes.INT_KEY, processes.TEXT_KEY])
def test_a_process_has_the_tables_that_were_read(where: Location, tmp_path: Path, key: Any) -> None:
    descriptor = processes.descriptor_of(key)
    texts = ["a", "b", None, "x" * 250, "x" * 251]
    records = [(k % 5, 100 + k, k, texts[k % 5 if k % 2 else 3]) for k in range(60)]
    fragments = processes.fragments(descriptor, processes.table_of(records))
    publish(where, descriptor, [(fragments, times(0, WATERMARK_NONE, 5))], tmp_path / "state")
    names = ("count", "texts", "times", "timers")
    tables = {name: ferry.read_state(where.text, "p", table=name) for name in names}
    assert all(table.num_rows > 3 for table in tables.values())
    ferry.write_state(where.text, tables={"p": tables})
    assert len(CheckpointCatalog(where).find("latest").files) == 1
    for name in names:
        assert rows(ferry.read_state(where.text, "p", "2", table=name)) == rows(tables[name])
    ferry.write_state(where.text, tables={"p": {"count": tables["count"].slice(0, 2)}})
    assert ferry.read_state(where.text, "p", table="count").num_rows == 2
    assert ferry.read_state(where.text, "p", table="texts").num_rows == 0


def test_what_cannot_be_made_is_refused_and_leaves_nothing(where: Location, tmp_path: Path) -> None:
    key = aggregates.INT_KEY
    count = (Aggregate("n", "count"),)
    refused = {
        "window": (aggregates.shape_of(key, Window(10, 10), count), aggregates.partials),
        "forgets": (replace(aggregates.shape_of(key, GLOBAL, count), ttl_ms=5), aggregates.partials),
        "join": (joins.shape_of(), lambda *given: []),
    }
    table = pa.table({"k": [1]})
    for number, (name, (descriptor, partials)) in enumerate(refused.items()):
        descriptor = replace(descriptor, name=name)
        publish(
            where, descriptor, [(partials(descriptor, []), times(0, WATERMARK_NONE, 5))], tmp_path / name, number + 1
        )
        with pytest.raises(ferry.SpecRefused, match=f"the state of operator '{name}' cannot be written from a table"):
            ferry.write_state(where.text, tables={name: table})
    descriptor = aggregates.shape_of(key, GLOBAL)
    publish(where, descriptor, [([], times(0, WATERMARK_NONE, 5))], tmp_path / "a", 4)
    with pytest.raises(ferry.SpecRefused, match="'op': the table lacks columns: x, y, z, w"):
        ferry.write_state(where.text, tables={"op": table})
    with pytest.raises(ferry.SpecRefused, match="is an aggregate: give one table"):
        ferry.write_state(where.text, tables={"op": {"count": table}})
    process = processes.descriptor_of()
    publish(where, process, [([], times(0, WATERMARK_NONE, 5))], tmp_path / "p", 5)
    counts = pa.table({"k": [1, 1], "n": [1, 2], "last": [1, 2], "text": ["a", "b"]})
    timers = pa.table({"k": [1], "clock": ["sun"], "time": [5]})
    for given, said in [
        (counts, "is a process: give a dict"),
        ({"other": counts}, "choose with table=: 'count'"),
        ({"count": table}, "table 'count' lacks columns: n, last, text"),
        ({"count": counts}, "table 'count' has two rows of the same k"),
        ({"timers": timers}, "the clock of a timer is one of event, processing"),
    ]:
        with pytest.raises(ferry.SpecRefused, match=said):
            ferry.write_state(where.text, tables={"p": given})
    with pytest.raises(Refusal, match="no checkpoint '9'"):
        ferry.write_state(where.text, operators="9", tables={})
    assert CheckpointCatalog(where).next_number() == 6 and where.names("pins") == []
    assert not [entry for entry in where.names("files") if "written" in entry.name]
