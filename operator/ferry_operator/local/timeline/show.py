"""The output of `ferry run`, `status` and `top`: progress while a job runs, tables of its state, the summary at the end.

It only formats values: it sends no request and decides nothing.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Container
from contextlib import suppress
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ferry.contract.latency import LatencyQuantiles
from ferry.contract.one_line import one_line
from ferry.contract.status import CheckpointStatus, Status
from ferry_operator.local.timeline.console import PlainConsole
from ferry_operator.local.timeline.timeline import FEW_EPOCHS, Summary
from ferry_operator.local.view import RunView

Record = dict[str, Any]

STYLES = (
    dict.fromkeys(("lost", "malformed", "warning"), "yellow")
    | dict.fromkeys(("halt", "degraded", "ended"), "red")
    | dict.fromkeys(("action", "deployed", "deploy-refused", "taken-back", "shadow"), "cyan")
)
"""Colors of events, by the kind of their record."""

LIVE_SECONDS = 3600.0
"""Event time that is further behind the clock belongs to old input."""

RECENT_SECONDS = 300.0
"""`status` shows the reason of a process's end for this time, after a new process has replaced it."""

AGAIN_SECONDS = {"malformed": math.inf, "output": math.inf, "ended": 60.0}
"""By kind of record: time in which the same text is shown only once."""

INDENT = 10
"""Indent of the second line of an event: the width of the time in its first line."""

MOVES_SHOWN = 10
"""Moves in a summary; a plan with one step per virtual node has one move per virtual node."""

NUMBERS = re.compile(r"\w*\d\w*")

LINE_SECONDS = 1.0
"""Without a terminal, a line of progress is printed at most this often."""


class ProgressView:
    """Shows views during a run; use it as a context."""

    def __init__(self, console: PlainConsole, quiet: bool, rows: PlainConsole | None = None) -> None:
        """`rows`: the console for rows of console sinks."""
        self._console = console
        self._rows = rows or console
        self._quiet = quiet
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal and not quiet else None
        )
        self._last_event = "starting"
        self._shown_at: dict[str, float] = {}
        """by event that is not always shown: when it was shown last"""
        self._printed = 0.0
        self._shown: tuple[object, ...] = ()
        """values of the last line of progress"""
        self._causes: set[str] = set()
        """texts of problems; a halt with one of these texts is not printed again"""
        self._problems: frozenset[str] = frozenset()
        """problems that a line has shown"""

    def __enter__(self) -> ProgressView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal is closed
                self._live.stop()

    def __call__(self, view: RunView) -> None:
        """Show one view."""
        for warning in view.warnings:
            self._console.say(f"warning: {one_line(warning)}", "yellow", INDENT)
        for record in view.records:
            if record["kind"] == "printed":
                on_terminal = self._live is not None and self._rows.is_terminal  # rich prints them above the panel
                (self._console if on_terminal else self._rows).print(Text(record["text"]), soft_wrap=True)
        if self._quiet:
            return
        for record in view.records:
            event = event_text(record)
            if event and self._is_news(event, record):
                self._last_event = event
                self._say(event, record)
                if record["kind"] == "degraded":
                    self._causes.add(record["text"])
                    self._problems |= {_words(record["text"])}
        now = time.monotonic()
        if self._live is not None:
            if now - self._printed >= 0.2:
                self._printed = now
                self._live.update(self._panel(view), refresh=True)
        elif now - self._printed >= LINE_SECONDS:
            status, problems = view.status, self._problems
            values: tuple[object, ...] = (
                view.silent is None,
                view.ending,
                sum(worker.running for worker in view.workers),
            )
            if status is not None:
                waits = status.epoch < 0 and status.phase == "idle"
                problems = frozenset(_words(problem.text) for problem in status.problems)
                rests = status.settled or status.epoch < 0  # the line does not show it before the first epoch
                values = status.epoch, waits, rests, problems, len(view.workers)
            over = status is None and view.ending  # events have shown the end
            if values != self._shown and not over:  # a new lag alone is no reason for a line
                self._printed, self._shown = now, values
                self._console.print(Text(progress_line(view, self._problems)), soft_wrap=True)
                self._problems = problems

    def _is_news(self, event: str, record: Record) -> bool:
        """Whether to show an event: repeated texts are rare, such as one a minute for an instance that cannot start."""
        if record["kind"] == "halt" and record.get("text") in self._causes:
            return False
        again = AGAIN_SECONDS.get(record["kind"])
        now = float(record.get("t", 0.0))
        if again is None or event not in self._shown_at or now - self._shown_at[event] > again:
            self._shown_at |= {event: now} if again is not None else {}
            return True
        return False

    def _say(self, event: str, record: Record) -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.get("t", time.time())))
        self._console.say(f"{stamp}  {one_line(event)}", _style(record), INDENT)

    def _panel(self, view: RunView) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(view.settings.job, style="bold"), progress_line(view))
        table.add_row("", Text(f"last: {self._last_event}", style="dim"))
        return table


def progress_line(view: RunView, known: Container[str] = ()) -> str:
    """One line: epoch, speed, lag or progress, watermark, workers, moves. `known`: problems whose text was shown before."""
    status = view.status
    running = sum(worker.running for worker in view.workers)
    workers = f"workers {running}/{view.wanted.size.workers}"
    if status is None:
        return f"{no_answer(view.silent, view.ending) or 'starting Spark ...'}  {workers}"
    degraded = ["degraded" if _words(p.text) in known else f"degraded: {p.text}" for p in status.problems]
    if status.epoch < 0 and not status.progress.rows:
        first = "first epoch: loads the kernels, and compiles them once on a machine"
        if status.phase == "idle":
            waits = any(problem.reason == "SinkFailing" for problem in status.problems)
            first = "waiting for a sink" if waits else "waiting for records"
        return "  ".join([first, workers, *degraded])
    parts = [
        f"epoch {status.epoch}",
        f"{status.load.rows_per_second:,.0f} rows/s",
        lag_text(status, view.settings.events, time.time()),
        f"watermark {watermark_text(status.progress.watermark)}",
        f"p99 {_seconds(status.load.latency.p99)}" if status.load.latency is not None else "",
        workers,
    ]
    learning, (begun, steps) = sum(len(learners) for _, learners in status.groups), status.moves.steps
    at = f", step {begun} of {steps}" if steps else ""
    if learning:
        parts.append(f"warming {learning}{at}")
    elif status.moves.prepared:
        parts.append(status.moves.prepared)
    elif not status.settled and status.desired:
        parts.append(f"moving{at}")
    parts += boundary_texts(status)[:1]
    if not status.journal_up:
        parts.append("journal down")
    return "  ".join(part for part in [*parts, *degraded] if part)


def no_answer(silent: float | None, ending: bool) -> str:
    """The text for a driver that does not answer any more; empty: it has never answered."""
    if ending:
        return "ending"
    return "" if silent is None else f"driver does not answer (last answer {silent:,.0f} s ago)"


def _words(text: str) -> str:
    """The text without numbers: a new count or duration is no news."""
    return NUMBERS.sub("", text)


def boundary_texts(status: Status) -> list[str]:
    """The virtual nodes that wait for the end of windows: '5: 0.0 until 12:01:00, 2.1 from then'."""
    alike: dict[tuple[str, str, int | None], list[str]] = {}
    for wait in status.moves.boundaries:
        alike.setdefault((wait.origin, wait.target, wait.begins), []).append(str(wait.vnode))
    until = {at: watermark_text(at) if at is not None else "its windows end" for _, _, at in alike}
    return [
        f"{' '.join(vnodes)}: {origin} until {until[at]}, {target} from then"
        for (origin, target, at), vnodes in alike.items()
    ]


def lag_text(status: Status, events: int | None, now: float) -> str:
    """The progress of a bounded job, or the lag of an unbounded job: the distance of its watermark from the clock.

    Progress is no share of the events: a job reads only the events of its streams, and their number is not known.
    """
    if events:
        return f"{status.progress.rows:,} rows read (the input ends after {events:,} events)"
    if status.progress.watermark is None:
        return ""
    lag = now - status.progress.watermark / 1000
    if lag < LIVE_SECONDS:
        return f"lag {lag:,.1f} s" if lag > -365 * 86_400 else ""
    return f"event time is {lag / 3600:,.0f} h behind" if lag < 365 * 86_400 else ""


def watermark_text(watermark: int | None) -> str:
    """A watermark as event time; '-' before any input, 'end' after the last input."""
    if watermark is None or watermark < -(1 << 60):
        return "-"
    if watermark > 1 << 60:
        return "end"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(watermark / 1000)) + f".{watermark % 1000:03d}"
    except (ValueError, OverflowError):
        return str(watermark)


def event_text(record: Record) -> str | None:
    """A record of the timeline as a line for users; None for records of frequent events."""
    match record["kind"]:
        case "groups":
            counts = Counter(change[1] for change in record["changes"])
            targets = sorted({str(change[2]) for change in record["changes"]})
            names = ", ".join(targets[:6]) + (", ..." if len(targets) > 6 else "")
            return "groups: " + ", ".join(f"{n} {change}" for change, n in counts.items()) + f" ({names})"
        case "action":
            return str(record.get("text", ""))
        case "ready":
            text = record.get("text") or f"generation {record.get('generation')}, epoch {record.get('epoch')}"
            return f"driver ready: {text}"
        case "finished":
            return f"finished: {record.get('text') or str(record.get('rows', 0)) + ' rows'}"
        case "ended" if "process" in record:
            return f"{record['process']} ended: {record.get('text', '')}"
        case "lost" | "halt" | "degraded" | "mended" | "malformed" | "warning" | "output":
            return f"{record['kind']}: {record.get('text', '')}"
        case "deployed" | "deploy-refused" | "taken-back" | "shadow":
            return f"{record['kind'].replace('-', ' ')}: {record.get('text', '')}"
    return None


def _style(record: Record) -> str:
    return STYLES.get(record["kind"], "")


def summary_table(summary: Summary, job: str) -> Table:
    """The summary of a run as a table."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(job, style="bold"), "")
    table.add_row("epochs", f"{summary.epochs:,} in {summary.seconds:.1f} s")
    table.add_row("rows", f"{summary.rows:,} ({summary.rows_per_second:,.0f} rows/s)")
    table.add_row("late, malformed", f"{summary.late:,}, {summary.malformed:,}")
    table.add_row("epoch time", epoch_text(summary))
    if summary.latency is not None:
        table.add_row("record latency", latency_text(summary.latency))
    for move in summary.moves[:MOVES_SHOWN]:
        pause = f"pause {_seconds(move.pause)}" if move.pause is not None else "no epoch meanwhile"
        table.add_row(
            "move",
            f"{len(move.vnodes)} vnodes, {move.joined} copies warmed, {move.switchovers} switched over, "
            f"in {_seconds(move.end - move.begin)}: {pause} (median between epochs {_seconds(summary.gap_median)})"
            + (f", {move.aborted} aborted" if move.aborted else ""),
        )
    if len(summary.moves) > MOVES_SHOWN:
        pauses = [move.pause for move in summary.moves if move.pause is not None]
        longest = f", the longest pause {_seconds(max(pauses))}" if pauses else ""
        table.add_row("", f"and {len(summary.moves) - MOVES_SHOWN} more{longest}; --json prints them all")
    for recovery in summary.recoveries:
        took = f"next epoch after {_seconds(recovery.seconds)}" if recovery.seconds is not None else "no epoch followed"
        table.add_row("recovery", f"{recovery.text}: {took}")
    for text in summary.degraded:
        table.add_row("degraded", text)
    for text in summary.warnings:
        table.add_row("warning", text)
    return table


def epoch_text(summary: Summary) -> str:
    """Times of epochs. Without quantiles for a few epochs, because the first epoch would dominate them."""
    if summary.epochs >= FEW_EPOCHS:
        return (
            f"median {_seconds(summary.epoch_median)}, p90 {_seconds(summary.epoch_p90)}, "
            f"p99 {_seconds(summary.epoch_p99)}, longest {_seconds(summary.epoch_max)}"
        )
    first = f"{_seconds(summary.epoch_first)} the first, which loads the kernels"
    return first if summary.epochs < 2 else f"{first}; median {_seconds(summary.epoch_median)}"


def latency_text(latency: LatencyQuantiles) -> str:
    """Quantiles of the time from the creation of records to the sinks."""
    words = [f"{name} {_seconds(getattr(latency, name))}" for name in ("p50", "p90", "p99", "p999", "max")]
    return f"{', '.join(words)} ({latency.records:,} records)"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def job_table(document: Record) -> Table:
    """The answer of `GET /job` as a table."""
    spec, wire = document["spec"], document["status"]
    status = Status.from_wire(wire) if wire else None
    table = Table.grid(padding=(0, 2))
    table.add_row(Text(document["job"], style="bold"), f"{document['run']}, {document['phase']}")
    if status is not None:
        for kind, problems in (("degraded", status.problems), ("warning", status.notices)):
            for problem in problems:
                table.add_row(kind, one_line(problem.text))
        mode = f", {status.progress.epoch_mode}" if status.progress.epoch_mode else ""
        table.add_row("epoch", f"{status.epoch} ({status.phase}), generation {status.generation}{mode}")
        if (program := status.progress.program)[0] > 1:
            table.add_row("program", f"{program[0]}, since epoch {program[1]}")
        speed = f"{status.load.rows_per_second:,.0f} rows/s, epoch {_seconds(status.load.epoch_seconds)}"
        table.add_row(
            "speed", "  ".join(x for x in (speed, lag_text(status, document.get("events"), time.time())) if x)
        )
        if status.load.latency is not None:
            table.add_row("record latency", latency_text(status.load.latency))
        table.add_row("watermark", watermark_text(status.progress.watermark))
        progress = status.progress
        table.add_row("rows", f"{progress.rows:,}, late {progress.late:,}, malformed {progress.malformed:,}")
        table.add_row("state", _state_text(status))
        if (why := document.get("balance", {}).get("reason")) is not None:
            table.add_row("balance", f"{document['balance']['mode']}: {why}")
        for number, text in enumerate(boundary_texts(status)):
            table.add_row("" if number else "at windows", text)
        if status.checkpoint is not None:
            table.add_row("checkpoint", _checkpoint_text(status.checkpoint, time.time()))
    else:
        why = no_answer(document.get("silent"), document.get("ending", False)).removeprefix("driver ")
        table.add_row("driver", why or "is starting, and does not answer yet")
    for process, end in sorted(document.get("ends", {}).items(), key=lambda item: -item[1]["at"]):
        if (status is None and process == "driver") or time.time() - end["at"] < RECENT_SECONDS:
            at = time.strftime("%H:%M:%S", time.localtime(end["at"]))
            table.add_row("last end", f"{process}, at {at}: {one_line(end['why'])}")
    table.add_row("workers", f"{spec['workers']} x {spec['instancesPerWorker']} instances, {spec['replicas']} replicas")
    if (scaling := document.get("autoscale")) is not None:
        table.add_row("autoscale", f"{scaling['mode']}, {scaling['reason']}: {scaling['message']}")
    for worker in document["workers"]:
        table.add_row(f"  worker {worker['index']}", _worker_text(worker, document["drains"], status))
    table.add_row("directory", document["directory"])
    return table


def _state_text(status: Status) -> str:
    learning = sum(len(learners) for _, learners in status.groups)
    text = f"{len(status.groups)} virtual nodes, " + (
        "settled" if status.settled else f"moving, {learning} copies warming"
    )
    size = sum(load[1] for load in status.load.vnodes)
    text += f", {size / 1e6:,.1f} MB" if size else ""
    return text + ("" if status.journal_up else ", journal down")


def _checkpoint_text(checkpoint: CheckpointStatus, now: float) -> str:
    under_way = ", another is in progress" if checkpoint.under_way else ""
    if checkpoint.number is None:
        return f"none yet{under_way}"
    name = f" ({checkpoint.name})" if checkpoint.name else ""
    age = f", {max(0.0, now - checkpoint.at):,.0f} s ago" if checkpoint.at is not None else ""
    size = f"{checkpoint.total_bytes / 1e6:,.1f} MB"
    return f"{checkpoint.number}{name} as of epoch {checkpoint.epoch}{age}, {size}{under_way}"


def _worker_text(worker: Record, drains: list[int], status: Status | None) -> str:
    words = ["running" if worker["running"] else "not running"]
    if worker["index"] in drains:
        words.append("drained")
    if status is not None:
        mine = f"{worker['index']}."
        leads = sum(bool(g) and g[0].startswith(mine) for g, _ in status.groups)
        copies = sum(any(i.startswith(mine) for i in g[1:]) for g, _ in status.groups)
        learns = sum(any(i.startswith(mine) for i in learners) for _, learners in status.groups)
        alive = sum(i.startswith(mine) for i in status.alive)
        rate = sum(load[0] for (g, _), load in zip(status.groups, status.load.vnodes) if g and g[0].startswith(mine))
        words += [f"{alive}/{worker['instances']} instances", f"leads {leads}", f"copies {copies}"]
        words += [f"warming {learns}"] if learns else []
        words += [f"{rate:,.0f} rows/s"] if rate else []
    return ", ".join(words)
