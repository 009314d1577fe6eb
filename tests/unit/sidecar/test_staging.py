"""Fragments are kept under their full name, in memory up to a bound, in files beyond it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from ferry.contract.names import Fragment, Step
from ferry.sidecar.staging import Staging


def fragment(epoch: int = 1, generation: int = 1, run: int = 1, task: int = 0) -> Fragment:
    return Fragment(Step(epoch, 0), generation, run, task)


def batch(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": list(values)})


@pytest.mark.parametrize("memory", [1 << 20, 0], ids=["memory", "files"])
def test_fragments_of_other_runs_and_generations_are_other_fragments(tmp_path: Path, memory: int) -> None:
    staging = Staging(tmp_path / "staged", memory)
    names = [fragment(), fragment(run=2), fragment(generation=2), fragment(task=7), fragment(epoch=2)]
    for number, name in enumerate(names):
        staging.add(name, [batch(number), batch(number, number)])
    for number, name in enumerate(names):
        assert [b.to_pydict() for b in staging.take(name)] == [{"x": [number]}, {"x": [number, number]}]
    assert len(list((tmp_path / "staged").iterdir())) == (0 if memory else len(names))


@pytest.mark.parametrize("memory", [1 << 20, 0], ids=["memory", "files"])
def test_final_epochs_are_forgotten(tmp_path: Path, memory: int) -> None:
    staging = Staging(tmp_path / "staged", memory)
    staging.add(fragment(epoch=1), [batch(1)])
    staging.add(fragment(epoch=2), [batch(2)])
    staging.release(1)
    with pytest.raises(KeyError):
        staging.take(fragment(epoch=1))
    assert staging.take(fragment(epoch=2))[0].to_pydict() == {"x": [2]}


def test_what_an_earlier_life_left_is_removed(tmp_path: Path) -> None:
    Staging(tmp_path, 0).add(fragment(), [batch(1)])
    Staging(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
