"""Dashboards against the models of Grafana's own SDK: every field is known to Grafana, and has the type that it expects."""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard, prometheus

from tests.unit.charts import Document, dashboards

OF_PROMETHEUS = {"step", "titleFormat", "tagKeys"}
"""Fields of an annotation that its data source reads; the models have fields of all data sources alone."""

KNOWN = frozenset({"timeseries", "bargauge", "table"})

plugins.register_default_plugins()


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What the models drop or change of a document."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from differences(value, theirs[key], f"{path}.{key}")
            elif not (key in OF_PROMETHEUS and ".annotations" in path):
                yield f"{path}.{key} is unknown"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif ours != theirs:
        yield f"{path} is {ours!r}, and {theirs!r} when it is read"


def misfits(value: Any, expected: Any, path: str) -> Iterator[str]:
    """Parts of a value that have another type than its model says."""
    origin, parts = typing.get_origin(expected), typing.get_args(expected)
    if expected is Any or expected is object:
        return
    if origin in (typing.Union, types.UnionType):
        found = [list(misfits(value, part, path)) for part in parts]
        yield from min(found, key=len)
    elif origin is typing.Literal:
        if value not in parts:
            yield f"{path}: {value!r} is none of {parts}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for index, one in enumerate(value):
            yield from misfits(one, parts[0], f"{path}[{index}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no map"
    elif isinstance(expected, type) and expected.__module__.startswith("grafana_foundation_sdk.models"):
        if issubclass(expected, Enum):
            if value not in {one.value for one in expected} and value not in set(expected):
                yield f"{path}: {value!r} is none of {[one.value for one in expected]}"
        elif isinstance(value, dict):  # the SDK leaves some parts as they are in the document
            yield from differences(value, json.loads(json.dumps(expected.from_json(value), cls=JSONEncoder)), path)
            yield from misfits(expected.from_json(value), expected, path)
        elif not isinstance(value, expected):
            yield f"{path}: {value!r} is no {expected.__name__}"
        else:
            for name, kind in typing.get_type_hints(expected, vars(sys.modules[expected.__module__])).items():
                if getattr(value, name, None) is not None:
                    yield from misfits(getattr(value, name), kind, f"{path}.{name}")
    elif isinstance(expected, type):
        wanted = (int, float) if expected is float else expected
        if not isinstance(value, wanted) or (isinstance(value, bool) and expected is not bool):
            yield f"{path}: {value!r} is no {expected.__name__}"


def complaints(board: Document) -> list[str]:
    model = dashboard.Dashboard.from_json(board)
    back = json.loads(json.dumps(model, cls=JSONEncoder))
    return [*differences(board, back), *misfits(model, dashboard.Dashboard, "")]


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_grafana_knows_every_field(name: str) -> None:
    board = dashboards()[name]
    assert complaints(board) == []
    assert {panel["type"] for panel in board["panels"]} <= KNOWN
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = prometheus.Dataquery.from_json(target)
            assert list(differences(target, json.loads(json.dumps(query, cls=JSONEncoder)))) == []


def test_a_mistake_in_a_board_is_found() -> None:
    board = dashboards()["jobs"]
    assert complaints({**board, "refrsh": "10s"}) == [".refrsh is unknown"]
    (panel, *more) = board["panels"]
    (wrong,) = complaints({**board, "panels": [{**panel, "gridPos": {**panel["gridPos"], "width": 3}}, *more]})
    assert wrong == ".panels[0].gridPos.width is unknown"
    assert any("no str" in one for one in complaints({**board, "title": 7}))


def test_the_boards_are_one_set() -> None:
    """The same marks and the same links on every board."""
    boards = dashboards()
    assert len({board["uid"] for board in boards.values()}) == len(boards) == 4
    assert len({json.dumps(board["links"]) for board in boards.values()}) == 1
    for board in boards.values():
        assert [one["name"] for one in board["annotations"]["list"]] == ["programs", "handovers", "recoveries"]
    tables = [p["title"] for board in boards.values() for p in board["panels"] if p["type"] == "table"]
    assert tables == ["Every handover", "Every deploy"]
