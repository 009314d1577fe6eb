"""A Redis that speaks TLS alone, with the clients of the operator and of a run: what they trust, and what they refuse."""

from __future__ import annotations

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
from ferry_operator.kube.api import redis
from ferry_operator.kube.api.redis_connection import RedisConnection, where
from ferry_operator.kube.manifests.release import Installation, redis_address, redis_password, redis_tag, run_redis
from tests.unit.registry.redis_server import PASSWORD, free_port

PROGRAM = shutil.which("redis-server", path="/usr/bin:/usr/local/bin")
"""Of the system, as in the image: the server of the Python package is built without TLS."""

needs_server = pytest.mark.skipif(PROGRAM is None, reason="needs a redis-server with TLS: apt-get install redis-server")


class TlsRedis:
    """A server whose plaintext port is closed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.files = [directory / name for name in ("ca.crt", "tls.crt", "tls.key")]
        self.present("mine")
        names = ("tls-ca-cert-file", "tls-cert-file", "tls-key-file")
        options = [word for name, file in zip(names, self.files, strict=True) for word in (f"--{name}", str(file))]
        options += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no", "--save", ""]
        command = [PROGRAM or "", *options, "--requirepass", PASSWORD]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        while redis.problem(redis_address(self.release())) is not None:
            assert self.process.poll() is None
            time.sleep(0.01)

    def present(self, authority: str, host: str = "localhost") -> None:
        """Another certificate, in the files of the server."""
        identity = certificates.issue(authority, host)
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsRedis]:
    made = TlsRedis(tmp_path)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()


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
        server.present("mine")
        server.load(connection)
        assert client.ping() and ping(url) is True
        server.present("other")
        server.load(connection)
        assert client.ping(), "connections go on"
        with pytest.raises(Unreachable):
            ping(url)


def test_another_certificate_to_trust_replaces_no_pod() -> None:
    release = Installation("jobs", "ferry:1", "rediss://:p@r:1/0", "key", redis_ca="a+b")
    assert release.redis == "rediss://:p@r:1/0" and redis_address(release).endswith("/0?ssl_ca_data=a%2Bb")
    assert redis_address(replace(release, redis="redis://:p@r:1/0")) == "redis://:p@r:1/0"
