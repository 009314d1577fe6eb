"""A pipeline as `ferry explain JOB.yaml` shows it: text and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ferry_operator.local import graph
from ferry_operator.local.timeline import plot


def read(origin: str, time: str | None = None, delay_ms: int = 0, *steps: str) -> dict[str, Any]:
    return {"from": origin, "steps": list(steps), "time": time, "delay_ms": delay_ms if time else None}


def operator(name: str, *reads: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {
        "kind": "aggregate",
        "key": ["k"],
        "window": None,
        "ttl_ms": None,
        "emit": "final",
        "computes": ["n=count()"],
    }
    return {"name": name, "reads": list(reads), "columns": {"k": "int64", "n": "int64"}, **plain, **more}


PLAN = {
    "sources": [
        {"name": "a", "kind": "Json('a')", "columns": {"k": "int64"}},
        {"name": "b", "kind": "B", "columns": {}},
    ],
    "operators": [
        operator("n", read("a", "ts", 3000, "map_batches f"), window={"size_ms": 60_000, "slide_ms": 10_000}),
        operator("both", read("n"), read("b", "at"), kind="process", computes=["Near"], key=[]),
        operator("last", read("a"), emit="changes", ttl_ms=90_000),
    ],
    "outputs": [{"sink": "Out", "reads": [read("both")]}, {"sink": "Out", "reads": [read("a")], "late": "n"}],
    "planned": "",
}


def test_every_operator_says_what_it_reads_and_when_it_emits() -> None:
    said = list(graph.lines(PLAN))
    assert said == [
        ("source a", "Json('a'): k int64"),
        ("source b", "B: "),
        (
            "operator n",
            "aggregate n=count() by k, in windows of 1 min every 10 s, each once, when the watermark passes its end",
        ),
        ("  reads", "a, map_batches f, event time ts, up to 3 s late"),
        ("  gives", "k int64, n int64"),
        ("operator both", "process Near, of all records together"),
        ("  reads", "n"),
        ("  reads", "b, event time at"),
        ("  gives", "k int64, n int64"),
        (
            "operator last",
            "aggregate n=count() by k, keys are forgotten after 90 s, after each epoch the rows that changed",
        ),
        ("  reads", "a"),
        ("  gives", "k int64, n int64"),
        ("sink Out", "both"),
        ("sink Out", "late records of n, of a"),
        ("epochs", "continuous: no epoch is planned by Spark"),
    ]
    assert (
        list(graph.lines({**PLAN, "planned": "source 'a' is Spark's own"}))[-1][1]
        == "micro-batch: source 'a' is Spark's own"
    )


def test_a_box_stands_right_of_all_that_it_reads() -> None:
    boxes, edges = graph.laid_out(PLAN)
    assert len(boxes) == 7 and len(set(boxes.values())) == 7
    assert all(boxes[begin][0] < boxes[end][0] for (begin, end), _ in edges)
    assert (("source a", "operator n"), "f\nts, 3 s") in edges


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, ending: str) -> None:
    plot.draw_pipeline(PLAN, tmp_path / f"graph.{ending}", "job")
    assert (tmp_path / f"graph.{ending}").stat().st_size > 5000
