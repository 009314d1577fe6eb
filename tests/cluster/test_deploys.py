"""The program of a running job changes at one epoch: no record by two programs, none by the wrong one, none by neither."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import deploys, runner

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.timeout(600)]


def test_programs_change_while_workers_and_drivers_die(tmp_path: Path) -> None:
    """Functions, modules beside the program, processes in instances; an operator is introduced, removed, and comes back."""
    steps, shown = {0: 1}, list[str]()
    two, windows = deploys.program(tmp_path, "two", 2), deploys.program(tmp_path, "windows", 4, deploys.WINDOWS)

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        steps[deploys.deploy(running, two)] = 2
        steps[deploys.deploy(running, windows)] = 4
        running.signal("worker-1", signal.SIGKILL)
        code, text = deploys.ferry(running, "rollback", "numbers", "--to", "1")
        assert code == 0, text
        steps[int(text.rpartition("epoch ")[2].split()[0])] = 1
        running.signal("driver", signal.SIGKILL)
        steps[deploys.deploy(running, windows)] = 4
        deadline = max(steps) + 40
        running.await_epoch(deadline)
        shown.append(deploys.ferry(running, "versions", "numbers")[1])
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0, result.story()
    assert len(steps) == 5 and deploys.wrong(result.output, steps) == [], result.story()
    windows_seen = [
        (r["k"], r["window_start"]) for t in deploys.read(result.output / "windows").values() for r in t.to_pylist()
    ]
    assert windows_seen and len(set(windows_seen)) == len(windows_seen), "a window fired twice"
    numbers = [line.split()[0] for line in shown[0].splitlines()[1:]]
    assert numbers[-5:] == ["5", "4", "3", "2", "1"], shown


@pytest.mark.turns
def test_open_windows_of_a_removed_operator_fire_once(tmp_path: Path) -> None:
    """Into its own sink, also if an operator in its place writes there, and if the driver dies meanwhile."""
    first, second = (
        deploys.program(tmp_path, name, 1, deploys.SPANS.format(name=name)) for name in ("first_spans", "second_spans")
    )
    epochs, shown = list[int](), list[str]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        epochs.append(deploys.deploy(running, first))
        running.await_epoch(epochs[-1] + 10)
        epochs.append(deploys.deploy(running, second))
        running.signal("driver", signal.SIGKILL)
        running.await_epoch(epochs[-1] + 10)
        epochs.append(deploys.deploy(running, deploys.program(tmp_path, "without", 1)))
        deadline = time.monotonic() + 120
        while "spans" in (text := deploys.ferry(running, "versions", "numbers")[1].splitlines()[1]):
            assert time.monotonic() < deadline, text
            time.sleep(0.5)
        shown.append(deploys.ferry(running, "versions", "numbers")[1])
        code, text = deploys.ferry(running, "rollback", "numbers")
        assert code == 0, text
        epochs.append(int(text.rpartition("epoch ")[2].split()[0]))
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    a, b, c, back = epochs
    fired = Counter(
        (r["k"], r["window_start"], r["n"])
        for epoch, t in deploys.read(result.output / "spans").items()
        for r in (t.to_pylist() if epoch < back else ())  # Later it may end windows that began after its return.
    )
    assert fired == deploys.spans(result.output, range(a, b)) + deploys.spans(result.output, range(b, c)), (
        result.story()
    )


@pytest.mark.turns
def test_columns_come_and_go_while_the_state_stays(tmp_path: Path) -> None:
    """The state is derived in all copies before the switch: a worker that dies afterwards loses nothing."""
    texts = {"s": "s=ferry.sum('seq')", "sm": "s=ferry.sum('seq'), m=ferry.max('seq')", "m": "m=ferry.max('seq')"}
    files = {
        name: deploys.program(tmp_path, name, 1, deploys.SUMS.format(columns=text)) for name, text in texts.items()
    }
    columns: dict[int, tuple[str, ...]] = {0: ()}

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        for name, victim in (("s", ""), ("sm", "worker-0"), ("m", "driver"), ("sm", "worker-1"), ("s", "")):
            if name == "sm":
                text = deploys.ferry(running, "deploy", "numbers", files[name], "--check")[1]
                assert re.search(r"sums +altered +keeps its state; gains [sm] \((sum|max)\)", text), text
            epoch = deploys.deploy(running, files[name])
            columns[epoch] = tuple(name)
            if victim:
                running.signal(victim, signal.SIGKILL)
            running.await_epoch(epoch + 40)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert deploys.wrong_sums(result.output, columns) == [], (columns, result.story())


@pytest.mark.turns
def test_columns_of_a_join_come_and_go_while_its_rows_stay(tmp_path: Path) -> None:
    """All copies have the files of the state before. A column that comes back is empty in older rows; no pair is lost."""
    files = {name: deploys.program(tmp_path, name or "none", 1, deploys.joined(name)) for name in ("", "a", "ab", "b")}
    columns = {0: "ab"}

    def changes(running: runner.Running) -> None:
        running.await_epoch(20)
        for name, victim in (("b", "worker-0"), ("ab", ""), ("", "driver"), ("a", "worker-1"), ("ab", "")):
            epoch = deploys.deploy(running, files[name])
            columns[epoch] = name
            if victim:
                running.signal(victim, signal.SIGKILL)
            running.await_epoch(epoch + 30)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=deploys.joined("ab")), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert deploys.wrong_pairs(result.output, columns) == [], (columns, result.story())


@pytest.mark.turns
def test_a_task_that_dies_in_the_first_epoch_is_repeated(tmp_path: Path) -> None:
    """Once for each process of tasks that has loaded the program: no record is lost, and the program stays."""
    file, flag, since = deploys.program(tmp_path, "dies", 2), tmp_path / "died", list[int]()
    died = f"""
    if numbers.num_rows and not os.path.exists({str(flag)!r}):
        open({str(flag)!r}, "w").close()
        os.kill(os.getpid(), 9)
    seq = numbers"""
    text = file.read_text().replace("from dataclasses", "import os\nfrom dataclasses", 1)
    file.write_text(text.replace("\n    seq = numbers", died, 1))

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        since.append(deploys.deploy(running, file))
        running.await_epoch(since[0] + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1, since[0]: 2}) == [], result.story()
    assert flag.exists() and not result.kinds("taken-back") and not result.kinds("deploy-refused"), result.story()


@pytest.mark.turns
def test_windows_have_another_size_from_an_event_time_on(tmp_path: Path) -> None:
    """No window is partial, also if a worker or the driver is killed. A time that has passed is refused."""
    cut = list[int]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        running.await_that(lambda: deploys.newest(running.output) > 4000, "event times", 60)
        late = deploys.program(tmp_path, "late", 1, deploys.SIZES.format(until=2000, size=8))
        code, text = deploys.ferry(running, "deploy", "numbers", late)
        assert code == 2 and "operator 'windows': until=" in text and "choose a later time" in text, text
        cut.append(deploys.newest(running.output) // 2000 * 2000 + 24_000)
        epoch = deploys.deploy(
            running, deploys.program(tmp_path, "both", 1, deploys.SIZES.format(until=cut[0], size=4))
        )
        for victim in ("worker-0", "driver"):
            running.await_epoch(epoch + 10)
            running.signal(victim, signal.SIGKILL)
        running.await_that(lambda: deploys.newest(running.output) > cut[0] + 9000, "longer windows", 90)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path, more=deploys.WINDOWS), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    for name, size, slide, low, high in (("windows", 500, 500, 0, cut[0]), ("long", 4000, 2000, cut[0], 2**60)):
        fired = pa.concat_tables(deploys.read(result.output / name).values()).to_pylist()
        end = max(row["window_end"] for row in fired)
        begins = range(low, min(high, end - size + slide), slide)
        expected = Counter[tuple[int, int]]()
        for k, ts in deploys.seen(result.output):
            expected.update((k, b) for b in range(ts // slide * slide - size + slide, ts + 1, slide) if b in begins)
        assert Counter({(row["k"], row["window_start"]): row["n"] for row in fired}) == expected, name
        assert len(fired) == len(expected) > 20, name


@pytest.mark.turns
def test_sources_come_and_go_and_a_source_that_returns_goes_on(tmp_path: Path) -> None:
    """Its records follow those before its removal, also if the driver dies around the switches."""
    more, without = deploys.program(tmp_path, "more", 1, deploys.MORE), deploys.program(tmp_path, "without", 1)
    epochs = list[int]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        for file in (more, without, more):
            epochs.append(deploys.deploy(running, file))
            running.signal("driver", signal.SIGKILL)
            running.await_epoch(epochs[-1] + 25)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    assert deploys.wrong(result.output, {0: 1}, "more") == [], result.story()
    added, removed, back = epochs
    there = set(deploys.read(result.output / "more"))
    assert added < min(there) < removed < back < max(there) and not there & {*range(removed, back)}, (epochs, there)


@pytest.mark.turns
def test_a_restore_under_another_program_is_the_same_as_a_deploy(tmp_path: Path) -> None:
    """Columns are gained after the checkpoint; a worker and the driver die in the restored job, which loses nothing."""
    files = {
        name: deploys.program(tmp_path, name, 1, deploys.SUMS.format(columns=text))
        for name, text in {"s": "s=ferry.sum('seq')", "sm": "s=ferry.sum('seq'), m=ferry.max('seq')"}.items()
    }
    columns: dict[int, tuple[str, ...]] = {0: ("s",)}
    job, stored = (
        tmp_path / "job.yaml",
        [f"state.checkpoint.location={tmp_path / 'store'}", "state.checkpoint.every=2s"],
    )

    def until(epochs: int) -> Callable[[runner.Running], None]:
        def suspended(running: runner.Running) -> None:
            running.await_epoch(epochs)
            code, text = deploys.ferry(running, "suspend", "numbers")
            assert code == 0, text

        return suspended

    def killed(running: runner.Running) -> None:
        running.await_epoch(max(columns) + 20)
        running.signal("worker-0", signal.SIGKILL)
        running.signal("driver", signal.SIGKILL)
        running.await_epoch(max(columns) + 120)
        runner.stop(running)

    job.write_text(deploys.JOB.format(file=files["s"], pace=deploys.PACE))
    first = runner.run(job, tmp_path, sets=stored, meanwhile=until(60))
    assert first.code == 0, first.story()
    columns[max(deploys.read(first.output / "seen")) + 1] = ("s", "m")
    job.write_text(deploys.JOB.format(file=files["sm"], pace=deploys.PACE))
    second = runner.run(job, tmp_path, sets=[*stored, "restoreFrom=latest"], meanwhile=killed)
    assert second.code == 0 and deploys.wrong(second.output, {0: 1}) == [], second.story()
    assert deploys.wrong_sums(second.output, columns) == [], (columns, second.story())


@pytest.mark.turns
def test_a_function_that_fails_after_a_restore_under_another_program_is_told_and_can_be_mended(tmp_path: Path) -> None:
    """The job went back to the program of the checkpoint, whose text it does not have."""
    files = [
        deploys.program(tmp_path, name, 1, deploys.SUMS.format(columns=columns))
        for name, columns in (("s", "s=ferry.sum('seq')"), ("sm", "s=ferry.sum('seq'), m=ferry.max('seq')"))
    ]
    job, good = tmp_path / "job.yaml", files[1].read_text()
    stored = [f"state.checkpoint.location={tmp_path / 'store'}", "state.checkpoint.every=2s"]
    begin = '        before = work.get("count")'
    assert good.count(begin) == 1
    files[1].write_text(
        good.replace(begin, f'        if work.count:\n            raise ValueError("no price")\n{begin}')
    )

    def suspended(running: runner.Running) -> None:
        running.await_epoch(40)
        assert deploys.ferry(running, "suspend", "numbers")[0] == 0

    job.write_text(deploys.JOB.format(file=files[0], pace=deploys.PACE))
    first = runner.run(job, tmp_path, sets=stored, meanwhile=suspended)
    job.write_text(deploys.JOB.format(file=files[1], pace=deploys.PACE))
    kept = [*stored, f"state.directory={tmp_path / 'state'}"]
    failed = runner.run(job, tmp_path, sets=[*kept, "restoreFrom=latest"])
    assert first.code == 0 and failed.code == 1 and "no price" in failed.story(), failed.story()
    assert not failed.kinds("taken-back"), failed.story()
    files[1].write_text(good)
    last = max(deploys.read(first.output / "seen"))

    def mended(running: runner.Running) -> None:
        running.await_epoch(last + 10)
        runner.stop(running)

    again = runner.run(job, tmp_path, sets=kept, meanwhile=mended)
    assert again.code == 0 and deploys.wrong(again.output, {0: 1}) == [], again.story()


REFUSED = {
    "syntax": ("def pipeline(:\n", "cannot be imported: SyntaxError"),
    "import": ("import nothing_here\n", "No module named 'nothing_here'"),
    "exit": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "kill": ("import os\nos.kill(os.getpid(), 9)\n", "ended with code -9"),
    "key": ('key_by("k")', 'key_by("seq")', "the key was (k int), and is (seq int)"),
    "table": ('"n", pa.int64())]))}', '"n", pa.float64())]))}', "table count has other columns, or other types"),
    "kind": ('numbers.process("seen", Seen())', 'numbers.aggregate("seen", n=ferry.count(), emit=ferry.changes())', "was a process, and is an aggregate"),
    "source": ("sources as sources\n", "sources as before\n\ndef sources(spark, args):\n    return {**before(spark, args), 'more': before(spark, args)['smq']}\n", "source 'more' is read by no operator and no sink"),
    "unread": ("return seen", "numbers.aggregate('lost', n=ferry.count(), emit=ferry.changes())\n    return seen", "is read by no operator and no sink"),
    "tasks fail": ("    seq = numbers", "    if numbers.num_rows:\n        raise ValueError('not one number')\n    seq = numbers", "ValueError: not one number"),
    "instances fail": ("        import helper\n", "        raise ValueError('not one key')\n", "ValueError: not one key"),
    "transform": ('.map_batches(passing)', '.map_batches(passing).transform(lambda frame: frame)', "Spark would have to plan each epoch"),
}  # fmt: skip


def test_a_refused_program_is_an_answer_and_the_job_goes_on(tmp_path: Path) -> None:
    answers: dict[str, tuple[int, str]] = {}

    def tries(running: runner.Running) -> None:
        running.await_epoch(5)
        for name, (*change, _) in REFUSED.items():
            file = deploys.program(tmp_path, name, 1)
            text = file.read_text()
            file.write_text(change[0] if len(change) == 1 else text.replace(*change))
            assert len(change) == 1 or change[0] in text, name
            answers[name] = deploys.ferry(running, "deploy", "numbers", file)
        answers["job"] = deploys.ferry(running, "deploy", "numbers", deploys.program(tmp_path, "again", 1), "--check")
        answers["set"] = deploys.ferry(running, "deploy", "numbers", "--set", "workers=3")
        answers["back"] = deploys.ferry(running, "rollback", "numbers")
        answers["versions"] = deploys.ferry(running, "versions", "numbers")
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=tries)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    for name, (*_, words) in REFUSED.items():
        code, text = answers[name]
        assert code == 2 and words in text and "Traceback" not in text, (name, code, text)
    assert answers["job"][0] == 0 and "keeps its state" in answers["job"][1], answers["job"]
    assert answers["set"][0] == 2 and "changes pipeline.args.NAME=VALUE only" in answers["set"][1]
    assert answers["back"][0] == 2 and "no program was in force before" in answers["back"][1], answers["back"]
    assert any(line.startswith("1 ") and "in force" in line for line in answers["versions"][1].splitlines())


def test_a_new_operator_begins_with_the_rows_of_a_table(tmp_path: Path) -> None:
    """Each row counts once, also if a worker and the driver die while the table is read."""
    folder, since = tmp_path / "history", list[int]()
    folder.mkdir()
    for number in range(40):
        rows = {"k": [*range(deploys.KEYS)] * 500, "n": [10**6] * deploys.KEYS * 500}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    counting = deploys.program(tmp_path, "counting", 1, deploys.HISTORY.format(folder=str(folder)))

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        since.append(deploys.deploy(running, counting))
        running.signal("worker-1", signal.SIGKILL)
        running.signal("driver", signal.SIGKILL)
        running.await_epoch(since[0] + 60)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, sets=["epoch.maxRows=20000"], meanwhile=changes)
    assert result.code == 0 and deploys.wrong(result.output, {0: 1}) == [], result.story()
    live: Counter[int] = Counter()
    for epoch, table in deploys.read(result.output / "seen").items():
        live.update(table.column("k").to_pylist() if epoch >= since[0] else ())
    counts = {r["k"]: r["n"] for t in deploys.read(result.output / "counts").values() for r in t.to_pylist()}
    assert counts == {k: 40 * 500 * 10**6 + live[k] for k in range(deploys.KEYS)}, result.story()


def test_a_deploy_outlasts_an_absence_of_redis(tmp_path: Path) -> None:
    """From the request to the switch it does not answer for 5 s; then a program follows as if nothing had been."""
    epochs = list[int]()

    def changes(running: runner.Running) -> None:
        running.await_epoch(5)
        for after in (0.0, 1.5):
            program = deploys.program(tmp_path, f"after {after}", 2 + len(epochs))
            deploying = threading.Thread(
                target=lambda file: epochs.append(deploys.deploy(running, file)), args=[program]
            )
            deploying.start()
            time.sleep(after)
            running.signal("redis", signal.SIGSTOP)
            time.sleep(5)
            running.signal("redis", signal.SIGCONT)
            deploying.join()
        running.await_epoch(epochs[-1] + 10)
        runner.stop(running)

    result = runner.run(deploys.job(tmp_path), tmp_path, meanwhile=changes)
    assert result.code == 0 and len(epochs) == 2, result.story()
    assert deploys.wrong(result.output, {0: 1, epochs[0]: 2, epochs[1]: 3}) == [], result.story()
