"""A deployed program on probation: the job goes back from it by itself, and every record is still counted once."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

import pytest

from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(500)]

IMPORTS = "import os\nimport sys\nimport time\n\nimport pyarrow.compute as pc\n"

EXPECTED = """.expect("numbers are small", pc.field("seq") < {most}).sink(ferry.parquet("seen"))"""

DEADLY = """return [seen, streams["smq"].sink(Deadly())]


class Deadly(ferry.Sink):
    def open(self, committed):
        {ends}

    def write(self, epoch, generation, rows):
        raise AssertionError("a row was written")"""

LOADED = "\nif sys.orig_argv[1:3] == ['-m', 'ferry.driver']:\n    os.kill(os.getpid(), 9)\n"


def program(base: Path, name: str, step: int, *changes: tuple[str, str], more: str = "return seen") -> Path:
    """A program with changes of its text."""
    file = deploys.program(base, name, step, more)
    text = file.read_text()
    for old, new in (("import pyarrow as pa\n", f"import pyarrow as pa\n{IMPORTS}"), *changes):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return file


def switches(result: runner.Result) -> dict[int, int]:
    """First epochs, by number of the program."""
    texts = [r["text"] for r in result.kinds("deployed")]
    found = (re.match(r"program (\d+) is in force from epoch (\d+) on", text) for text in texts)
    return {int(one[1]): int(one[2]) for one in found if one}


def test_nothing_of_a_shadow_that_violates_an_expectation_is_written(tmp_path: Path) -> None:
    expected = EXPECTED.format(most=0)
    strict = program(tmp_path, "strict", 1, ('.sink(ferry.parquet("seen"))', expected))
    told = list[tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        told.append(deploys.ferry(running, "deploy", "numbers", strict, "--shadow", 1000))
        told.append(deploys.ferry(running, "versions", "numbers"))
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    (code, text), (_, versions) = told
    assert code == 2 and "program 3 goes on" in text, text
    why = r"expectation 'numbers are small' \(job\.py:\d+ .*\d[\d,]* rows for parquet\('seen'\) violate it, such as seq=\d+"
    assert re.search(why, text.replace("\n", " ")), text
    assert "numbers are small" in versions.replace("\n", ""), versions
    assert deploys.wrong(result.output, {0: 1}) == [], result.story()


def test_rows_that_violate_an_expectation_later_take_the_job_back(tmp_path: Path) -> None:
    told = list[tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        most = sum(r["rows"] for r in running.records() if r["kind"] == "epoch") + 15 * deploys.PACE
        expected = EXPECTED.format(most=most)
        strict = program(tmp_path, "strict", 2, ('.sink(ferry.parquet("seen"))', expected))
        told.append(deploys.ferry(running, "deploy", "numbers", strict, "--probation", "2m"))
        running.await_that(
            lambda: any("program 3 is in force" in r.get("text", "") for r in running.records()), "3", 60
        )
        told.append(deploys.ferry(running, "versions", "numbers"))
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    since, (code, text) = switches(result), told[0]
    assert code == 2 and "the job goes back from program 2: expectation 'numbers are small'" in text, text
    assert since[3] > since[2] + 5, "the program was in force until a row violated the expectation"
    assert any("goes back from program 2" in r["text"] for r in result.kinds("warning")), result.story()
    assert "numbers are small" in told[1][1].replace("\n", ""), told
    assert deploys.wrong(result.output, {0: 1, since[2]: 2, since[3]: 1}) == [], result.story()


def test_a_program_whose_epochs_last_much_longer_takes_the_job_back(tmp_path: Path) -> None:
    slow = program(tmp_path, "slow", 2, ("def passing(numbers):\n", "def passing(numbers):\n    time.sleep(1.5)\n"))
    told = list[tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(20)
        told.append(deploys.ferry(running, "deploy", "numbers", slow, "--probation", "2m", "--slower", "5"))
        running.await_that(
            lambda: any("program 3 is in force" in r.get("text", "") for r in running.records()), "3", 60
        )
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    since, (code, text) = switches(result), told[0]
    assert code == 2 and re.search(r"goes back from program 2: its epochs last \d+\.\d s, more than 5 times", text), (
        text
    )
    assert deploys.wrong(result.output, {0: 1, since[2]: 2, since[3]: 1}) == [], result.story()


@pytest.mark.parametrize(
    ("changes", "more", "sets"),
    [
        ((), DEADLY.format(ends="os.kill(os.getpid(), 9)"), ()),
        ((), DEADLY.format(ends="os._exit(3)"), ("driver.standby=true",)),
        ((("\n\n@dataclass\n", f"\n{LOADED}\n\n@dataclass\n"),), "return seen", ()),
    ],
    ids=["sink", "standby", "loaded"],
)
def test_a_program_that_kills_each_driver_is_given_up(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], more: str, sets: tuple[str, ...]
) -> None:
    deadly = program(tmp_path, "deadly", 2, *changes, more=more)
    told = list[tuple[int, str]]()

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(5)
        told.append(deploys.ferry(running, "deploy", "numbers", deadly))
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, sets=list(sets), meanwhile=meanwhile)
    assert result.code == 0, result.story()
    code, text = told[0]
    assert code == 2 and "program 2 is refused: 3 drivers have ended before its probation was over" in text, text
    assert len(result.kinds("ready")) == 4, "three drivers tried it"
    assert deploys.wrong(result.output, {0: 1}) == [], result.story()


def test_the_job_goes_back_from_a_committed_program_of_which_three_drivers_die(tmp_path: Path) -> None:
    """The driver after them begins no epoch of the program, which also reads a source of its own."""
    other = program(tmp_path, "other", 2, more=deploys.MORE)
    told = list[tuple[int, str]]()

    def killed(running: runner.Running) -> None:
        running.await_epoch(5)
        last = deploys.deploy(running, other)
        for _ in range(3):
            running.await_epoch(last + 3)
            running.signal("driver", signal.SIGKILL)
            last = max(
                r["epoch"] for r in running.records() if r["kind"] == "epoch"
            )  # None of this driver comes later.
        running.await_that(
            lambda: any("program 3 is in force" in r.get("text", "") for r in running.records()), "3", 60
        )
        told.append(deploys.ferry(running, "versions", "numbers"))
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=killed)
    assert result.code == 0, result.story()
    since = switches(result)
    assert deploys.wrong(result.output, {0: 1, since[2]: 2, since[3]: 1}) == [], result.story()
    ready = [r["text"] for r in result.kinds("ready")]
    assert len(ready) == 4 and ready[3].endswith(f"committed up to epoch {since[3] - 1}"), (ready, since)
    assert "3 drivers have ended" in told[0][1].replace("\n", ""), told


@pytest.mark.parametrize("cause", ["sink", "function"])
def test_a_program_that_cannot_begin_is_taken_back_though_its_driver_dies_in_its_first_epoch(
    tmp_path: Path, cause: str
) -> None:
    """The next driver begins with it: it waited for the sink for ever, or halted of the function."""
    if cause == "sink":
        bad, text = program(tmp_path, "bad", 2, more=DEADLY.format(ends='raise OSError("no broker")')), "no broker"
    else:
        raises = "    if len(numbers):\n        raise ValueError('no price')\n"
        fails = ("def passing(numbers):\n", f"def passing(numbers):\n{raises}")
        bad, text = program(tmp_path, "bad", 2, fails), "no price"
    told = list[tuple[int, str]]()

    def killed(running: runner.Running) -> None:
        if cause == "sink":
            running.await_that(
                lambda: any("program 2 is in force" in r.get("text", "") for r in running.records()), "program 2", 90
            )
            running.signal("driver", signal.SIGKILL)

    def meanwhile(running: runner.Running) -> None:
        running.await_epoch(5)
        killing = threading.Thread(target=killed, args=[running])
        killing.start()
        told.append(deploys.ferry(running, "deploy", "numbers", bad, "--at-epoch", 60))
        killing.join()
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    at = ["epoch=60:ingest kill-driver"] if cause == "function" else []
    result = runner.run(deploys.job(tmp_path), tmp_path, at=at, meanwhile=meanwhile)
    assert result.code == 0 and len(result.kinds("ready")) == 2, result.story()
    code, words = told[0]
    assert code == 2 and "program 2 is refused" in words and text in words, words
    assert deploys.wrong(result.output, {0: 1}) == [], result.story()


def failing(base: Path, flag: Path, in_process: bool) -> Path:
    """Program 2, whose function or process fails once the file `flag` is there."""
    raises = f"if os.path.exists({str(flag)!r}):\n{{indent}}    raise ValueError('no price')\n"
    begin, indent = ('        before = work.get("count")', 8) if in_process else ("    seq = numbers.column", 4)
    text = " " * indent + raises.format(indent=" " * indent)
    return program(base, "bad", 2, (begin, text + begin))


def taken_in(running: runner.Running) -> int:
    """The number of records of all epochs."""
    return sum(r["rows"] for r in running.records() if r["kind"] == "epoch")


@pytest.mark.parametrize("helped", ["probation", "process", "rollback", "deploy"])
def test_another_program_takes_over_the_epoch_of_code_that_fails(tmp_path: Path, helped: str) -> None:
    """Although epochs of the failing program are committed: nothing is committed of the one in which it fails."""
    told = list[tuple[int, str]]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        flag = tmp_path / "flag"
        bad = failing(tmp_path, flag, helped == "process")
        options = ["--probation", "2m" if helped in ("probation", "process") else "0s"]
        deploying = threading.Thread(
            target=lambda: told.append(deploys.ferry(running, "deploy", "numbers", bad, *options))
        )
        deploying.start()
        running.await_that(
            lambda: any("program 2 is in force" in r.get("text", "") for r in running.records()), "2", 60
        )
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        if "0s" in options:
            deploying.join()
        flag.touch()
        running.await_that(lambda: any("no price" in r.get("text", "") for r in running.records()), "failure", 60)
        if helped == "rollback":
            told.append(deploys.ferry(running, "rollback", "numbers"))
        if helped == "deploy":
            told.append(deploys.ferry(running, "deploy", "numbers", deploys.program(tmp_path, "mended", 4)))
        deploying.join()
        running.await_that(
            lambda: any("program 3 is in force" in r.get("text", "") for r in running.records()), "3", 60
        )
        running.await_epoch(max(r["epoch"] for r in running.records() if r["kind"] == "epoch") + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and len(result.kinds("ready")) == 1, result.story()
    since = switches(result)
    assert since[3] > since[2] + 5, "the program was in force until its code failed"
    if helped in ("probation", "process"):
        assert told[0][0] == 2 and "the job goes back from program 2" in told[0][1] and "no price" in told[0][1], told
    else:
        assert [code for code, _ in told] == [0, 0], told
    third = 4 if helped == "deploy" else 1
    assert deploys.wrong(result.output, {0: 1, since[2]: 2, since[3]: third}) == [], result.story()


QUIET = """
import pyarrow as pa

import ferry

LINES = pa.schema([("n", pa.int64())])


def sources(spark, args):
    return {{"lines": ferry.json_files({folder!r}, LINES)}}


def function(rows):
    if {fails} and rows.num_rows:
        raise ValueError("no price")
    return rows


def pipeline(streams, args):
    counts = streams["lines"].map_batches(function).key_by("n").aggregate("counts", emit=ferry.changes(), c=ferry.count())
    return counts.sink(ferry.parquet("counts"))
"""


def test_the_first_records_decide_when_the_first_epochs_had_none(tmp_path: Path) -> None:
    """A source with nothing to read: the program is in force with an empty epoch."""
    folder, files = tmp_path / "lines", {}
    folder.mkdir()
    for fails in (False, True):
        files[fails] = tmp_path / f"fails_{fails}.py"
        files[fails].write_text(QUIET.format(folder=str(folder), fails=fails))
    job = tmp_path / "job.yaml"
    job.write_text(deploys.JOB.format(file=files[False], pace=deploys.PACE))

    def line(number: int) -> None:
        (tmp_path / "new").write_text(f'{{"n": {number}}}\n')
        (tmp_path / "new").rename(folder / f"{number}.json")

    def changes(running: runner.Running) -> None:
        line(1)
        running.await_that(lambda: taken_in(running) == 1, "the first record", 60)
        assert deploys.ferry(running, "deploy", "numbers", files[True])[0] == 0
        assert any(r["kind"] == "epoch" and r["epoch"] >= switches_of(running)[2] for r in running.records())
        line(2)
        running.await_that(lambda: taken_in(running) == 2, "the second record", 90)
        assert 3 in switches_of(running)
        line(3)
        running.await_that(lambda: taken_in(running) == 3, "the third record", 60)
        runner.stop(running)

    def switches_of(running: runner.Running) -> dict[int, int]:
        texts = [r["text"] for r in running.records() if r["kind"] == "deployed"]
        return {int(text.split()[1]): int(text.split()[-2]) for text in texts}

    result = runner.run(job, tmp_path, meanwhile=changes)
    assert result.code == 0 and len(result.kinds("ready")) == 1, result.story()
    rows = [row for part in deploys.read(result.output / "counts").values() for row in part.to_pylist()]
    assert sorted((row["n"], row["c"]) for row in rows) == [(1, 1), (2, 1), (3, 1)], result.story()
