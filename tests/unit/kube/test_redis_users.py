"""The users of runs in a real Redis: what a run may do, what it loses when it takes too much, and what others notice."""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ferry.contract import places
from ferry.contract.errors import Unreachable
from ferry.contract.places import Registration
from ferry.registry import JobRegistry
from ferry_operator.kube.api import redis_users
from ferry_operator.kube.api.redis import RedisApart
from ferry_operator.kube.api.redis_connection import RedisConnection, RedisRefusal
from ferry_operator.kube.api.redis_users import RunShare, RunUsers, user_name
from ferry_operator.local.cluster.private_redis import server_program
from tests.unit.registry.redis_server import NetworkRedis

SERVERS = {"valkey": server_program(), "redis": shutil.which("redis-server")}
"""The second one is that of the runtime image, where Debian's package is installed."""

SMALL = RunShare(bytes=1 << 20, keys=500, connections=20, busy=0.05)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkRedis]:
    program = SERVERS[request.param]
    if program is None:
        pytest.skip("no redis-server is installed")
    made = NetworkRedis(program, tmp_path_factory.mktemp("r"))
    yield made
    made.end()


def until(what: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


class Installation:
    """The users of one installation, tended by hand."""

    def __init__(self, server: NetworkRedis, tag: str = "t", bounds: RunShare = SMALL, runs: str = "a-1 b-1") -> None:
        self.server, self.users = server, RunUsers(tag, server.url, bounds)
        self.connection = RedisConnection(server.url)
        self.now = time.monotonic()
        self.users.wanted.update({run: f"of-{run}" for run in runs.split()})
        self.tend(0)

    def tend(self, seconds: float = 1.0) -> bool:
        self.now += seconds
        return self.users.tend(self.connection, self.now)

    def url(self, run: str) -> str:
        return f"redis://{self.users.user(run)}:of-{run}@127.0.0.1:{self.server.port}/0"

    def of(self, run: str) -> RedisConnection:
        return RedisConnection(self.url(run))

    def registry(self, run: str) -> JobRegistry:
        return JobRegistry(run, self.url(run), "")

    def names(self) -> set[str]:
        return set(self.connection.call("ACL", "USERS")) - {"default"}


def refused(redis: RedisConnection, *words: str | int) -> str:
    with pytest.raises(RedisRefusal) as error:
        redis.call(*words)
    return str(error.value)


FORBIDDEN = [
    "FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "CONFIG GET *", "CONFIG SET maxmemory 1", "ACL LIST", "ACL WHOAMI", "CLIENT LIST",
    "CLIENT KILL TYPE normal", "MONITOR", "SHUTDOWN NOSAVE", "SCRIPT FLUSH", "SCRIPT LOAD x", "SUBSCRIBE x",
    "PUBLISH x y", "EVAL x 0", "FUNCTION LIST", "FUNCTION FLUSH", "FCALL x 0", "REPLICAOF no one", "INFO", "DBSIZE", "RANDOMKEY",
    "SELECT 1", "SWAPDB 0 1", "SORT ferry:a-1:x", "DUMP ferry:a-1:x", "OBJECT ENCODING ferry:a-1:x", "SLOWLOG GET", "LATENCY DOCTOR",
]  # fmt: skip


def test_a_run_reaches_its_own_names_only(server: NetworkRedis) -> None:
    mine = Installation(server, runs="a-1 a-11 b-1")
    with mine.of("a-1") as redis:
        assert redis.call("SET", "ferry:a-1:x", "1") == "OK"
        for key in ("ferry:b-1:driver", "ferry:a-11:driver", "ferry:a-1", "x", "ferry:*:driver"):
            for command in (["GET", key], ["SET", key, "1"], ["DEL", key], ["HSET", key, "a", "b"]):
                assert refused(redis, *command).startswith("NOPERM"), (command, key)
        for line in FORBIDDEN:
            assert refused(redis, *line.split()).startswith("NOPERM"), line
    with pytest.raises(RedisRefusal, match="WRONGPASS"):
        RedisConnection(mine.url("a-1").replace("of-a-1", "of-b-1"))


def test_a_loaded_script_reaches_the_names_of_its_caller_only(server: NetworkRedis) -> None:
    mine = Installation(server)
    mine.registry("b-1").register(entry(1))
    with pytest.raises(Unreachable, match=r"[Pp]ermission"):
        JobRegistry("b-1", mine.url("a-1"), "").register(entry(2))
    assert set(mine.registry("b-1").changes(0).entries) == {"1.0"}


def entry(worker: int) -> Registration:
    return Registration(f"{worker}.0", "1", "127.0.0.1", 1, "", 2)


def test_users_and_scripts_are_made_again_in_an_empty_redis(server: NetworkRedis) -> None:
    apart = RedisApart(server.url, "t", SMALL)
    apart.keep("a-1", "secret")
    url = f"redis://{user_name('t', 'a-1')}:secret@127.0.0.1:{server.port}/0"
    registry = JobRegistry("a-1", url, "")
    until(lambda: works(lambda: registry.register(entry(1))))
    server.end()
    until(lambda: apart.problem() is not None and "does not answer" in str(apart.problem()))
    server.start()
    until(lambda: works(lambda: registry.register(entry(1))))
    until(lambda: apart.problem() is None)
    apart.forget("a-1")
    apart.close()
    with RedisConnection(server.url) as redis:
        until(lambda: redis.call("ACL", "USERS") == ["default"])
        assert redis.call("DBSIZE") == 0


def works(act: Callable[[], object]) -> bool:
    try:
        act()
    except Unreachable:
        return False
    return True


def test_users_that_cannot_be_made_are_told_once(server: NetworkRedis, caplog: pytest.LogCaptureFixture) -> None:
    with RedisConnection(server.url) as redis:
        redis.call("ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all", "-acl")
    caplog.set_level(logging.INFO, "ferry.operator")
    apart = RedisApart(f"redis://weak:weak@127.0.0.1:{server.port}/0", "t")
    apart.keep("a-1", "secret")
    until(lambda: apart.problem() is not None)
    assert "refuses a command: NOPERM" in str(apart.problem()) and "'acl" in str(apart.problem())
    time.sleep(2.5)
    apart.close()
    assert caplog.text.count("NOPERM") == 1


# --- a run that takes more than its share


def fill_keys(redis: RedisConnection) -> None:
    for start in range(0, 3000, 500):
        redis.calls([["SET", f"ferry:a-1:{start + i}", "x"] for i in range(500)])


def fill_bytes(redis: RedisConnection) -> None:
    redis.calls([["HSET", "ferry:a-1:instances", f"{i}", "x" * 100_000] for i in range(40)])


@pytest.mark.parametrize(("fill", "why"), [(fill_keys, "more than 500 entries"), (fill_bytes, "more than 1 MiB")])
def test_a_run_that_fills_redis_loses_it(
    server: NetworkRedis, fill: Callable[[RedisConnection], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Installation(server)
    other, greedy = mine.registry("b-1"), mine.of("a-1")
    other.register(entry(1))
    fill(greedy)
    assert mine.tend() and why in mine.users.without["a-1"][1] and caplog.text.count(why) == 1
    with pytest.raises(OSError):
        greedy.call("PING")
    with pytest.raises(RedisRefusal, match=r"WRONGPASS|disabled"):
        mine.of("a-1")
    with pytest.raises(Unreachable):
        mine.registry("a-1").driver()
    assert set(other.changes(0).entries) == {"1.0"} and mine.connection.call("DBSIZE") < 10
    assert not mine.tend() and "b-1" not in mine.users.without
    mine.tend(redis_users.WITHOUT_SECONDS - 10)
    with pytest.raises(RedisRefusal):
        mine.of("a-1")
    mine.tend(10)
    assert mine.registry("a-1").register(entry(3)) == entry(3), "it has another chance"
    fill(mine.of("a-1"))
    assert mine.tend() and "a-1" in mine.users.without


def test_a_run_within_its_share_keeps_it(server: NetworkRedis) -> None:
    mine = Installation(server, runs=" ".join(f"r-{i}" for i in range(30)))
    for i in range(30):
        with mine.of(f"r-{i}") as redis:
            redis.calls([["SET", f"ferry:r-{i}:{key}", "x" * 1000] for key in range(100)])
    assert not mine.tend() and not mine.users.without and mine.connection.call("DBSIZE") == 3000


def test_a_run_with_too_many_connections_loses_redis(server: NetworkRedis) -> None:
    mine = Installation(server)
    few, many = [mine.of("b-1") for _ in range(15)], [mine.of("a-1") for _ in range(30)]
    assert mine.tend() and "more than 20 connections" in mine.users.without["a-1"][1]
    assert [redis.call("PING") for redis in few] == ["PONG"] * 15
    for redis in many:
        with pytest.raises(OSError):
            redis.call("PING")


def test_a_run_that_keeps_redis_busy_loses_it(server: NetworkRedis) -> None:
    mine = Installation(server)
    threads = [threading.Thread(target=hammer, args=(mine.of("a-1"),), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    other, worst = mine.of("b-1"), 0.0
    end = time.monotonic() + 20
    while "a-1" not in mine.users.without and time.monotonic() < end:
        began = time.monotonic()
        assert other.call("PING") == "PONG"
        worst = max(worst, time.monotonic() - began)
        mine.now = time.monotonic()
        mine.tend(0)
        time.sleep(0.25)
    assert "more than 60% of all commands" in mine.users.without["a-1"][1] and "b-1" not in mine.users.without
    assert worst < 1.0, "meanwhile others are answered"
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def hammer(redis: RedisConnection) -> None:
    many = b"GET ferry:a-1:x\r\n" * 5000
    with contextlib.suppress(OSError):
        while True:
            redis._line.sendall(many)
            redis._answers.read(5000 * len(b"$-1\r\n"))


# --- other operators


def test_the_next_operator_keeps_it_off(server: NetworkRedis) -> None:
    mine = Installation(server)
    fill_keys(mine.of("a-1"))
    mine.tend()
    later = Installation(server)
    assert "a-1" in later.users.without and "b-1" not in later.users.without
    with pytest.raises(RedisRefusal):
        later.of("a-1")


def test_two_installations_share_a_redis(server: NetworkRedis) -> None:
    one, two = Installation(server, "one", runs="a-1"), Installation(server, "two", runs="c-1")
    for installation in (one, two):
        installation.tend(redis_users.SWEEP_SECONDS + 1)
        installation.tend(redis_users.STRAY_SECONDS + 1)
    assert one.names() == {"ferry.one.a-1", "ferry.two.c-1"}
    one.users.forget(one.connection, "c-1")
    assert one.names() == {"ferry.one.a-1", "ferry.two.c-1"}


def test_the_user_of_a_job_that_went_without_an_operator_goes_later(server: NetworkRedis) -> None:
    old = Installation(server, runs="a-1 b-1 c-1")
    old.registry("b-1").register(entry(1))
    used = old.of("c-1")
    new = Installation(server, runs="a-1")
    new.tend(redis_users.SWEEP_SECONDS + 1)
    assert len(new.names()) == 3
    new.tend(redis_users.STRAY_SECONDS + 1)
    assert new.names() == {"ferry.t.a-1", "ferry.t.c-1"} and used.call("PING") == "PONG", "nobody takes a user in use"
    assert new.connection.call("EXISTS", *places.lasting("b-1")) == 0


def test_a_job_gets_its_user_without_a_wait(server: NetworkRedis) -> None:
    apart = RedisApart(server.url, "t")
    until(lambda: apart.problem() is None)
    taken = []
    for number in range(20):
        began = time.monotonic()
        apart.keep(f"r-{number}", "p")
        url = f"redis://{user_name('t', f'r-{number}')}:p@127.0.0.1:{server.port}/0"
        registry: Any = JobRegistry(f"r-{number}", url, "")
        until(lambda registry=registry: works(registry.driver))
        taken.append(time.monotonic() - began)
    apart.close()
    assert sorted(taken)[10] < 0.5
