"""What a terminal shows of text that others wrote: all of it, as lines of ours, and nothing that acts on the terminal."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

from ferry.contract.status import LoadStatus, MovesStatus, ProgressStatus
from ferry_operator.job.size import Size
from ferry_operator.local.timeline.console import PlainConsole
from ferry_operator.local.timeline.show import ProgressView, job_table, progress_line

HOSTILE = "[red]db[/red] :smile: \x1b]0;PWNED\x07\x1b[2J\x9b31m down \x1b]52;c;eA==\x1b\\\n00:00:00  finished: 999 rows"
CAUSE = "user code: ValueError: " + "a long story, " * 12 + "and its end"


class View:
    """As the supervisor gives it, of which records alone are looked at."""

    def __init__(self, *records: dict[str, Any]) -> None:
        self.records, self.warnings, self.status = list(records), list[str](), None


def shown(terminal: bool, *records: dict[str, Any], times: int = 1) -> str:
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=terminal, width=80, color_system=None, legacy_windows=False)
    show = ProgressView(console, False)
    show._printed = float("inf")  # events alone
    for _ in range(times):
        show(View(*({"t": 0.0, **one} for one in records)))  # type: ignore[arg-type]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()) if terminal else out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_text_of_others_makes_no_line_and_no_escape(terminal: bool) -> None:
    text = shown(terminal, {"kind": "degraded", "text": HOSTILE})
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    assert "[red]db[/red] :smile:" in text and not re.search(r"^\S*00:00:00  finished", text, re.MULTILINE)
    assert r"\x1b]0;PWNED\x07" in "".join(text.split())


def test_a_cause_is_shown_whole_in_eighty_columns() -> None:
    text = shown(True, {"kind": "degraded", "text": CAUSE})
    assert " ".join(text.split()).endswith(f"degraded: {CAUSE}")
    assert max(map(len, text.splitlines())) <= 80 and all(line.startswith(" " * 10) for line in text.splitlines()[1:])
    assert shown(False, {"kind": "degraded", "text": CAUSE}).count("\n") == 1, "a file is searched by lines"


def test_a_halt_is_told_where_nothing_has_told_it() -> None:
    degraded, halt = ({"kind": kind, "text": CAUSE} for kind in ("degraded", "halt"))
    for records, line in (((degraded, halt), f"degraded: {CAUSE}"), ((halt,), f"halt: {CAUSE}")):
        assert shown(False, *records).endswith(f"  {line}\n") and shown(False, *records).count("\n") == 1


def test_rows_are_no_share_of_the_events_that_are_generated() -> None:
    view = seen(3, rows=16_000)
    view.settings.events = 500_000
    assert "16,000 rows read (the input ends after 500,000 events)" in progress_line(view) and "%" not in progress_line(
        view
    )


def test_the_first_malformed_record_of_a_source_is_told_once() -> None:
    one, other = {"kind": "malformed", "text": "no number in a:1"}, {"kind": "malformed", "text": "no number in b:1"}
    text = shown(False, one, other, one, times=3)
    assert text.count("malformed: no number in a:1") == text.count("malformed: no number in b:1") == 1


def test_an_instance_that_ends_badly_is_told() -> None:
    text = shown(
        False,
        {"kind": "ended", "process": "instance 0.0", "text": "Exhausted: lock"},
        {"kind": "ended", "outcome": "x"},
    )
    assert text.endswith("  instance 0.0 ended: Exhausted: lock\n") and text.count("\n") == 1


def test_an_instance_that_cannot_begin_is_told_once_a_minute() -> None:
    ends = [{"kind": "ended", "process": "instance 0.0", "text": "no room", "t": float(t)} for t in range(0, 100, 5)]
    assert shown(False, *ends).count("no room") == 2


@pytest.mark.parametrize(
    ("epoch", "rows", "phase", "words"),
    [
        (-1, 0, "ingest", "first epoch: loads the kernels, and compiles them once on a machine  workers 1/1"),
        (-1, 0, "idle", "waiting for records  workers 1/1"),
        (0, 5, "idle", "epoch 0  0 rows/s"),
    ],
)
def test_what_takes_long_at_the_start_is_told(epoch: int, rows: int, phase: str, words: str) -> None:
    assert progress_line(seen(epoch, rows, phase)).startswith(words)


def seen(
    epoch: int, rows: int = 0, phase: str = "idle", *problems: tuple[str, str], status: bool = True, **more: Any
) -> Any:
    """A view of a run with one worker; `problems`: (reason, text)."""
    one = SimpleNamespace(
        epoch=epoch, phase=phase, groups=(), settled=True, desired=0, journal_up=True,
        progress=ProgressStatus(rows=rows), load=LoadStatus(), moves=MovesStatus(),
        problems=[SimpleNamespace(reason=reason, text=text) for reason, text in problems],
    )  # fmt: skip
    return SimpleNamespace(
        status=one if status else None,
        workers=[SimpleNamespace(running=True)],
        wanted=SimpleNamespace(size=Size(1, 1)),
        settings=SimpleNamespace(events=None),
        **{"records": [], "warnings": [], "silent": None, "ending": False, **more},
    )


def lines(*views: Any) -> list[str]:
    """Of progress, in a file, for views that come a second and more apart."""
    out = io.StringIO()
    show = ProgressView(PlainConsole(file=out), False)
    for view in views:
        show._printed = float("-inf")
        show(view)
    return out.getvalue().splitlines()


def test_a_driver_that_was_ready_starts_no_second_time() -> None:
    silent, ending = seen(3, status=False, silent=7.0), seen(3, status=False, silent=1.0, ending=True)
    told = lines(seen(-1, status=False), seen(3), silent, seen(3, status=False, silent=9.0), seen(4), ending)
    assert [line.partition("  ")[0] for line in told] == [
        "starting Spark ...", "epoch 3", "driver does not answer (last answer 7 s ago)", "epoch 4",
    ]  # fmt: skip


def test_a_status_of_a_run_that_ends_says_that() -> None:
    assert progress_line(seen(3, status=False, silent=1.0, ending=True)) == "ending  workers 1/1"


def test_what_is_degraded_is_told_once_in_a_file() -> None:
    away, gone = (("SinkFailing", text) for text in ("no database, try 3", "no table"))
    again = ("SinkFailing", "no database, try 4")
    views = [
        seen(1, 0, "idle", away),
        seen(1, status=False, silent=6.0),
        seen(1, 0, "idle", again),
        seen(2, 0, "idle", gone),
    ]
    told = lines(*views)
    assert [line.rpartition("  ")[2] for line in told] == [
        "degraded: no database, try 3", "workers 1/1", "degraded", "degraded: no table",
    ]  # fmt: skip
    event = seen(1, 0, "idle", away, records=[{"kind": "degraded", "t": 0.0, "text": away[1]}])
    assert "\n".join(lines(event)).count("no database") == 1


def test_the_first_epoch_is_announced_once() -> None:
    moving = seen(-1, 0, "ingest")
    moving.status.settled = False
    assert len(lines(moving, seen(-1, 0, "ingest"))) == 1


def test_who_waits_for_a_sink_does_not_wait_for_records() -> None:
    assert progress_line(seen(-1, 0, "idle", ("SinkFailing", "no folder"))).startswith(
        "waiting for a sink  workers 1/1"
    )


@pytest.mark.parametrize("quiet", [False, True])
def test_rows_of_console_sinks_are_results(quiet: bool) -> None:
    progress, rows = io.StringIO(), io.StringIO()
    show = ProgressView(PlainConsole(file=progress), quiet, PlainConsole(file=rows))
    show._printed = float("inf")
    show(seen(0, records=[{"kind": "printed", "t": 0.0, "text": '-- epoch 0: 1 rows\n   {"n": "[b]\x1b[2J"}'}]))
    assert rows.getvalue() == '-- epoch 0: 1 rows\n   {"n": "[b]\\x1b[2J"}\n' and not progress.getvalue()


def test_a_file_has_what_is_awaited_at_the_start() -> None:
    out = io.StringIO()
    show = ProgressView(PlainConsole(file=out), False)
    show._printed = float("-inf")
    view: Any = View()
    view.workers, view.wanted = [SimpleNamespace(running=True)], SimpleNamespace(size=Size(2, 1))
    view.silent, view.ending = None, False
    for _ in range(3):
        show(view)
    assert out.getvalue() == "starting Spark ...  workers 1/2\n"


def test_tables_take_text_as_it_is() -> None:
    out = io.StringIO()
    table = Table.grid(padding=(0, 2))
    table.add_row("degraded", HOSTILE)
    PlainConsole(file=out, width=200).print(table)
    assert "\x1b" not in out.getvalue() and "[red]db[/red] :smile:" in out.getvalue()


def test_the_status_begins_with_what_is_wrong() -> None:
    document = {
        "job": "sales", "run": "sales-1", "phase": "running", "status": None, "drains": [], "directory": "/d",
        "spec": {"workers": 1, "instancesPerWorker": 1, "replicas": 0}, "workers": [],
        "ends": {"driver": {"at": 0.0, "why": HOSTILE}, "worker 0": {"at": 0.0, "why": "long ago"}},
    }  # fmt: skip
    out = io.StringIO()
    PlainConsole(file=out, width=300).print(job_table(document))
    assert "last end" in out.getvalue() and r"down \x1b]52" in out.getvalue() and "long ago" not in out.getvalue()
    PlainConsole(file=out, width=300).print(job_table({**document, "silent": 8.0}))
    assert "driver   does not answer (last answer 8 s ago)" in re.sub(r"driver +", "driver   ", out.getvalue())
