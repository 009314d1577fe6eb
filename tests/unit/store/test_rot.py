"""Files of state that are damaged: whoever opens them says which, and never reads something else from them."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import StateUnavailable
from ferry.contract.limits import WATERMARK_NONE
from ferry.process.shapes import process_of, shape_of
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState
from ferry.store.inventory import Inventory
from ferry.store.process import ProcessState
from ferry.store.rows import RowState
from ferry.store.state import State
from tests.unit.store.processes import COLUMNS, Everything

VNODES = 8
EVERY = np.arange(VNODES)
TIMES = EpochTimes(WATERMARK_NONE, WATERMARK_NONE, 1, 0)
AGGREGATES = (Aggregate("n", "count"), Aggregate("s", "sum", "x"))
SIDE = Side((("x", "x", "int64"),))

Harm = Callable[[Path], object]


def descriptor_of(kind: str) -> OperatorDescriptor:
    window, key = Window(10_000, 10_000), (("k", "int"),)
    match kind:
        case "integers":
            return OperatorDescriptor("op", 0, "aggregate", key, window, AGGREGATES)
        case "texts":
            return OperatorDescriptor("op", 0, "aggregate", (("k", "string"),), window, AGGREGATES)
        case "rows":
            return OperatorDescriptor("op", 0, "join", key, window, left=SIDE, right=SIDE)
        case _:
            shape = shape_of("op", Everything(), pa.schema([("k", pa.int64())]), [COLUMNS], None)
            return OperatorDescriptor("op", 0, "process", key, Window(1, 1), process=shape)


def opened(kind: str, directory: Path) -> State:
    descriptor = descriptor_of(kind)
    match kind:
        case "integers" | "texts":
            return AggregateState(descriptor, VNODES, directory)
        case "rows":
            return RowState(descriptor, VNODES, directory)
        case _:
            return ProcessState(descriptor, lambda: process_of(descriptor), VNODES, directory)


def closed(state: State) -> None:
    if isinstance(state, ProcessState):
        state._entries.close()


def filled(kind: str, directory: Path) -> None:
    """Two epochs of records, of which the second one changes what the first one has left."""
    state, descriptor = opened(kind, directory), descriptor_of(kind)
    for epoch in (1, 2):
        keys = list(range(200)) if kind != "texts" else [f"key-{i:05d}" for i in range(200)]
        f = Fragmenter(descriptor)
        columns = {"k": keys, "t": [1000] * 200, "x": [7] * 200, "n": [7] * 200, "text": ["some text"] * 200}
        f.add(pa.record_batch(columns), ["k"], "t")
        delta, _ = state.delta([state.combine(f.drain())], TIMES)
        state.apply(delta, epoch, "x")
    closed(state)


def content(kind: str, directory: Path) -> Counter[str]:
    state = opened(kind, directory)
    try:
        return Counter(str(row) for chunk in state.snapshot(EVERY) for row in chunk.to_pylist())
    finally:
        closed(state)


@pytest.fixture(scope="module", params=["integers", "texts", "rows", "process"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A kind of state, and its files."""
    folder = tmp_path_factory.mktemp(request.param)
    filled(request.param, folder)
    assert len(content(request.param, folder)) >= 200
    yield request.param, folder


def harmed(made: tuple[str, Path], folder: Path, harm: Harm, name: str | None = None) -> bool:
    """Whether it was noticed; else what is read is what was written."""
    kind, files = made
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(files, folder)
    if name is None:
        harm(folder)
    else:
        harm(folder / name)
    try:
        found = content(kind, folder)
    except StateUnavailable as error:
        assert str(folder) in str(error) or "entry" in str(error)
        return True
    assert found == content(kind, files)
    return False


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock.mdb")


def flip(path: Path, at: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def test_one_bit_of_a_file(made: tuple[str, Path], tmp_path: Path) -> None:
    """Of all that is not 0 there, or lies beside it: most of a sparse file is never looked at."""
    kind, files = made
    draw, noticed, tries = random.Random(kind), 0, 0
    for name in names(files):
        data = (files / name).read_bytes()
        if name == "data.mdb":
            # Of values alone: a page of which the head is damaged may end the process, which its parent notices.
            begin, found = 0, []
            while (begin := data.find(b"some text", begin)) >= 0:
                found.append(begin)
                begin += 1
        else:
            found = np.flatnonzero(np.frombuffer(data, np.uint8)).tolist()
        for at in draw.sample(found, min(60, len(found))):
            bit, tries = draw.randrange(8), tries + 1
            noticed += harmed(made, tmp_path / "harmed", lambda path: flip(path, at, bit), name)  # noqa: B023
    assert noticed > tries // 4, "values are in free pages, too, and the rest of a last word is nothing"


def cut(path: Path, share: float) -> None:
    """Leave so much of it; of a file of entries, which ends in a hole, of the bytes before the hole."""
    size = path.stat().st_size if path.name != "data.mdb" else len(path.read_bytes().rstrip(b"\0"))
    os.truncate(path, int(size * share))


def zeroed(path: Path, share: float) -> None:
    size = path.stat().st_size
    cut(path, share)
    os.truncate(path, size)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_is_cut_or_zeroed(made: tuple[str, Path], tmp_path: Path, share: float) -> None:
    files = made[1]
    for name in names(files):
        assert (
            harmed(made, tmp_path / "harmed", lambda path: cut(path, share), name)
            or name == "inventory"
            or share == 0.9
        ), name
        if name != "data.mdb":
            harmed(made, tmp_path / "harmed", lambda path: zeroed(path, share), name)


def test_a_file_that_is_missing(made: tuple[str, Path], tmp_path: Path) -> None:
    files = made[1]
    for name in names(files):
        if name != "data.mdb":
            assert harmed(made, tmp_path / "harmed", Path.unlink, name), name


def test_a_row_that_was_changed_to_another_that_could_be(made: tuple[str, Path], tmp_path: Path) -> None:
    """As the sum of one key, which says nothing of itself."""
    kind, files = made
    if kind not in ("integers", "texts"):
        return
    (name,) = (n for n in names(files) if n.endswith(".table"))

    def change(path: Path) -> None:
        words = np.fromfile(path, np.int64)
        words[np.flatnonzero(words == 14)[-1]] += 1 << 20
        words.tofile(path)

    assert harmed(made, tmp_path / "harmed", change, name)


def test_an_inventory_is_small_however_many_files_come_and_go(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path)
    for number in range(5000):
        inventory.add(number, -number)
        inventory.remove([number - 2])
    assert (tmp_path / "inventory").stat().st_size < 100_000
    again = Inventory(tmp_path)
    assert again.digests == {4998: -4998, 4999: -4999}
    again.remove([4998, 4999])
    assert not Inventory(tmp_path).digests
