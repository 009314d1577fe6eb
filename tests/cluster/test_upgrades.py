"""The tables of a process change while the job runs: `upgrade` derives their rows, and a failing one changes nothing."""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from ferry_workloads.smq import SmqGenerator
from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LIFE_MS = 2000

RECENT = """recent = numbers.process("recent", Recent(), columns=["seq", "ts"])
    return [recent.sink(ferry.parquet("recent")), seen]


@dataclass
class Recent(ferry.Process):
    tables = {{"{table}": ferry.StateTable(pa.schema([("ts", pa.int64()), ("{column}", pa.{kind}())]), pa.int64())}}
    output = pa.schema([("seq", pa.int64()), ("v", pa.int64())])

    def process(self, work):
        key, seq = work.key_of(), work.rows()["seq"].to_numpy()
        work.put("{table}", key, {{"ts": work.times(), "{column}": seq * {factor}}}, seq)
        work.set_timer(key, work.times() + 2000)
        kept = work.read("{table}", np.unique(work.timers().key))
        over = kept.at(kept.values["ts"].to_numpy() + 2000 <= work.watermark)
        work.emit(over.key, {{"seq": over.entry, "v": over.values["{column}"].cast(pa.int64())}})
        work.remove("{table}", over.key, over.entry)

    {upgrade}
"""
"""Keeps each number for two seconds, in an entry of its own, and then emits it."""

WHOLE = """def upgrade(self, table, rows):
        return {"whole": {"ts": rows["ts"], "v": rows["tenfold"].cast(pa.int64())}} if table == "tenfold" else {}"""
TENFOLD = """def upgrade(self, table, rows):
        return {"tenfold": rows.drop_columns("v").append_column("tenfold", pa.array(rows["v"].to_numpy() * 10.0 + 1))}"""
FAILS = """def upgrade(self, table, rows):
        return {"tenfold": {"ts": rows["ts"], "tenfold": [10 / (0 * one) for one in rows["v"].to_pylist()]}}"""
LATE = """def upgrade(self, table, rows):
        if (rows["v"].to_numpy() > 30000).any():
            raise ValueError("a later row")
        return {"tenfold": {"ts": rows["ts"], "tenfold": rows["v"]}}"""
TEXTS = {
    "whole": RECENT.format(table="whole", column="v", kind="int64", factor=1, upgrade=WHOLE),
    "tenfold": RECENT.format(table="tenfold", column="tenfold", kind="float64", factor=10, upgrade=TENFOLD),
    "fails": RECENT.format(table="tenfold", column="tenfold", kind="float64", factor=10, upgrade=FAILS),
    "late": RECENT.format(table="tenfold", column="tenfold", kind="float64", factor=10, upgrade=LATE),
    "no": RECENT.format(table="tenfold", column="tenfold", kind="float64", factor=10, upgrade=""),
}


def wrong(output: Path, since: dict[int, str]) -> list[str]:
    """Numbers that were emitted in another epoch or with another value; `since`: the programs by their first epoch."""
    seen, recent = deploys.read(output / "seen"), deploys.read(output / "recent")
    kept, out, high, now, emitted = defaultdict[int, tuple[int, int]](lambda: (0, 0)), list[str](), -1, since[0], 0
    for epoch in range(min(seen), max(seen) + 1):
        before, now = now, since[max(first for first in since if first <= epoch)]
        if before != now:
            kept.update({seq: (ts, 10 * v + 1 if now == "tenfold" else v) for seq, (ts, v) in kept.items()})
        seqs = seen[epoch]["seq"].to_numpy() if epoch in seen else []
        for seq, ts in zip(seqs, SmqGenerator(rate=deploys.PACE).times(seqs) if len(seqs) else [], strict=True):
            kept[int(seq)] = int(ts), int(seq) * (10 if now == "tenfold" else 1)
            high = max(high, int(ts))
        over = [seq for seq, (ts, _) in kept.items() if ts + LIFE_MS <= high]
        expected = Counter((seq, kept.pop(seq)[1]) for seq in over)
        there = Counter((row["seq"], row["v"]) for row in recent[epoch].to_pylist()) if epoch in recent else Counter()
        emitted += len(over)
        if there != expected:
            out.append(
                f"epoch {epoch}, {now}: {list((there - expected).items())[:3]}, not {list((expected - there).items())[:3]}"
            )
    return out[:5] if emitted > 1000 else [f"{emitted} numbers were emitted"]


@pytest.mark.turns
def test_rows_of_a_process_are_upgraded_while_workers_and_drivers_die(tmp_path: Path) -> None:
    files = {name: deploys.program(tmp_path, name, 1, TEXTS[name]) for name in ("whole", "tenfold")}
    since, texts = {0: "whole"}, list[str]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(10)
        texts.append(deploys.ferry(running, "deploy", "numbers", files["tenfold"], "--check")[1])
        for number, victim in enumerate(("worker-0", "driver", "worker-1", "")):
            name = ("tenfold", "whole")[number % 2]
            runner.ask(running, "POST", "/move", {"vnodes": [0, 1, 2, 3], "instance": f"{number % 2}.0"})
            if number == 2:
                running.signal("worker-0", signal.SIGKILL)
            since[deploys.deploy(running, files[name])] = name
            if victim:
                running.signal(victim, signal.SIGKILL)
            running.await_epoch(max(since) + 40)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=TEXTS["whole"]), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert re.search(r"recent +altered +keeps its state; upgrade\(\) of its class derives", texts[0]), texts
    assert len(since) == 5 and wrong(result.output, since) == [], (since, result.story())


def test_an_upgrade_that_fails_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    files = {name: deploys.program(tmp_path, name, 1, TEXTS[name]) for name in ("fails", "no", "tenfold")}
    since, answers = {0: "whole"}, dict[str, tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(10)
        for name in ("fails", "no"):
            answers[name] = deploys.ferry(running, "deploy", "numbers", files[name])
        since[deploys.deploy(running, files["tenfold"])] = "tenfold"
        running.await_epoch(max(since) + 20)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=TEXTS["whole"]), tmp_path, meanwhile=changes)
    assert result.code == 0 and wrong(result.output, since) == [], (since, result.story())
    code, text = answers["fails"]
    assert code == 2 and "user code: ZeroDivisionError: division by zero (job.py:" in text, text
    assert "upgrade() of Recent, operator 'recent'" in text, text
    assert answers["no"][0] == 2 and "table whole was removed" in answers["no"][1], answers


@pytest.mark.turns
def test_an_upgrade_that_fails_while_the_program_waits_is_refused_then(tmp_path: Path) -> None:
    """All workers have derived their rows before; a later record brings a row that the class cannot take."""
    files = {name: deploys.program(tmp_path, name, 1, TEXTS[name]) for name in ("late", "tenfold")}
    since, shown = {0: "whole"}, list[str]()

    def is_refused(running: runner.Running) -> bool:
        shown.append(deploys.ferry(running, "versions", "numbers", "--json")[1])
        return "ValueError: a later row" in shown[-1]

    def changes(running: runner.Running) -> None:
        running.await_epoch(10)
        code, text = deploys.ferry(running, "deploy", "numbers", files["late"], "--at-epoch", 10**6, "--wait", 0)
        assert code == 1, text
        running.await_that(lambda: is_refused(running), "refusal", 120)
        since[deploys.deploy(running, files["tenfold"])] = "tenfold"
        running.await_epoch(max(since) + 20)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=TEXTS["whole"]), tmp_path, meanwhile=changes)
    assert result.code == 0 and wrong(result.output, since) == [], (since, shown[-1:], result.story())
