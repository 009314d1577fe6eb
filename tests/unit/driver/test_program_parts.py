"""Which sources and sinks of a deployed program keep their objects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.errors import SpecRefused
from ferry.driver.program_parts import digests_of, has_users_code, same_parts, signature, signatures_of
from ferry.spark.compile import CompiledPipeline

SCHEMA = pa.schema([("k", pa.int64())])


def plan(sources: dict[str, Any], *sinks: Any) -> CompiledPipeline:
    from ferry.api.pipeline import Input, Output

    outputs = tuple(Output(Input("a", (), SCHEMA, None, 0), sink) for sink in sinks)
    return CompiledPipeline(sources, (), outputs)


def kept(before: CompiledPipeline, now: CompiledPipeline) -> CompiledPipeline:
    return same_parts(before, signatures_of(before), now, signatures_of(now))


def write(epoch: int, generation: int, rows: Any) -> None:
    """The user's."""


def test_equal_parts_keep_their_objects(tmp_path: Path) -> None:
    def made() -> CompiledPipeline:
        return plan({"a": ferry.json_files(str(tmp_path), SCHEMA)}, ferry.parquet("x"), ferry.parquet("y"))

    before, now = made(), made()
    both = kept(before, now)
    assert both.sources["a"] is before.sources["a"]
    assert all(a is b for a, b in zip(both.sinks, before.sinks, strict=True)) and not has_users_code(before.sinks[0])


def test_new_and_changed_sinks_are_new_objects_and_others_stay(tmp_path: Path) -> None:
    source = {"a": ferry.json_files(str(tmp_path), SCHEMA)}
    before, now = plan(source, ferry.parquet("x")), plan(source, ferry.parquet("z"), ferry.parquet("x"))
    both = kept(before, now)
    assert both.outputs[0].sink is now.sinks[0] and both.outputs[1].sink is before.sinks[0]


def test_a_sink_with_code_of_the_user_is_replaced(tmp_path: Path) -> None:
    source = {"a": ferry.json_files(str(tmp_path), SCHEMA)}
    before, now = plan(source, ferry.foreach_epoch(write)), plan(source, ferry.foreach_epoch(write))
    assert has_users_code(before.sinks[0])
    assert kept(before, now).sinks == now.sinks, "its function may be another one with the same name"


def test_sources_come_and_go_and_a_changed_source_is_refused(tmp_path: Path) -> None:
    a, b = (ferry.json_files(str(tmp_path / name), SCHEMA) for name in "ab")
    assert kept(plan({"a": a}), plan({"b": b})).sources == {"b": b}
    both = kept(plan({"a": a}), plan({"a": ferry.json_files(str(tmp_path / "a"), SCHEMA), "b": b}))
    assert both.sources["a"] is a and both.sources["b"] is b
    with pytest.raises(SpecRefused, match=r"source 'a' was changed .* give it another name"):
        kept(plan({"a": a}), plan({"a": b}))
    wider = ferry.json_files(str(tmp_path / "a"), SCHEMA.append(pa.field("more", pa.int64())))
    with pytest.raises(
        SpecRefused, match=r"it was schema=.*, and is schema=.* more: int64\), .* from its first record on"
    ):
        kept(plan({"a": a}), plan({"a": wider}))


def test_a_source_of_initial_state_cannot_be_added(tmp_path: Path) -> None:
    now = plan({"a": ferry.json_files(str(tmp_path), SCHEMA, finite=True)})
    first = SimpleNamespace(inputs=(SimpleNamespace(initial=True, origin="a"),))
    with pytest.raises(SpecRefused, match="an operator's state begins with it"):
        kept(plan({}), replace(now, operators=(first,)))  # type: ignore[arg-type]


def test_a_signature_has_values_and_only_the_names_of_code() -> None:
    one: Any = SimpleNamespace(x=1, function=write, nested={"a": [None, SCHEMA]})
    assert signature(one) == signature(SimpleNamespace(**vars(one)))
    assert signature(one) != signature(SimpleNamespace(**{**vars(one), "x": 2}))
    assert "write" in signature(one) and hex(id(write))[2:] not in signature(one)


def put(place: str, epoch: int, generation: int, rows: Any) -> None:
    """The user's."""


class Store:
    """The user's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.itself = self

    def write(self, epoch: int, generation: int, rows: Any) -> None:
        """To the place of this name."""


def closure(place: str) -> Any:
    store, settings = Store(place), {"places": [place]}

    def write(epoch: int, generation: int, rows: Any) -> None:
        print(store, settings)

    return write


def test_methods_and_bound_functions_are_code_of_the_user_with_values() -> None:
    for wrapped in (Store("x").write, partial(put, "x")):
        sink = ferry.foreach_epoch(wrapped)
        assert has_users_code(sink) and "x" in signature(Store("x").write)
    assert signature(Store("x").write) != signature(Store("y").write)
    assert signature(partial(put, "x")) != signature(partial(put, "y"))
    assert signature(closure("x"), closures=True) != signature(closure("y"), closures=True)
    assert signature(closure("x"), closures=True) == signature(closure("x"), closures=True) != signature(closure("x"))
    first, second = (lambda epoch, generation, rows: print("x")), (lambda epoch, generation, rows: print("y"))
    assert signature(first, closures=True) != signature(second, closures=True), "they write to two places"
    assert signature({"b", "a", "c"}) == signature({"c", "b", "a"})


def test_a_source_that_comes_back_has_its_settings_as_before(tmp_path: Path) -> None:
    """Its position is kept by name."""

    def digests(**folders: str) -> tuple[tuple[str, str], ...]:
        sources = {name: ferry.json_files(str(tmp_path / folder), SCHEMA) for name, folder in folders.items()}
        return digests_of(signatures_of(plan(sources)))

    first = ProgramRecord(1, (), (), since=0, sources=digests(a="x", b="z"))
    catalogue = Catalogue((), (first, ProgramRecord(2, (), (), since=5, sources=digests(b="z"))))
    assert Catalogue.load(catalogue.dump()) == catalogue
    assert catalogue.changed_source(digests(a="x")) == catalogue.changed_source(digests(c="y")) == ""
    assert "source 'a' comes back with other settings" in catalogue.changed_source(digests(a="y"))
    assert catalogue.changed_source(digests(b="y")) == "", "that one is in force, and is refused in words"
    for unknown in (replace(first, since=None, refused="no"), replace(first, rewound=True), replace(first, sources=())):
        assert replace(catalogue, programs=(unknown, catalogue.programs[1])).changed_source(digests(a="y")) == ""
