"""Late records go to sinks of their own, each once: with what the operators fire they are all that came, whatever dies."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import clicks, runner
from tests.cluster.clicks import Click

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parent / "pipelines" / "late.py"
EPOCHS = 8

AT = [
    "epoch=1:prepare workers=3",
    "epoch=3:sink kill-driver",
    "epoch=4:emit kill-instance=1.0",
    "epoch=6:commit kill-worker=0",
]


def some(seed: int) -> list[list[Click]]:
    """Clicks by epoch, each of ten seconds; some of every epoch come up to half a minute late."""
    draw = random.Random(seed)

    def one(epoch: int) -> Click:
        behind = draw.choice((0, 0, 0, 10_000, 20_000, 30_000))
        return (
            f"u{draw.randint(0, 20)}",
            max(epoch * 10_000 + draw.randrange(10_000) - behind, 0),
            draw.randint(-5, 100),
        )

    return [[one(epoch) for _ in range(60)] for epoch in range(EPOCHS)]


class Side(NamedTuple):
    """What an operator reads of one stream."""

    epochs: Sequence[Sequence[Click]]
    delay_ms: int = 0


class Timely(NamedTuple):
    """A record that has a window still, its epoch, and the operator's watermark before that."""

    user: str
    ts: int
    low: int
    epoch: int

    def ends(self, size: int, slide: int) -> set[int]:
        """Of the windows that it is in, and that were not final before."""
        first = self.ts // slide * slide
        return {end for end in range(first + slide, first + size + 1, slide) if end > self.low}


def judged(last_end: Callable[[int], int], *sides: Side) -> tuple[list[list[Timely]], list[list[Click]]]:
    """(timely, late) records of each side: late is what has no window any more at the watermark before its epoch."""
    timely: list[list[Timely]] = [[] for _ in sides]
    late: list[list[Click]] = [[] for _ in sides]
    low, greatest = -(10**15), [-(10**15)] * len(sides)
    for epoch in range(EPOCHS):
        for number, side in enumerate(sides):
            for one in side.epochs[epoch]:
                if last_end(one[1]) > low:
                    timely[number].append(Timely(one[0], one[1], low, epoch))
                else:
                    late[number].append(one)
                greatest[number] = max(greatest[number], one[1])
        low = max(low, min(most - side.delay_ms for most, side in zip(greatest, sides)))
    return timely, late


def rows(output: Path, name: str, *columns: str) -> Counter[tuple[Any, ...]]:
    """What a sink has got."""
    found: Counter[tuple[Any, ...]] = Counter()
    for file in output.glob(f"{name}/epoch=*/*.parquet"):
        table = pq.ParquetFile(file).read()
        found.update(tuple(row[column] for column in columns or table.column_names) for row in table.to_pylist())
    return found


def near(clicks: Sequence[Timely], views: Sequence[Timely]) -> Iterator[tuple[str, int, int]]:
    """Pairs of a click and a view that is at most two seconds before, or less than three after it.

    One of an earlier epoch is kept until the watermark has reached what can match it.
    """
    for one in clicks:
        for two in views:
            if one.user == two.user and one.ts - 2_000 <= two.ts < one.ts + 3_000:
                kept = one.ts + 3_000 > two.low if one.epoch < two.epoch else two.ts + 2_000 >= one.low
                if kept or one.epoch == two.epoch:
                    yield one.user, one.ts, two.ts


def test_what_comes_too_late_goes_to_a_sink_once_whatever_dies(tmp_path: Path) -> None:
    made, viewed = some(5), some(6)
    lines: list[list[Click | str]] = [list(one) for one in made]
    lines[4] += ['{"user": "u1", "ts": "noon"}', '{"user": "u1", "ts": null, "amount": 1}', "{"]
    clicks.write(tmp_path / "clicks", lines)
    (tmp_path / "views").mkdir()
    for number, one in enumerate(viewed):
        columns = dict(zip(("user", "ts", "amount"), map(list, zip(*one))))
        pq.write_table(pa.table(columns), tmp_path / "views" / f"{number:03d}.parquet")
    args = {"clicks": str(tmp_path / "clicks"), "views": str(tmp_path / "views")}
    job = tmp_path / "late.yaml"
    spec = {
        "workers": 2,
        "pipeline": {"file": str(PIPELINE), "args": args},
        "epoch": {"maxRows": 1},
        "state": {"virtualNodes": 8, "replicas": 1},
    }
    job.write_text(
        json.dumps(
            {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "late"}, "spec": spec}
        )
    )
    result = runner.run(job, tmp_path, at=AT)
    assert result.code == 0 and not result.left, result.story()
    out, late_ones = result.output, 0

    def check(name: str, late: Sequence[Click], columns: Sequence[str] = ("user", "ts", "amount")) -> None:
        nonlocal late_ones
        assert late and rows(out, name, *columns) == Counter(late), f"{name}, {len(late)} late"
        late_ones += len(late)

    (timely,), (late,) = judged(lambda ts: ts // 10_000 * 10_000 + 10_000, Side(made))
    amounts = Counter(one for epoch in made for one in epoch) - Counter(late)
    assert rows(out, "sums", "user", "window_end", "num", "total") == clicks.expected([*amounts.elements()])
    check("late_sums", late)

    paid = [[one for one in epoch if one[2] >= 0] for epoch in made]
    (timely,), (late,) = judged(lambda ts: ts + 3_000, Side(paid))
    check("late_visits", late)
    assert sum(n * num for (num,), n in rows(out, "visits", "num").items()) == len(timely)
    cents = Counter({(*one, one[2] * 100): n for one, n in Counter(late).items()})
    assert rows(out, "late_visits") == cents, "with the columns that steps before the operator have made"

    short = [[one for one in epoch if one[2] < 90] for epoch in viewed]
    last = lambda ts: ts // 5_000 * 5_000 + 10_000  # noqa: E731
    (left, right), (late, other) = judged(last, Side(made), Side(short, 2_000))
    pairs = Counter(
        (one.user, one.ts, two.ts, end)
        for one in left
        for two in right
        if one.user == two.user
        for end in one.ends(10_000, 5_000) & two.ends(10_000, 5_000)
    )
    check("late_clicks", late)
    check("late_views", other)
    assert rows(out, "both", "user", "click", "view", "window_end") == pairs

    (left, right), (late, other) = judged(last, Side(made, 1_000), Side(viewed, 1_000))
    seen = Counter((one.user, end) for one in [*left, *right] for end in one.ends(10_000, 5_000))
    check("late_seen", [*late, *other])
    assert rows(out, "seen", "user", "window_end", "num") == Counter((*key, n) for key, n in seen.items())

    (timely,), (late,) = judged(lambda ts: ts // 4_000 * 4_000 + 4_000, Side(made))
    check("late_tops", [one[:2] for one in late], ("user", "ts"))  # type: ignore[misc]
    tops = Counter((one.user, end) for one in timely for end in one.ends(4_000, 4_000))
    assert rows(out, "tops", "user", "window_end", "num") == Counter((*key, n) for key, n in tops.items())

    (left, right), (late, other) = judged(lambda ts: ts + 5_000, Side(made), Side(viewed))
    check("late_near_clicks", late)
    check("late_near_views", other)
    assert rows(out, "near", "user", "click", "view") == Counter(near(left, right))

    (timely,), (late,) = judged(lambda ts: ts + 1, Side(made))
    check("late_echo", late)
    assert rows(out, "echo", "user", "ts") == Counter((one.user, one.ts) for one in timely)

    assert (result.summary["late"], result.summary["malformed"]) == (late_ones, 2 + 7), (
        "a null time is malformed to each of the seven operators that read it",
        result.summary,
    )
