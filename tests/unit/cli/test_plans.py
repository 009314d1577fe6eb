"""`plan -o`, `submit`, `plans` and `cancel`, of a job on the cluster in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.cli import options
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import JOBS, JOURNALS
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes.fake_user import FakeUser
from tests.unit.cli.test_remote import workers


def led(api: FakeUser) -> list[str]:
    assert api.world.driver is not None
    return [group[0] for group in api.world.driver.groups]


def test_a_plan_is_made_submitted_followed_and_cancelled(run: Run, api: FakeUser, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    code, out, err = run("plan", "nbq5", "--set", "workers=3", "--strategy", "fluid", "-o", file)
    assert code == 0 and "2 -> 3" in out and "new leaders" in out and "submit nbq5" in err
    assert api.written == [], "nothing was changed"
    document = json.loads(file.read_text())
    document["placements"][0] = ["2.0", "0.0"]
    assert document["handover"] == {"strategy": "fluid"}
    file.write_text(json.dumps(document))
    code, out, _ = run("submit", "nbq5", file)
    assert code == 0 and "3 workers" in out, out
    api.world.until(workers(3))
    api.world.until(lambda world: led(api) == [one[0] for one in document["placements"]])
    code, out, _ = run("plans", "nbq5")
    assert code == 0 and "submitted" in out and "over" in out
    rows = json.loads(run("plans", "nbq5", "--json")[1])
    assert [row["state"] for row in rows] == ["over", "submitted"]
    code, _, err = run("submit", "nbq5", file)
    assert code == 2 and "begins with 2 workers" in err
    assert run("cancel", "nbq5")[0] == 0
    api.world.until(workers(2))
    assert len({*led(api)}) == 2
    code, _, err = run("cancel", "nbq5")
    assert code == 2 and "no plan is submitted" in err


def test_one_plan_follows_another(run: Run, api: FakeUser, tmp_path: Path) -> None:
    for size in (3, 4):
        run("plan", "nbq5", "--set", f"workers={size}", "-o", tmp_path / "plan.json")
        assert run("submit", "nbq5", tmp_path / "plan.json")[0] == 0
        api.world.until(workers(size))
    run("cancel", "nbq5")
    api.world.until(workers(3))


def test_a_plan_of_drained_workers_is_refused_and_one_that_does_not_fit_any_more_is_said(
    run: Run, tmp_path: Path
) -> None:
    run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "plan.json")
    run("drain", "nbq5", 1)
    code, _, err = run("submit", "nbq5", tmp_path / "plan.json")
    assert code == 2 and "without drained workers these are 0.0, 2.0" in err
    run("undrain", "nbq5", 1)
    assert run("submit", "nbq5", tmp_path / "plan.json")[0] == 0
    run("drain", "nbq5", 1)
    assert "not followed" in run("plans", "nbq5")[1]


def test_json_is_json(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "plan.json", "--json")
    assert code == 0 and json.loads(out)["job"] == "nbq5" and (tmp_path / "plan.json").exists()
    code, _, err = run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "no" / "plan.json")
    assert code == 2 and "--output" in err


def test_another_size_takes_the_place_of_a_plan(run: Run, api: FakeUser, tmp_path: Path) -> None:
    run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "plan.json")
    run("submit", "nbq5", tmp_path / "plan.json")
    run("scale", "nbq5", "--workers", 4)
    assert run("cancel", "nbq5")[0] == 2
    found = api.get(JOBS, "nbq5")
    assert found["spec"]["workers"] == 4 and names.PLAN not in found["metadata"]["annotations"]


def test_a_plan_for_another_size_than_there_is_is_refused(run: Run, tmp_path: Path) -> None:
    run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "plan.json")
    run("scale", "nbq5", "--workers", 4)
    code, _, err = run("submit", "nbq5", tmp_path / "plan.json")
    assert code == 2 and "begins with 2 workers" in err
    code, _, err = run("submit", "nbq5", tmp_path / "no.json")
    assert code == 2 and "cannot be read" in err


def test_it_is_due_when_it_is_said(run: Run, api: FakeUser, tmp_path: Path) -> None:
    run("plan", "nbq5", "--set", "workers=3", "-o", tmp_path / "plan.json")
    line = ["submit", "nbq5", tmp_path / "plan.json", "--at-epoch", 900, "--at-event-time", "2026-11-22T10:00Z"]
    assert run(*line)[0] == 0
    api.world.until(workers(3))
    desired = api.world.driver and api.world.driver.desired
    assert desired and (desired["at_epoch"], desired["at_time"]) == (900, 1795341600000)


def test_plan_writes_only_what_a_plan_is_about(run: Run, tmp_path: Path) -> None:
    code, _, err = run("plan", "nbq5", "--set", "epoch.interval=3s", "-o", tmp_path / "plan.json")
    assert code == 2 and "and not spec.epoch.interval" in err and not (tmp_path / "plan.json").exists()


def test_who_leads_what_is_in_the_journal(run: Run, api: FakeUser) -> None:
    first = [v for v, leader in enumerate(led(api)) if leader == "0.0"]
    code, out, _ = run("move", "nbq5", "--from", "0.0", "--share", "1/2", "--to", "1.0")
    assert code == 0 and f"{len(first) // 2} virtual nodes move" in out
    api.forbidden.append(JOURNALS)
    code, _, err = run("plans", "nbq5")
    assert code == 2 and "forbidden" in err


def test_times_are_dates_with_a_zone_or_milliseconds() -> None:
    assert options.event_time("2026-11-22T10:00Z") == options.event_time("2026-11-22T12:00+02:00") == 1795341600000
    assert options.event_time("1795341600000") == 1795341600000 and options.event_time("-5") == -5
    for text in ("2026-11-22T10:00", "soon", ""):
        with pytest.raises(Refusal, match="--at-event-time"):
            options.event_time(text)
