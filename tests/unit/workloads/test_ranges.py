"""What a generator reads depends on its arguments and on the range, and on nothing else."""

import importlib
import inspect
import pkgutil
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

import ferry_workloads
from ferry.connectors.splits import Flow
from ferry.contract.errors import SpecRefused
from ferry_workloads.arrivals import Arrivals
from ferry_workloads.cm import CmGenerator
from ferry_workloads.keys import KeysGenerator, KeysSplits
from ferry_workloads.nexmark import NexmarkGenerator
from ferry_workloads.smq import SmqGenerator
from ferry_workloads.unimico import UnimicoGenerator
from ferry_workloads.ysb import YsbGenerator
from images import warm_kernels

DISORDER: dict[str, Any] = {"group": 50, "delay_prob": 0.2, "delay_ms": 30}
GENERATORS: list[tuple[type[Arrivals], dict[str, Any]]] = [
    (NexmarkGenerator, DISORDER),
    (YsbGenerator, DISORDER),
    (CmGenerator, DISORDER),
    (KeysGenerator, {**DISORDER, "keys": "zipf"}),
    (SmqGenerator, {}),
    (UnimicoGenerator, {}),
    (UnimicoGenerator, {"same_streams": True}),
]
KINDS = sorted({kind for kind, _ in GENERATORS}, key=str)


def every_generator() -> set[type[Arrivals]]:
    """All workloads that come with Ferry."""
    modules = [
        importlib.import_module(f"ferry_workloads.{one.name}")
        for one in pkgutil.iter_modules(ferry_workloads.__path__)
        if not one.ispkg
    ]
    found = {v for m in modules for v in vars(m).values() if isinstance(v, type) and issubclass(v, Arrivals)}
    return {kind for kind in found if not inspect.isabstract(kind)}


def test_all_generators_are_tried_here_and_compiled_into_the_image() -> None:
    assert set(KINDS) == every_generator() == {type(made) for made in warm_kernels.generators()}


@pytest.mark.parametrize(("kind", "options"), GENERATORS, ids=lambda v: getattr(v, "__name__", ""))
def test_a_range_is_read_alike_in_any_order_by_anyone(kind: type[Arrivals], options: dict[str, Any]) -> None:
    edges = [40_000, 40_001, 41_007, 43_000, 43_000, 45_000]
    one, other = kind(**options), kind(**options)
    for stream in one.schemas:
        ranges = list(pairwise(edges))
        backwards = [one.read(stream, low, high) for low, high in reversed(ranges)]
        whole = other.read(stream, edges[0], edges[-1])
        assert whole.num_rows > 0
        assert pa.Table.from_batches(backwards[::-1]).combine_chunks().to_batches()[0].equals(whole)
        assert one.read(stream, edges[0], edges[-1]).equals(whole)
        for name in whole.schema.names:
            assert other.read(stream, edges[0], edges[-1], [name])[name].equals(whole[name])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SmqGenerator])
def test_another_seed_gives_other_records(kind: type[Arrivals]) -> None:
    for stream in kind().schemas:
        assert not kind(seed=8).read(stream, 0, 1000).equals(kind(seed=9).read(stream, 0, 1000))


@pytest.mark.parametrize(("events", "parts"), [(1000, 3), (1000, 1), (2, 5), (0, 2)])
def test_parts_are_read_side_by_side_and_hold_every_record_once_and_in_their_order(events: int, parts: int) -> None:
    source = KeysSplits(KeysGenerator(events=events, **DISORDER)).in_flows(parts)
    read: dict[str, list[int]] = {}
    at, epochs = source.start(), 0
    while not source.ended(at):
        assert source.flows(at) == {str(part): True for part in range(parts)}
        stop = source.latest(at, 170)
        flow = "0"
        for split in source.plan(at, stop, 2):
            for one in source.read(split, ["seq"]):
                if isinstance(one, Flow):
                    flow = one.name
                else:
                    read.setdefault(flow, []).extend(one["seq"].to_pylist())
        at, epochs = stop, epochs + 1
        if epochs == 1 and events == 1000:
            assert read.keys() == {str(part) for part in range(parts)}
    assert sorted(seq for part in read.values() for seq in part) == [*range(events)]
    assert all(part == sorted(part) for part in read.values())
    assert not any(source.flows(at).values()) and source.has_flows == (parts > 1)


def test_an_endless_input_has_no_parts() -> None:
    with pytest.raises(SpecRefused, match=r"in 2 flows: a positive number is needed, and a finite input"):
        KeysSplits(KeysGenerator()).in_flows(2)
