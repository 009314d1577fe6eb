"""`make demo`: a stateful stream job is scaled out, is scaled in and loses a worker while it runs; its result is right.

The job is NEXMark's NBQ5 (bids per auction in sliding windows of 60 s every 10 s). An independent program, the oracle,
computes the same result in one pass without any failure; both must be equal as multisets. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bench.parts.demo import oracle
from bench.shared.ferry_job import RESULTS, ROOT, FerryJob, RunFailed, work_directory
from ferry_operator.local.timeline import timeline
from ferry_operator.local.timeline.plot import draw

SEED = 7
WARM_UP_EPOCHS = 2
"""Epochs in which Spark and the compiled kernels are loaded: printed, but not in the picture and not in medians."""

Record = dict[str, Any]

STORY = """\
[bold]Ferry[/bold] runs stateful stream jobs on Apache Spark and moves their state while they run.

What you will see, in about a minute and a half:
 1. a job counts bids per auction in sliding windows, on [bold]2 workers[/bold];
    each part of its state is on both workers
 2. epoch {out}: [cyan]4 workers[/cyan] are requested; copies of state are made while
    the job runs, then the copies become leaders
 3. epoch {back}: back to [cyan]2 workers[/cyan]; the state of the other two is moved
    away before they are released
 4. epoch {kill}: [red]worker 1 is killed with -9[/red] in the middle of an epoch;
    copies of its state on other workers become leaders
 5. the result is compared, row by row, with the result of an independent
    program that never failed"""


def main() -> int:
    """Parse arguments and run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=3_000_000, help="events of the stream (92 %% of them are bids)")
    parser.add_argument("--epochs", type=int, default=60, help="number of epochs")
    parser.add_argument("--picture", type=Path, default=RESULTS / "demo.png")
    parser.add_argument("--keep", action="store_true", help="keep the files of the run")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    try:
        with work_directory("demo", arguments.keep) as work:
            return Demo(arguments, work, console).run()
    except RunFailed as failed:
        console.print(Text(f"the demo failed: {failed}", style="red"))
        return 1
    except KeyboardInterrupt:
        return 130


class Demo:
    """One run of the demo."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        self.events, self.epochs, self.picture = arguments.events, arguments.epochs, arguments.picture
        self.work, self.console = work, console
        # Workers take some seconds to start; the epochs between two acts leave time for that on a slow machine.
        self.out, self.back, self.kill = (
            max(self.epochs * share // 100, n) for share, n in ((13, 3), (45, 6), (75, 9))
        )
        self.watermark: int | None = None
        self.rows = self.done = self.fired = 0

    def run(self) -> int:
        """All acts; returns the exit code."""
        started = time.monotonic()
        acts = {"out": self.out, "back": self.back, "kill": self.kill}
        self.console.print(Panel(STORY.format(**acts), border_style="blue", padding=(1, 2)))
        job = FerryJob(
            ROOT / "examples" / "nbq5.yaml", self.work / "job", events=self.events,
            at=[f"epoch={self.out} workers=4", f"epoch={self.back} workers=2", f"epoch={self.kill}:prepare kill-worker=1"],
            sets=[f"epoch.maxRows={-(-self.events // self.epochs)}", "epoch.interval=800ms", f"pipeline.args.seed={SEED}"],
        )  # fmt: skip
        self.console.print(Text(_shown(job.command), style="dim"))
        with job:
            self._follow(job)
        summary = timeline.summarize(_steady(job.records))
        self._numbers(job.records, summary)
        self._draw(job.records)
        verdict = self._check(job.output)
        happened = self._happened(job.records)
        self.console.print(
            Text(f"missing {verdict.missing}, unexpected {verdict.unexpected} (of {verdict.rows:,} rows)")
        )
        if verdict.equal and happened:
            self.console.print(Text("EQUAL: moving and losing state changed nothing in the result", style="bold green"))
        elif not verdict.equal:
            self.console.print(Text(f"NOT EQUAL\n{verdict.text}", style="bold red"))
        self.console.print(Text(f"timeline: {_near(self.picture)}   ({time.monotonic() - started:.0f} s in all)"))
        return 0 if verdict.equal and happened else 1

    # ---- while it runs
    def _follow(self, job: FerryJob) -> None:
        """Print the events of the timeline as they happen."""
        bar = Progress(
            TextColumn("{task.description}"), BarColumn(40), TaskProgressColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[speed]}"), console=self.console,
        )  # fmt: skip
        task = bar.add_task("starting Spark, Redis and 2 workers", total=self.epochs, speed="")
        begin = time.time()

        def show(new: list[Record]) -> None:
            for record in new:
                text = self._sentence(record)
                if text is not None:
                    self.console.print(Text(f"{record['t'] - begin:6.1f} s  ", style="dim") + text)
                if record["kind"] == "epoch":
                    self.rows, self.done = self.rows + record["rows"], record["epoch"] + 1
                    self.fired += record["fired"]
                    seconds = max(record["end"] - record["begin"], 1e-3)
                    bar.update(
                        task, completed=min(self.done, self.epochs), description=f"epoch {record['epoch']:3d}",
                        speed=f"{self.rows:,} bids, {self.fired:,} window rows, this epoch {seconds * 1000:,.0f} ms",
                    )  # fmt: skip

        with Live(Group(bar), console=self.console, refresh_per_second=5, transient=True):
            job.finish(600, show)

    def _sentence(self, record: Record) -> Text | None:
        kind, text = record["kind"], str(record.get("text", ""))
        if kind == "ready":
            return Text("the job is ready: 64 virtual nodes, each on two workers")
        if kind == "epoch" and record["epoch"] == 0:
            return Text("first epoch done (Spark and the compiled kernels are loaded)")
        if kind == "action" and text.startswith("workers="):
            return Text(f"{text[8:]} workers are requested; the job goes on", style="cyan")
        if kind == "action" and text.startswith("kill-worker"):
            return Text(f"kill -9 of worker {text[12:]}", style="bold red")
        if kind == "action" and text.startswith("release"):
            return Text(f"{text}: it has no state any more", style="cyan")
        if kind == "action" and text.startswith("restart worker"):
            return Text(f"{text}", style="cyan")
        if kind == "finished":
            return Text(f"end of the input: {self.rows:,} bids in {self.done} epochs")
        if kind == "halt":
            return Text(f"the job stopped: {text}", style="bold red")
        if kind == "groups":
            return _groups_text(record["changes"])
        return None

    # ---- afterwards
    def _numbers(self, records: list[Record], summary: timeline.Summary) -> None:
        usual = summary.gap_median
        table = Table(
            title=f"\nThe longest time without output (epochs usually end {_ms(usual)} apart)", title_justify="left",
            title_style="bold", box=None, pad_edge=False, caption_justify="left",
            caption="took: duration of the move; silence: longest time without an end of an epoch; extra: above usual",
        )  # fmt: skip
        table.add_column("what")
        for name in ("copies", "new leaders", "took", "silence", "extra"):
            table.add_column(name, justify="right", style="bold" if name in ("silence", "extra") else "")
        for move in summary.moves:
            if move.pause is None:
                continue
            cause = _cause(records, move.begin)
            what = (
                f"move to {cause[8:]} workers"
                if cause.startswith("workers=")
                else "worker 1 is back: its copies are made again"
            )
            extra = max(move.pause - usual, 0.0)
            table.add_row(
                what, str(move.joined), str(move.switchovers), _ms(move.end - move.begin), _ms(move.pause), _ms(extra)
            )
        for recovery in summary.recoveries:
            took = "no epoch followed" if recovery.seconds is None else _ms(recovery.seconds)
            table.add_row("worker 1 is killed: until the next epoch ends", "", "", took, "", "")
        self.console.print(table)
        self.console.print()

    def _draw(self, records: list[Record]) -> None:
        self.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(_steady(records), self.picture, "nbq5")

    def _check(self, output: Path) -> oracle.Verdict:
        with self.console.status("the oracle computes the same result in one pass"):
            inputs = self.work / "oracle"
            oracle.generate("nexmark", self.events, inputs, seed=SEED)
            expected = oracle.expect("nbq5", inputs)
            return oracle.compare(expected, str(output / "nbq5" / "*" / "*.parquet"))

    def _happened(self, records: list[Record]) -> bool:
        """Whether all announced moves and the recovery were done before the input ended."""
        moves = timeline.moves_of(records)
        switched = [_cause(records, m.begin) for m in moves if m.switchovers]
        lacking = [w for w in ("workers=4", "workers=2") if w not in switched]
        lacking += [] if any(r.seconds for r in timeline.recoveries_of(records)) else ["the recovery"]
        if lacking:
            text = f"the input ended before {', '.join(lacking)} had an effect; try more --epochs and --events"
            self.console.print(Text(text, style="bold red"))
        return not lacking


def _steady(records: list[Record]) -> list[Record]:
    """All records without the warm-up epochs and the last epoch, which flushes."""
    last = max((r["epoch"] for r in records if r["kind"] == "epoch"), default=0)
    return [r for r in records if r["kind"] != "epoch" or WARM_UP_EPOCHS <= r["epoch"] < last]


def _cause(records: list[Record], t: float) -> str:
    """The last action before a move began."""
    words = ("workers=", "kill-", "drain=", "move=")
    causes = [r["text"] for r in records if r["kind"] == "action" and r["t"] <= t and r["text"].startswith(words)]
    return str(causes[-1]) if causes else "start"


def _groups_text(changes: list[list[Any]]) -> Text | None:
    what = [c[1] for c in changes]
    leaders = sorted({str(c[2]) for c in changes if c[1] == "switched"})
    if "promoted" in what:
        return Text(
            f"{what.count('promoted')} virtual nodes have lost their leader; copies are promoted", style="green"
        )
    if "switched" in what:
        return Text(f"switchover: {', '.join(leaders)} now lead {what.count('switched')} virtual nodes", style="green")
    if "joined" in what:
        return Text(f"warming {what.count('joined')} copies while the job runs", style="yellow")
    return None


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def _near(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _shown(command: list[str]) -> str:
    """The command as a user would type it."""
    words = ["ferry", *command[3:]]
    return " ".join(f"'{w}'" if " " in w else w.replace(f"{ROOT}/", "") for w in words) + "\n"


if __name__ == "__main__":
    sys.exit(main())
