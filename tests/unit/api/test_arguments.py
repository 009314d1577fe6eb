"""A bound of the input that the program would not heed is refused; the arguments are a dictionary otherwise."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from ferry.api.arguments import Arguments, refuse_unbounded
from ferry.contract.errors import SpecRefused
from ferry_workloads.jobs import nbq5

Read = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "read",
    [
        lambda a: a["events"],
        lambda a: a.get("events"),
        lambda a: a.pop("events"),
        lambda a: {**a},
        lambda a: (lambda **given: given)(**a),
        lambda a: dict(a),
        lambda a: a | {"x": 1},
        lambda a: a.copy(),
        lambda a: [a[name] for name in a],
        lambda a: list(a.items()),
    ],
    ids=range(10),
)
def test_a_program_that_takes_the_bound_may_run(read: Read) -> None:
    args = Arguments({"seed": 3}, 1000)
    read(args)
    refuse_unbounded(args, {})


@pytest.mark.parametrize(
    "read", [lambda a: None, lambda a: a["seed"], lambda a: a.get("seed"), lambda a: "events" in a, len, list]
)
def test_one_that_does_not_is_refused(read: Read) -> None:
    args = Arguments({"seed": 3}, 1000)
    read(args)
    with pytest.raises(SpecRefused, match=r"--events.*args\['events'\]"):
        refuse_unbounded(args, {})
    refuse_unbounded(Arguments({"seed": 3}, None), {})


def test_a_source_of_sparks_own_has_no_end() -> None:
    args = Arguments({}, 1000)
    assert args["events"] == 1000
    with pytest.raises(SpecRefused, match="'orders' is Spark's own"):
        refuse_unbounded(args, {"orders": cast(Any, object.__new__(DataFrame))})


def test_the_jobs_of_the_papers_heed_it() -> None:
    args = Arguments({"seed": 3}, 1000)
    sources = nbq5.sources(None, args)
    refuse_unbounded(args, sources)
    assert all(source.ended(1000) and not source.ended(999) for source in sources.values())


def test_they_travel_as_a_plain_dictionary() -> None:
    args = Arguments({"seed": 3}, 1000)
    again = pickle.loads(pickle.dumps(args))
    assert type(again) is dict and again == {"seed": 3, "events": 1000} == args
