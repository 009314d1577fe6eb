"""The registry against a real Redis: who may write what, and what the answer is to all others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract import places
from ferry.contract.catalogue import first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import StateUnavailable, Superseded, Unreachable
from ferry.contract.names import InstanceId
from ferry.contract.places import DriverPlace, Registration
from ferry.contract.routing import Version
from ferry.contract.signs import Pulse
from ferry.contract.tickets import derived
from ferry.registry import Changes, Claim, JobRegistry, MemberCache
from tests.unit.registry.journal_contract import CHECKS, Another, table
from tests.unit.registry.redis_server import RUN, Redis, RunRedis


@pytest.fixture(params=[Redis, RunRedis], ids=["private", "with the user of a run"])
def redis(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Redis | RunRedis]:
    server: Redis | RunRedis = request.param(tmp_path_factory.mktemp("r"))
    yield server
    server.end()


@pytest.fixture
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("r"))
    yield server
    server.end()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_journal_in_redis_is_one(redis: Redis, check: Callable[[Another], None]) -> None:
    check(redis.journal)


def test_nobody_goes_on_from_a_journal_that_has_moved(redis: Redis) -> None:
    journal = redis.journal()
    journal.swap(table(1, 0), None)
    redis.journal().move("elsewhere/j")
    for expected in (None, Version(1, 0)):
        with pytest.raises(Superseded, match="has taken over the journal"):
            journal.swap(table(1, 1), expected)
    with pytest.raises(Superseded, match="bring back what elsewhere/j held"):
        redis.journal().read()


def test_no_bit_of_the_journal_is_read_as_another(redis: Redis) -> None:
    journal, name = redis.journal(), places.journal(RUN)
    journal.swap(table(1, 0), None)
    whole = journal._redis.get(name)
    assert isinstance(whole, str) and journal.read() == table(1, 0)
    for at in range(len(whole)):
        journal._redis.set(name, whole[:at] + chr(ord(whole[at]) ^ 1) + whole[at + 1 :])
        try:
            assert journal.read() == table(1, 0)  # the name of the checksum
        except StateUnavailable as error:
            assert "the journal in Redis is damaged" in str(error)
    document = json.loads(whole)
    del document["crc"]
    journal._redis.set(name, json.dumps(document))
    assert journal.read() == table(1, 0), "of an older release"


def test_a_journal_that_is_gone_is_not_begun_anew(redis: Redis) -> None:
    journal = redis.journal()
    journal.swap(table(1, 0), None)
    redis.end()
    for unknown in (journal.read, lambda: journal.swap(table(1, 1), Version(1, 0))):
        with pytest.raises(Unreachable):
            unknown()
    redis.start()
    with pytest.raises(Superseded, match="the journal is gone"):
        journal.swap(table(1, 1), Version(1, 0))
    assert journal.read() is None


def test_a_redis_that_may_lose_the_journal_is_found_out(private: Redis, caplog: pytest.LogCaptureFixture) -> None:
    journal = private.journal()
    assert "appendonly no" in journal.weakness()
    journal._redis.config_set("appendonly", "yes")
    journal._redis.config_set("appendfsync", "everysec")
    assert "appendfsync everysec" in journal.weakness()
    journal._redis.config_set("appendfsync", "always")
    assert journal.weakness() == ""
    journal._redis.execute_command("ACL", "SETUSER", "default", "-config")
    assert journal.weakness() == "" and "appendfsync always" in caplog.text, "it does not say"


def entry(instance: str, incarnation: str) -> Registration:
    return Registration(instance, incarnation, "127.0.0.1", 1, "", 2)


def test_a_registration_gives_way_to_that_of_a_later_life_only(redis: Redis) -> None:
    registry, before, after = redis.registry(), entry("1.0", "1"), entry("1.0", "2")
    assert registry.register(before) == before
    assert registry.register(after) == after
    assert registry.register(before) == after, "and it is told who is there"
    registry.unregister(before)
    assert registry.changes(0).entries == {"1.0": after}
    registry.unregister(after)
    assert registry.register(before) == before


def test_the_roll_is_kept_up_by_changes(redis: Redis) -> None:
    registry, roll = redis.registry(), MemberCache(redis.registry())
    roll.look()
    assert roll.entries == {}
    a, b = entry("0.0", "1"), entry("1.0", "1")
    registry.register(a)
    registry.register(b)
    roll.look()
    assert roll.entries == {"0.0": a, "1.0": b}
    known = registry.changes(0).number
    registry.register(b)
    assert registry.changes(known) == Changes(known, False, {}), "the same again is no change"
    registry.unregister(a)
    assert registry.changes(known).entries == {"0.0": None}
    roll.look()
    assert roll.entries == {"1.0": b}


def test_a_look_at_the_roll_costs_the_same_however_many_are_on_it(private: Redis) -> None:
    registry, rolls = private.registry(), [MemberCache(private.registry()) for _ in range(5)]
    client = registry._redis

    def bytes_so_far() -> int:
        stats = client.info("stats")
        return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])  # type: ignore[index, operator]

    for worker in range(200):
        registry.register(entry(f"{worker}.0", "1"))
    for roll in rolls:
        roll.look()
        assert len(roll.entries) == 200
    asking = bytes_so_far()
    asking = bytes_so_far() - asking
    before = bytes_so_far()
    for roll in rolls * 10:
        roll.look()
    settled = bytes_so_far() - before - asking
    assert settled < 50 * 120, "a look"
    registry.register(entry("7.0", "2"))
    before = bytes_so_far()
    for roll in rolls:
        roll.look()
    assert bytes_so_far() - before - asking < 5 * 1000, "a look when one of them has changed"
    assert all(roll.entries["7.0"].incarnation == "2" for roll in rolls)


def test_the_roll_is_read_as_a_whole_when_redis_was_away_or_has_lost_something(redis: Redis) -> None:
    registry, roll = redis.registry(), MemberCache(redis.registry())
    for instance in ("0.0", "1.0"):
        registry.register(entry(instance, "1"))
    roll.look()
    known = registry.changes(0).number
    redis.end()
    with pytest.raises(Unreachable):
        roll.look()
    redis.start()  # with nothing in it
    assert redis.registry().changes(known).whole
    redis.registry().register(entry("2.0", "1"))
    roll.look()
    assert list(roll.entries) == ["2.0"]


def test_a_worker_belongs_to_the_parent_that_claimed_it_last(redis: Redis) -> None:
    registry = redis.registry()
    first = registry.claim(3, "a")
    registry.beat(3, first, 60_000)
    again = registry.claim(3, "a")
    assert again.life > first.life, "a later start at the same place"
    other = registry.claim(3, "b")
    assert other.life > again.life and registry.claim(4, "a"), "another worker is another matter"
    for late in (lambda: registry.beat(3, again, 60_000), lambda: registry.claim(3, "a")):
        with pytest.raises(Superseded, match="worker 3 was started again elsewhere"):
            late()
    registry.beat(3, other, 60_000)
    assert registry.claim(3, "b").life > other.life
    assert registry.heard([1, 3, 12]) == ([1, 12], [])
    pulses = [Pulse(InstanceId("3.0"), 2_000, "operator 'ä' in epoch 3", 2_000), Pulse(InstanceId("3.1"), 0)]
    registry.beat(3, registry.claim(3, "b"), 60_000, pulses)
    assert registry.heard([1, 3, 12]) == ([1, 12], pulses), "its parent speaks for its instances"


def test_a_worker_keeps_its_parent_when_redis_has_lost_who_it_is(redis: Redis) -> None:
    registry = redis.registry()
    former, life = registry.claim(0, "a"), registry.claim(0, "b")
    redis.end()
    redis.start()
    registry = redis.registry()
    registry.beat(0, former, 60_000)
    registry.beat(0, life, 60_000)
    for late in (lambda: registry.beat(0, former, 60_000), lambda: registry.claim(0, "a")):
        with pytest.raises(Superseded):
            late()


def test_what_redis_has_forgotten_is_said_again(redis: Redis) -> None:
    """Also where another release has told it of a life without places."""
    counts = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
    catalogue = first_catalogue([counts], file="job.py", folder="programs/0123456789ab", arguments={"n": 1})
    registry, here = redis.registry(), DriverPlace(3, True, "life", "spark://x:1", "http://x:2")
    registry.publish(catalogue)
    assert registry.announce(here)
    redis.end()
    redis.start()
    assert redis.registry().catalogue() is None and redis.registry().driver() is None
    registry = redis.registry()
    registry.publish(catalogue)
    assert registry.announce(here) and registry.announce(here)
    assert not registry.announce(replace(here, generation=2))
    assert registry.catalogue() == catalogue and registry.driver() == here
    registry.beat(1, Claim(7, "7"), 60_000)
    assert registry.claim(1, "a").life > 7


def test_a_private_redis_is_shown_what_is_derived_for_it() -> None:
    def shown(url: str) -> Any:
        return JobRegistry(RUN, url, "secret")._redis.connection_pool.connection_kwargs.get("password")

    assert shown("unix:///somewhere/r") == derived("secret", "redis")
    assert shown("redis://:theirs@somewhere:1") == "theirs" and shown("redis://somewhere:1") is None


def test_operators_that_an_older_release_has_published_are_of_the_first_program(redis: Redis) -> None:
    counts = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
    older = {name: value for name, value in counts.to_wire().items() if name not in ("emit", "ttl_ms")}
    journal = redis.journal()
    journal._redis.set(places.pipeline(RUN), json.dumps({"operators": [older]}))
    assert journal.catalogue() == redis.registry().catalogue() == first_catalogue([counts])


def test_drivers_are_counted_that_do_not_come_back_from_a_sink(redis: Redis) -> None:
    one, another = redis.registry(), redis.registry()
    assert [one.enter("sink a, epoch 5"), another.enter("sink a, epoch 5"), another.enter("sink b, epoch 5")] == [
        0,
        1,
        0,
    ]
    one.leave()
    assert another.enter("sink a, epoch 5") == 0
