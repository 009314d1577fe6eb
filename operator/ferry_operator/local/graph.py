"""A pipeline as text and as a layout of boxes and arrows, by the plan of `check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

Plan = dict[str, Any]

UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


def span(milliseconds: int) -> str:
    """A duration in its largest whole unit.

    Example:
        >>> span(90_000), span(7_200_000)
        ('90 s', '2 h')
    """
    if not milliseconds:
        return "0 s"
    size, unit = next((size, unit) for size, unit in UNITS if milliseconds % size == 0)
    return f"{milliseconds // size} {unit}"


def lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, description) of each source, operator and sink, and of the epoch mode."""
    for source in plan["sources"]:
        yield f"source {source['name']}", f"{source['kind']}: {_columns(source['columns'])}"
    for operator in plan["operators"]:
        yield f"operator {operator['name']}", _operator(operator)
        yield from (("  reads", _read(read)) for read in operator["reads"])
        yield "  gives", _columns(operator["columns"])
    for output in plan["outputs"]:
        late = f"late records of {output['late']}, of " if output.get("late") else ""
        yield f"sink {output['sink']}", late + "; ".join(_read(read) for read in output["reads"])
    yield "epochs", mode(plan)


def mode(plan: Plan) -> str:
    """The epoch mode, with its reason."""
    return f"micro-batch: {plan['planned']}" if plan["planned"] else "continuous: no epoch is planned by Spark"


def _columns(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _operator(operator: Plan) -> str:
    computes = f" {', '.join(operator['computes'])}" if operator["computes"] else ""
    by = f" by {', '.join(operator['key'])}" if operator["key"] else ", of all records together"
    return f"{operator['kind']}{computes}{by}{_when(operator)}"


def _when(operator: Plan) -> str:
    """The window of an operator, and the time of its output."""
    window = operator["window"]
    rows = ", after each epoch the rows that changed" if operator["emit"] == "changes" else ""
    if window is None:
        return (f", keys are forgotten after {span(operator['ttl_ms'])}" if operator["ttl_ms"] else "") + rows
    slide = f" every {span(window['slide_ms'])}" if window["slide_ms"] != window["size_ms"] else ""
    times = "".join(
        f" {word} {_time(operator[name])}" for name, word in (("since", "from"), ("until", "until")) if name in operator
    )
    return f", in windows of {span(window['size_ms'])}{slide}{times}" + (
        rows or ", each once, when the watermark passes its end"
    )


def _time(milliseconds: int) -> str:
    """A time since 1970; years beyond 9999 have no date."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def _read(read: Plan) -> str:
    late = f", up to {span(read['delay_ms'])} late" if read["delay_ms"] else ""
    time = f", event time {read['time']}{late}" if read["time"] else ""
    return "".join([read["from"], *(f", {step}" for step in read["steps"]), time])


def laid_out(plan: Plan) -> tuple[dict[str, tuple[int, int]], list[tuple[tuple[str, str], str]]]:
    """The place (column, row) of each box, and the arrows with their labels."""
    columns: dict[str, int] = {f"source {source['name']}": 0 for source in plan["sources"]}
    named = {source["name"]: f"source {source['name']}" for source in plan["sources"]}
    edges = []

    def place(box: str, reads: Sequence[Plan]) -> None:
        columns[box] = 1 + max((columns[named[read["from"]]] for read in reads), default=0)
        for read in reads:
            steps = [step.partition(" ")[2] for step in read["steps"]]
            time = [f"{read['time']}, {span(read['delay_ms'])}"] if read["time"] else []
            edges.append(((named[read["from"]], box), "\n".join([*steps, *time])))

    for operator in plan["operators"]:
        named[operator["name"]] = f"operator {operator['name']}"
        place(named[operator["name"]], operator["reads"])
    for number, output in enumerate(plan["outputs"]):
        place(f"sink {output['sink']}{' ' * number}", output["reads"])
    boxes, rows = dict[str, tuple[int, int]](), dict[int, int]()
    for box, column in columns.items():
        boxes[box] = column, rows.get(column, 0)
        rows[column] = rows.get(column, 0) + 1
    return boxes, edges
