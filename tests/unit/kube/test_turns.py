"""Another default of the installation replaces the pods of a few jobs at a time, and of no further job after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ferry_operator.job import spec
from ferry_operator.job.status import Condition, JobMemory, JobStatus, PodDefaults, RollNote
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, PODS
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.facts import stamp
from ferry_operator.kube.observe.turns import present
from ferry_operator.kube.turns import FRESH_SECONDS, GIVEN_SECONDS, Turns
from tests.unit.kube.fakes.fake_world import RELEASE, World, job, settled
from tests.unit.kube.test_decisions import driver

NEXT = replace(RELEASE, image="ferry:2")
OLD, NEW = present(RELEASE), present(NEXT)
NOW, DEADLINE = 10_000.0, 900.0
POD = driver(image=RELEASE.image, account=RELEASE.service_account)


def working(name: str, ready: str = "True", phase: str = "Running", **memory: Any) -> Doc:
    """A job that has worked, with pods of the old defaults."""
    one = job(name)
    one["metadata"] |= {"uid": name, "namespace": "jobs", "generation": 1}
    good = effective_spec.last_good(spec.check(one), name, 1, RELEASE)
    kept = JobMemory(uid=name, good=good, **{"defaults": OLD, **memory})
    condition = Condition(type="Ready", status=ready, reason="Why", last_transition_time=stamp(0.0))  # type: ignore[arg-type]
    status = JobStatus(phase=phase, conditions=(condition,)).to_wire()  # type: ignore[arg-type]
    one["status"] = {**status, "memory": kept.model_dump(mode="json", by_alias=True)}
    return one


def rolling(name: str, since: float = NOW, **changes: Any) -> Doc:
    return working(name, defaults=NEW, roll=RollNote(since=stamp(since)), **changes)


def of(turns: Turns, one: Doc, now: float = NOW, lacking: tuple[str, ...] = ()) -> tuple[str, str]:
    """(the reason, the image in force)"""
    turn = turns.of(one, [POD], NEXT, now, lacking)
    return turn.reason, turn.release.image


# --- who may roll


def test_a_few_jobs_roll_at_a_time() -> None:
    jobs = [working(f"j{n}") for n in range(5)]
    turns = Turns(lambda: jobs, 2, DEADLINE)
    found = [of(turns, one) for one in jobs]
    assert found == [("Rolling", "ferry:1")] * 2 + [("Waiting", "ferry:1")] * 3, "a turn is recorded before it is used"
    later = NOW + GIVEN_SECONDS + 1
    jobs[:2] = [rolling("j0"), rolling("j1")]
    assert [of(turns, one, later)[0] for one in jobs] == ["Rolling"] * 2 + ["Waiting"] * 3
    jobs[0] = working("j0", defaults=NEW)
    assert [of(turns, one, later + FRESH_SECONDS)[0] for one in jobs] == [
        "",
        "Rolling",
        "Rolling",
        "Waiting",
        "Waiting",
    ]


def test_the_next_leader_reads_who_has_a_turn() -> None:
    jobs = [rolling("a"), working("b")]
    assert of(Turns(lambda: jobs, 1, DEADLINE), jobs[1]) == ("Waiting", "ferry:1")
    assert of(Turns(lambda: jobs, 1, DEADLINE), jobs[0]) == ("Rolling", "ferry:2")


def test_a_turn_that_was_never_recorded_is_given_to_another_job() -> None:
    jobs = [working("a"), working("b")]
    turns = Turns(lambda: jobs, 1, DEADLINE)
    assert of(turns, jobs[0])[0] == "Rolling" and of(turns, jobs[1])[0] == "Waiting"
    assert of(turns, jobs[1], NOW + GIVEN_SECONDS)[0] == "Rolling"


def test_a_roll_that_stands_still_stops_all_others_and_says_why() -> None:
    jobs = [rolling("late"), working("b"), working("far")]
    jobs[2]["metadata"]["namespace"] = "elsewhere"
    turns, now = Turns(lambda: jobs, 3, DEADLINE), NOW + DEADLINE + 1
    assert of(turns, jobs[1], NOW + DEADLINE - 1)[0] == "Rolling"
    turns = Turns(lambda: jobs, 3, DEADLINE)
    mine, other, far = (turns.of(one, [POD], NEXT, now) for one in jobs)
    assert {mine.reason, other.reason, far.reason} == {"Stopped"} and mine.release.image == "ferry:2"
    assert other.release.image == "ferry:1" and "late did not become ready" in other.message
    assert "late" not in far.message and turns.stopped(now) == ["jobs/late"]


def test_an_edit_of_a_job_that_stands_still_gives_its_turn_back() -> None:
    """Its author may have broken it: others do not wait for it longer than for any other job."""
    broken, waits, late = working("broken"), working("waits"), NOW + DEADLINE + 1
    (_, note) = Turns(list, 1, DEADLINE).of(broken, [POD], NEXT, NOW).note or (None, None)
    jobs = [working("broken", defaults=NEW, roll=note), waits]
    jobs[0]["spec"]["workers"] = 7
    assert Turns(lambda: jobs, 1, DEADLINE).stopped(late) == ["jobs/broken"], "autoscalers change the size"
    jobs[0]["spec"]["spark"] = {"spark.ui.enabled": "false"}
    turns = Turns(lambda: jobs, 1, DEADLINE)
    assert of(turns, waits)[0] == "Waiting" and of(turns, jobs[0])[0] == "Rolling"
    mine = turns.of(jobs[0], [POD], NEXT, late)
    assert mine.reason == "Edited" and "other jobs do not wait for it" in mine.message
    assert not turns.stopped(late) and of(turns, waits, late)[0] == "Rolling"
    again = turns.of(jobs[0], [POD], replace(NEXT, image="ferry:3"), late)
    assert again.note is not None and again.note[1] is not None and note is not None
    assert again.note[1].spec == note.spec, "the next default makes it no job that was not edited"


def test_state_that_moves_is_progress_of_a_roll() -> None:
    one = rolling("a")
    moving = Condition(type="Handover", status="True", reason="Moving", last_transition_time=stamp(0.0))
    one["status"]["conditions"].append(moving.model_dump(mode="json", by_alias=True))
    assert of(Turns(lambda: [one], 1, DEADLINE), one, NOW + DEADLINE + 1)[0] == "Rolling"


@pytest.mark.parametrize("phase", ["Suspended", "Suspending", "Finished", "Deleting"])
def test_a_job_that_rests_keeps_no_turn(phase: str) -> None:
    jobs = [rolling("a", since=0.0, phase=phase), working("b")]
    assert of(Turns(lambda: jobs, 1, DEADLINE), jobs[1])[0] == "Rolling"


def test_a_paused_job_keeps_no_turn() -> None:
    jobs = [rolling("a", since=0.0), working("b")]
    jobs[0]["metadata"]["annotations"] = {names.PAUSED: "true"}
    assert of(Turns(lambda: jobs, 1, DEADLINE), jobs[1])[0] == "Rolling"


def test_a_job_whose_turn_is_under_way_follows_the_next_default_at_once() -> None:
    """Such as the default of before, after a roll that has stopped."""
    one = working("a", defaults=PodDefaults(image="bad", service_account="ferry-job"), roll=RollNote(since=stamp(0.0)))
    turn = Turns(lambda: [one, rolling("b")], 1, DEADLINE).of(one, [POD], NEXT, NOW)
    assert turn.note == (NEW, RollNote(since=stamp(NOW))) and turn.reason == "Rolling"


# --- whom it concerns


def own_image(one: Doc) -> None:
    one["spec"]["kubernetes"] = {"image": "mine"}


def failed(one: Doc) -> None:
    one["status"]["phase"] = "Failed"


def never_good(one: Doc) -> None:
    one["status"]["memory"]["good"] = None


def edited_while_not_ready(one: Doc) -> None:
    one["status"]["conditions"][0]["status"] = "False"
    one["metadata"]["generation"] = 2


@pytest.mark.parametrize("change", [own_image, failed, never_good, edited_while_not_ready])
def test_a_job_that_loses_nothing_waits_for_nobody(change: Callable[[Doc], None]) -> None:
    one = working("a")
    change(one)
    turn = Turns(lambda: [rolling("b")], 1, DEADLINE).of(one, [POD], NEXT, NOW)
    assert turn.reason == "" and turn.release == NEXT and turn.note == (NEW, None)


def test_a_job_without_pods_begins_with_the_present_default() -> None:
    turn = Turns(lambda: [rolling("b")], 1, DEADLINE).of(working("a"), [], NEXT, NOW)
    assert turn.reason == "" and turn.release == NEXT


def test_a_job_that_is_not_ready_keeps_its_default() -> None:
    one = working("a", ready="False")
    assert of(Turns(lambda: [one], 3, DEADLINE), one) == ("NotReady", "ferry:1")


def test_no_turn_begins_while_the_definition_drops_the_notes() -> None:
    one = working("a")
    turns = Turns(lambda: [one], 3, DEADLINE)
    assert of(turns, one, lacking=("status.memory.roll",)) == ("DefinitionOlder", "ferry:1")
    assert of(turns, one, lacking=("spec.other",))[0] == "Rolling"


def test_another_account_is_rolled_out_too() -> None:
    turn = Turns(lambda: [rolling("b")], 1, DEADLINE).of(
        working("a"), [POD], replace(RELEASE, service_account="other"), NOW
    )
    assert turn.reason == "Waiting" and "account ferry-job" in turn.message


@pytest.mark.parametrize(
    ("revision", "reason"),
    [("frozen", "Waiting"), ("present", ""), ("unknown", "Waiting")],
)
def test_the_defaults_of_a_job_of_the_first_release_are_read_from_its_pods(revision: str, reason: str) -> None:
    one = working("a", defaults=None)
    frozen, present = (effective_spec.revisions(spec.check(one), "a", release) for release in (RELEASE, NEXT))
    notes = {"frozen": frozen.driver_before, "present": present.driver, "unknown": "x"}
    pod = replace(POD, annotations={names.REVISION: notes[revision]})
    turn = Turns(lambda: [rolling("b")], 1, DEADLINE).of(one, [pod], NEXT, NOW)
    assert turn.reason == reason


def test_the_image_of_a_job_is_no_default() -> None:
    """A container that runs as root has the image of the installation: another one than the job's."""
    one, after = working("a", defaults=None), replace(RELEASE, service_account="other")
    one["spec"]["kubernetes"] = {"image": "mine"}
    mine = spec.check(one)
    one["status"]["memory"]["good"] = effective_spec.last_good(mine, "a", 1, RELEASE).model_dump(by_alias=True)
    revision = effective_spec.revisions(mine, "a", RELEASE).driver
    pod = replace(driver(image="mine", account="ferry-job"), annotations={names.REVISION: revision})
    turn = Turns(lambda: [rolling("b")], 1, DEADLINE).of(one, [pod], after, NOW)
    assert (turn.reason, turn.release) == ("Waiting", RELEASE), "its account is an old default"


# --- a job that rolls


def images(world: World) -> set[str]:
    return {d["spec"]["containers"][0]["image"] for (kind, _), d in world.api.objects.items() if kind == PODS}


def condition(world: World) -> Doc | None:
    return next((one for one in world.status["conditions"] if one["type"] == "RolledOut"), None)


def running() -> World:
    world = World(3)
    world.api.create(JOBS, job())
    world.until(lambda w: settled(w) and bool(w.status.get("memory", {}).get("good")))
    return world


def held_up(world: World, release: Any = NEXT) -> None:
    """Another job has the only turn."""
    world.operator.release = release
    world.operator._turns = Turns(lambda: [rolling("other", since=world.now), *world.store.documents()], 1, DEADLINE)


def test_pods_get_the_new_default_in_the_turn_of_their_job() -> None:
    world = running()
    assert world.status["memory"]["defaults"] == OLD.model_dump(mode="json", by_alias=True)
    world.operator.release = NEXT
    world.until(lambda w: condition(w) is not None)
    assert condition(world)["reason"] == "Rolling"  # type: ignore[index]
    world.until(lambda w: condition(w) is None and settled(w))
    assert images(world) == {"ferry:2"} and world.status["memory"]["defaults"]["image"] == "ferry:2"
    assert world.status["memory"].get("roll") is None
    assert "RollBegun" in {d["reason"] for (kind, _), d in world.api.objects.items() if kind == EVENTS}


def test_a_job_that_waits_keeps_its_pods_and_follows_its_own_edits() -> None:
    world = running()
    before = world.api.names(PODS), {d["metadata"]["uid"] for (k, _), d in world.api.objects.items() if k == PODS}
    held_up(world)
    world.rounds(20)
    assert condition(world)["reason"] == "Waiting" and world.status["phase"] == "Running"  # type: ignore[index]
    assert (
        world.api.names(PODS),
        {d["metadata"]["uid"] for (k, _), d in world.api.objects.items() if k == PODS},
    ) == before
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"sidecar": {"memory": "700Mi"}}, "workers": 3}})
    world.until(lambda w: settled(w) and w.status["workers"] == 3 and not before[1] & new_workers(w))
    assert images(world) == {"ferry:1"} and condition(world)["reason"] == "Waiting"  # type: ignore[index]


def new_workers(world: World) -> set[str]:
    pods = [d for (k, _), d in world.api.objects.items() if k == PODS]
    return {d["metadata"]["uid"] for d in pods if names.WORKER in d["metadata"]["labels"]}


def test_a_lost_worker_of_a_job_that_waits_comes_back_with_the_old_default() -> None:
    world = running()
    held_up(world)
    world.rounds(5)
    world.api.remove(PODS, "nbq5-worker-1")
    world.until(lambda w: settled(w) and "nbq5-worker-1" in w.pods())
    assert images(world) == {"ferry:1"}


def test_an_image_that_is_not_there_stops_the_roll_and_the_one_of_before_ends_it() -> None:
    world = running()
    world.refuses_image = "ferry:2"
    world.operator.release = replace(NEXT, roll_seconds=60.0)
    world.operator._turns = Turns(world.store.documents, 1, 60.0)
    world.until(lambda w: condition(w) is not None and condition(w)["reason"] == "Stopped", 400)  # type: ignore[index]
    assert world.condition("Ready")["status"] == "True" and world.status["workers"] == 2
    assert "RollStopped" in {d["reason"] for (kind, _), d in world.api.objects.items() if kind == EVENTS}
    world.operator.release = RELEASE
    world.until(lambda w: condition(w) is None and settled(w) and len(w.pods()) == 3)
    assert images(world) == {"ferry:1"}


# --- another Redis


PASSWORD = replace(RELEASE, redis="redis://:another@127.0.0.1:1/0")
SERVER = replace(RELEASE, redis="redis://another:1/0")


def uids(world: World) -> set[str]:
    return {d["metadata"]["uid"] for (k, _), d in world.api.objects.items() if k == PODS}


def test_another_password_of_redis_replaces_no_pod_and_needs_nothing() -> None:
    world = running()
    before = uids(world)
    world.operator.release = PASSWORD
    world.rounds(20)
    assert uids(world) == before and condition(world) is None
    world.begin_operator()
    world.operator.release = PASSWORD
    world.rounds(20)
    assert uids(world) == before, "another operator reads what the pods have"
    world.api.remove(PODS, "nbq5-worker-1")
    world.until(lambda w: settled(w) and "nbq5-worker-1" in w.pods())
    assert len(before & uids(world)) == len(before) - 1, "a lost pod comes back alone"


def test_another_server_replaces_no_pod_and_is_said_until_a_roll_or_the_next_run() -> None:
    world = running()
    before = uids(world)
    world.operator.release = SERVER
    world.rounds(20)
    found = condition(world)
    assert found is not None and found["reason"] == "OtherRedis" and uids(world) == before
    assert "127.0.0.1:1" in found["message"] and "another:1: if this is another server, suspend" in found["message"]
    world.operator.release = RELEASE
    world.until(lambda w: condition(w) is None)
    assert uids(world) == before
    world.operator.release = replace(SERVER, image="ferry:2")
    world.until(lambda w: condition(w) is None and settled(w) and images(w) == {"ferry:2"}, 400)
    assert not before & uids(world) and world.status["memory"]["defaults"]["redisAt"] == "another:1"


def test_a_job_without_pods_takes_the_present_redis() -> None:
    old = working("a")
    turn = Turns(list, 1, DEADLINE).of(old, [], SERVER, NOW)
    assert turn.note == (present(SERVER), None) and turn.release == SERVER


def test_the_redis_of_a_job_without_a_note_of_it_is_noted_once() -> None:
    """Of an operator that did not write it, or whose definition drops it."""
    noted = PodDefaults(image=RELEASE.image, service_account=RELEASE.service_account)
    turns, one = Turns(list, 1, DEADLINE), working("a", defaults=noted)
    assert turns.of(one, [POD], RELEASE, NOW).note == (OLD, None)
    assert turns.of(working("a"), [POD], RELEASE, NOW).note is None
    assert turns.of(one, [POD], RELEASE, NOW, ("status.memory.defaults.redis",)).note is None
    rolls = RollNote(since=stamp(NOW))
    assert turns.of(working("a", defaults=noted, roll=rolls), [POD], RELEASE, NOW).note == (OLD, rolls)
