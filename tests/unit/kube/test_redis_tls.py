"""A Redis that speaks TLS alone, with the clients of the operator and of a run: what they trust, and what they refuse."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ferry.contract import certificates
from ferry.contract.errors import Unreachable
from ferry.registry.connection import connected, reaching
from ferry_operator.job import spec
from ferry_operator.kube.__main__ import release_of
from ferry_operator.kube.api import redis, redis_users
from ferry_operator.kube.api.port import JOBS
from ferry_operator.kube.api.redis_connection import RedisConnection, where
from ferry_operator.kube.api.redis_users import CLOSE_SECONDS, SWEEP_SECONDS
from ferry_operator.kube.manifests.release import (
    Installation,
    clear_port,
    redis_address,
    redis_password,
    redis_tag,
    run_redis,
)
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.process.leader import Leader
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, World, job, settled
from tests.unit.kube.test_keys import uids, values
from tests.unit.kube.test_redis_users import until
from tests.unit.kube.test_suspension import begun, edit
from tests.unit.registry.redis_server import PASSWORD, free_port

PROGRAM = shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
"""Of the system, as in the image: the server of the Python package is built without TLS."""

needs_server = pytest.mark.skipif(PROGRAM is None, reason="needs a redis-server with TLS: apt-get install redis-server")


class TlsRedis:
    """A server whose plaintext port is closed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port, self.clear_port = directory, free_port(), free_port()
        self.files = [directory / name for name in ("ca.crt", "tls.crt", "tls.key")]
        self.present("mine", "localhost")
        names = ("tls-ca-cert-file", "tls-cert-file", "tls-key-file")
        options = [word for name, file in zip(names, self.files, strict=True) for word in (f"--{name}", str(file))]
        options += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", "--save", ""]
        self.command = [PROGRAM or "", *options, "--requirepass", PASSWORD]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, cwd=self.directory)
        while redis.problem(redis_address(self.release())) is not None:
            assert self.process.poll() is None
            time.sleep(0.01)

    def present(self, authority: str, *hosts: str) -> None:
        """Another certificate, in the files of the server."""
        identity = certificates.issue(authority, *hosts)
        contents = (certificates.authority(authority), identity.certificate, identity.key)
        for file, content in zip(self.files, contents, strict=True):
            file.write_bytes(content)

    def load(self, connection: RedisConnection) -> None:
        """Have the server read its files again."""
        connection.call("CONFIG", "SET", "tls-cert-file", str(self.files[1]), "tls-key-file", str(self.files[2]))

    def release(self, authority: str = "mine", scheme: str = "rediss", host: str = "localhost") -> Installation:
        """An installation that trusts this authority."""
        url = f"{scheme}://:{PASSWORD}@{host}:{self.port}/0"
        return Installation("jobs", "ferry:1", url, "key", redis_ca=certificates.authority(authority).decode())

    def of_the_chart(self) -> Installation:
        """The installation whose URL names the port for clear text."""
        url = f"redis://:{PASSWORD}@localhost:{self.clear_port}/0"
        return replace(self.release(), redis=url, redis_tls_port=self.port)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsRedis]:
    made = TlsRedis(tmp_path)
    try:
        yield made
    finally:
        made.end()


def ping(url: str) -> object:
    """As a process of a run."""
    with reaching("ping"):
        return connected(url, "secret", 2.0).ping()


def with_a_user(server: TlsRedis) -> str:
    """The URL of a run for which the operator has made a user."""
    release = server.release()
    users = redis.RunUsers(redis_tag(release), redis_address(release))
    users.wanted["j-1"] = redis_password(release, "j-1", "u")
    with RedisConnection(redis_address(release)) as connection:
        users.tend(connection, time.monotonic())
    return run_redis(release, "j-1", "u")


@needs_server
def test_operator_and_runs_trust_the_authority_of_the_installation(server: TlsRedis) -> None:
    url = with_a_user(server)
    assert ping(url) is True
    assert PASSWORD not in url and where(url) == f"localhost:{server.port}"


@needs_server
def test_another_authority_another_name_and_plaintext_are_refused(server: TlsRedis) -> None:
    url = with_a_user(server)
    unknown = replace(server.release(), redis_ca="")
    for release, reason in (
        (server.release("other"), "CERTIFICATE_VERIFY_FAILED"),
        (server.release(host="127.0.0.1"), "IP address mismatch"),
        (unknown, "CERTIFICATE_VERIFY_FAILED"),
        (server.release(scheme="redis"), ""),
    ):
        why = redis.problem(redis_address(release))
        assert why is not None and reason in why and PASSWORD not in why and "CERTIFICATE--" not in why, why
        with pytest.raises(Unreachable):
            ping(run_redis(release, "j-1", "u"))
    assert ping(url) is True


@needs_server
def test_a_certificate_is_replaced_under_connections(server: TlsRedis) -> None:
    url = with_a_user(server)
    client = connected(url, "secret", 2.0)
    assert client.ping()
    with RedisConnection(redis_address(server.release())) as connection:
        server.present("mine", "localhost")
        server.load(connection)
        assert client.ping() and ping(url) is True
        server.present("other", "localhost")
        server.load(connection)
        assert client.ping(), "connections go on"
        with pytest.raises(Unreachable):
            ping(url)


def test_another_certificate_to_trust_replaces_no_pod() -> None:
    release = Installation("jobs", "ferry:1", "rediss://:p@r:1/0", "key", redis_ca="a+b")
    assert release.redis == "rediss://:p@r:1/0" and redis_address(release).endswith("/0?ssl_ca_data=a%2Bb")
    assert redis_address(replace(release, redis="redis://:p@r:1/0")) == "redis://:p@r:1/0"


# --- the chart's Redis: TLS, and a port for clear text while an older run needs it


class Tended:
    """The operator's look at the chart's Redis, by hand."""

    def __init__(self, server: TlsRedis) -> None:
        release = server.of_the_chart()
        self.users = redis.RunUsers(redis_tag(release), redis_address(release), clear_port=clear_port(release))
        self.users.wanted["j-1"] = redis_password(release, "j-1", "u")
        self.urls = [run_redis(each, "j-1", "u") for each in (release, replace(release, redis_tls_port=0))]
        self.now = time.monotonic()

    def tend(self, seconds: float = 1.0) -> list[bool]:
        """Whether a run is answered by TLS, and in clear."""
        self.now += seconds
        with RedisConnection(self.users.url) as connection:
            self.users.tend(connection, self.now)
        return [self.answers(url) for url in self.urls]

    def answers(self, url: str) -> bool:
        try:
            return ping(url) is True
        except Unreachable:
            return False


@needs_server
def test_the_port_for_clear_text_is_open_exactly_while_a_run_needs_it(
    server: TlsRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ferry.operator")
    operator = Tended(server)
    assert operator.urls[0].startswith("rediss://") and operator.urls[1].startswith("redis://")
    assert operator.tend(0) == operator.tend() == [True, False], "no run needs it"
    operator.users.clear.add("j-1")
    assert operator.tend() == [True, True] and "is open, for runs that began with it: j-1" in caplog.text
    server.end()
    server.start()
    assert operator.tend() == [True, True], "after a restart of Redis"
    another = Tended(server)
    another.now = operator.now
    assert another.tend() == [True, True], "an operator that does not know the runs yet"
    operator.users.clear.clear()
    assert operator.tend() == operator.tend(CLOSE_SECONDS - 2) == [True, True]
    assert operator.tend(3) == [True, False] and "is closed, no run needs it" in caplog.text
    assert PASSWORD not in caplog.text


@needs_server
def test_the_leader_opens_the_port_while_a_run_needs_it(server: TlsRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_users, "CLOSE_SECONDS", 2.0)
    release = server.of_the_chart()
    environ = {
        "FERRY_REDIS_URL": release.redis,
        "FERRY_REDIS_CA": release.redis_ca,
        "FERRY_REDIS_TLS_PORT": str(server.port),
    }
    leader = Leader(FakeApi(lambda: 0.0), release_of(environ, "jobs"), 1, lambda: True, Metrics())
    apart = leader._redis
    try:
        for run, clear in (("j-1", False), ("j-1", True), ("j-1", False), ("j-2", True)):
            apart.keep(run, "secret", clear)
            until(lambda clear=clear: (redis.problem(release.redis) is None) == clear)
        apart.forget("j-2")
        until(lambda: redis.problem(release.redis) is not None)
        assert apart.problem() is None
    finally:
        apart.close()


@needs_server
def test_redis_at_an_address_proves_the_address(server: TlsRedis) -> None:
    """`redis.clusterIP`, for clusters without DNS."""
    server.present("mine", "ferry-redis.streams.svc", "127.0.0.1")
    with RedisConnection(redis_address(server.release())) as connection:
        server.load(connection)
    assert redis.problem(redis_address(server.release(host="127.0.0.1"))) is None
    why = redis.problem(redis_address(server.release()))
    assert why is not None and "mismatch" in why


@needs_server
def test_a_renewed_certificate_is_loaded(server: TlsRedis) -> None:
    operator = Tended(server)
    assert operator.tend(0) == [True, False]
    server.present("other", "localhost")
    assert operator.tend(SWEEP_SECONDS + 1) == [False, False], "the clients trust the old authority"


def test_tls_of_the_charts_redis_replaces_no_pod() -> None:
    before = Installation("jobs", "ferry:1", "redis://:p@[fd00::7]:6379/0", "key")
    after = replace(before, redis_ca="PEM", redis_tls_port=6380)
    assert redis_address(after) == "rediss://:p@[fd00::7]:6380/0?ssl_ca_data=PEM" and clear_port(after) == 6379
    assert clear_port(before) == 0 and redis_address(before) == before.redis
    old, new = (effective_spec.revisions(spec.check(job()), "u", release) for release in (before, after))
    assert replace(new, settings=old.settings) == old and new.settings != old.settings


class Kept(redis.Redis):
    """Which runs need the port for clear text."""

    def __init__(self) -> None:
        self.clear: dict[str, bool] = {}

    def problem(self) -> None:
        """It answers."""

    def keep(self, run: str, password: str, clear: bool = False) -> None:
        self.clear[run] = clear


def scheme(world: World) -> str:
    return str(json.loads(values(world.api, "nbq5-run")["run.json"])["redis"]).partition("://")[0]


def upgraded(world: World, **changes: object) -> Kept:
    kept = Kept()
    world.release = replace(RELEASE, redis_ca="PEM", redis_tls_port=6380, **changes)  # type: ignore[arg-type]
    world.begin_operator()
    world.operator._redis = kept
    return kept


def test_a_job_of_an_older_release_moves_to_tls_with_its_next_pods() -> None:
    world = begun()
    before = uids(world)
    assert scheme(world) == "redis"
    kept = upgraded(world)
    world.rounds(10)
    assert uids(world) == before and scheme(world) == "redis" and set(kept.clear.values()) == {True}
    edit(world, workers=3)
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    assert before < uids(world) and scheme(world) == "rediss" and set(kept.clear.values()) == {True}
    kept = upgraded(world, image="ferry:2")
    world.until(lambda w: settled(w) and not before & uids(w), 400)
    world.rounds(2)
    assert set(kept.clear.values()) == {False}, "every process reads the new address"
    kept = upgraded(world, image="ferry:2")
    world.rounds(2)
    assert set(kept.clear.values()) == {False}, "and the next operator knows"


def test_a_new_job_uses_tls_from_the_start() -> None:
    world = World()
    kept = upgraded(world)
    world.api.create(JOBS, job())
    world.until(settled)
    assert scheme(world) == "rediss" and set(kept.clear.values()) == {False}
